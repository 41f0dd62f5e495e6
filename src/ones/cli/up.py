"""`ones up` and `ones down`: start and stop the service of this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ones.cli.launcher_options import with_launcher_options
from ones.cli.options import Json
from ones.cli.output import InterruptedRunError, print_json, say
from ones.cli.settings import effective, policy_settings
from ones.errors import InvalidSettingError, OnesError, WorldError

if TYPE_CHECKING:
    from ones.config import ServiceSettings
    from ones.control.statedir import StateDir

STATE = typer.Option("--dir", help="State directory of the service.", metavar="DIR")
STOP_SECONDS = 30.0
CHECKPOINT_SECONDS = 150.0  # longer than workers have for their checkpoint


@with_launcher_options
def up(
    state: Annotated[Path | None, STATE] = None,
    slots: Annotated[
        int | None, typer.Option(help="CPU slots instead of this machine's GPUs.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: a free one.")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="Address at which workers on other nodes reach the service.")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(help="What starts workers: local, ray, slurm or a Python file.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Scheduling policy: a name or a Python file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the policy.")] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="PostgreSQL instead of SQLite.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Format of the log: text or json.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the policy; repeatable."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="No TLS, also where other machines reach the service."),
    ] = False,
    trusting: Annotated[
        bool,
        typer.Option(
            "--trusting", help="Allow several users although all jobs run as one Unix user."
        ),
    ] = False,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="Do not go to the background; for service managers."),
    ] = False,
    json: Json = False,
    **launcher_options: Any,
) -> None:
    """Start the service: controller, slots of this machine, web page. It runs in the background.

    Example: ones up --slots 4
    """
    from ones.control import logs, service_process
    from ones.control.server import ServiceReady, configure_logs, insecurity, serve
    from ones.control.statedir import StateDir
    from ones.lab.kernel_warmup import warm_up
    from ones.policies import limits_live, located

    found = effective(
        section="service",
        state=str(state) if state else None,
        slots=slots,
        host=host,
        port=port,
        advertise=advertise,
        launcher=launcher,
        **launcher_options,
        policy=policy,
        seed=seed,
        database=database,
        log_format=log_format,
        insecure=insecure or None,
        trusting=trusting or None,
    )
    service = found.settings.service
    if service.seed < 0:
        raise InvalidSettingError(f"seed: {service.seed} is negative")
    if service.slots is not None and service.slots < 1:
        raise InvalidSettingError(f"slots: {service.slots} is not at least 1")
    logs.check(service.log_format, service.log_level)
    settings = policy_settings(found, service.policy, set_ or [])
    warm_up(service.policy, settings)
    # absolute path: the service runs in another directory
    service = replace(service, policy=located(service.policy))
    chosen = {service.policy: settings}

    def show(ready: ServiceReady) -> None:
        if json:
            print_json({"url": ready.url, "link": ready.link, "slots": ready.slots})
            return
        slots = "1 slot" if ready.slots == 1 else f"{ready.slots} slots"
        print(f"ONES is up: {ready.url} ({slots}, policy {service.policy})")
        if limits := limits_live(service.policy):
            print(f"policy {service.policy}: {limits}")
        print(ready.isolation)
        for gpu in ready.unused:
            print(f"not used, in use by another process: {gpu}")
        # a login link in a journal or a log would let its readers in
        is_seen = not foreground or sys.stdout.isatty()
        print(f"web page: {ready.link if is_seen else 'get a login link with: ones link'}")
        _print_authority(ready.url, StateDir.of(service.state), service)
        sys.stdout.flush()

    if foreground:
        configure_logs(service)
        try:
            serve(replace(found.settings, service=service.rooted(), policy=chosen), show)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                "interrupted; jobs continue to train: `ones down` stops them, `ones up` adopts them"
            ) from None
        return
    if warning := insecurity(service):
        say(warning)
    reached = service_process.start(service, chosen)
    from ones.cli.client import Client, trusted_by

    # the service that was started, not that of ONES_URL
    token = StateDir.of(service.state).read_token() or ""
    client = Client(reached.url, token, trusted_by(StateDir.of(service.state), service))
    cluster = client.get("/api/cluster")
    unused = tuple(
        f"{s['id']} ({', '.join(s['used_by'])})" for s in cluster["slots"] if s["used_by"]
    )
    link = client.post("/api/link")["url"]
    slots_used = len(cluster["slots"]) - len(unused)
    show(ServiceReady(reached.url, link, slots_used, unused, cluster["isolation"]))


def _print_authority(url: str, directory: StateDir, service: ServiceSettings) -> None:
    """Print how other machines can trust a certificate that the service made."""
    from ones.control.certificates import fingerprint

    if url.startswith("https:") and not service.tls_certificate:
        text = directory.authority.read_text(encoding="ascii")
        print(f"certificate authority: {directory.authority} (SHA-256 {fingerprint(text)})")
        print("on other machines: copy this file and set SSL_CERT_FILE to it")


def down(
    state: Annotated[Path | None, STATE] = None,
    keep_jobs: Annotated[
        bool, typer.Option("--keep-jobs", help="Stop the controller only; training continues.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop the service and its workers. They save their work; jobs continue after the next ones up.

    Example: ones down
    """
    from ones.control.launching import stop_jobs
    from ones.control.statedir import StateDir

    found = effective(section="service", state=str(state) if state else None)
    directory = StateDir.of(found.settings.service.state)
    if directory.is_locked():
        _end_controller(directory, wait_for_jobs=not keep_jobs)
    elif not directory.runs.exists():
        raise WorldError(f"{directory.path}: no service is running here")
    if not keep_jobs:
        stop_jobs(directory)  # the controller was not running or did not respond
    if json:
        print_json({"state": str(directory.path), "jobs_go_on": keep_jobs})
    else:
        say("the service is down" + ("; its jobs continue" if keep_jobs else ""))


def _end_controller(directory: StateDir, *, wait_for_jobs: bool) -> None:
    """Stop the controller by a request, so that last reports arrive; by a signal if that fails."""
    from ones.cli.client import connect

    deadline = time.monotonic() + STOP_SECONDS
    pid, address = directory.holder(), directory.address()
    try:
        if not wait_for_jobs or address is None or address.pid != pid:
            raise WorldError("workers are not to be stopped, or the service is still starting")
        connect(directory.path).post("/api/shutdown")
        deadline += CHECKPOINT_SECONDS
    except OnesError:
        _signal(pid, signal.SIGTERM)
    while directory.is_locked():
        if time.monotonic() > deadline:
            _signal(pid, signal.SIGKILL)
            deadline = inf
        time.sleep(0.05)


def _signal(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(pid, number)
