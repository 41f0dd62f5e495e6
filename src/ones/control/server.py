"""Runs the service: sockets, TLS, signals, and the order of start and stop."""

from __future__ import annotations

import errno
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.config import ServiceSettings, Settings, half_life_seconds
from ones.control import logs
from ones.control.certificates import is_loopback, names_of, own_pair
from ones.control.controller import Options
from ones.control.health import HealthLimits
from ones.control.launching import launcher_of, socket_of
from ones.control.limits import Limits
from ones.control.live.timeouts import Timeouts
from ones.control.pruning import Retention
from ones.control.service import Service
from ones.control.statedir import Address, StateDir
from ones.control.utilisation.board import MINUTE, UtilisationLimits
from ones.errors import (
    BugError,
    InvalidSettingError,
    OnesError,
    UnknownNameError,
    WorldError,
    described,
)

SHUTDOWN_SECONDS = 2
#: maximum number of open files: every waiting worker has a connection
MOST_FILES = 1 << 16
BACKLOG = 2048
MECHANISMS = ("elastic", "restart")

log = logs.logger("ones.control.server")  # also if this module is __main__


@dataclass(frozen=True, slots=True)
class ServiceReady:
    """What is shown once the service can be reached."""

    url: str
    link: str
    slots: int
    unused: tuple[str, ...]  # GPUs that other processes use
    isolation: str  # which Unix users jobs run as


def serve(settings: Settings, on_ready: Callable[[ServiceReady], None]) -> None:
    """Run the service until SIGTERM or SIGINT. The workers continue; `ones down` stops them."""
    import uvicorn

    from ones.control.api import Gate, WorkerApi, create_app
    from ones.control.api.connections import GuardedServer, guarded_protocol
    from ones.control.api.gate import known_hosts
    from ones.control.page import add_page

    allow_many_files()
    of_service = settings.service
    if of_service.mechanism not in MECHANISMS:
        raise UnknownNameError("mechanism", of_service.mechanism, MECHANISMS)
    if not of_service.whatif_cpu_seconds >= 1:
        raise InvalidSettingError(
            f"whatif_cpu_seconds: {of_service.whatif_cpu_seconds} is not at least 1"
        )
    if of_service.group_size < 0:
        raise InvalidSettingError(f"group_size: {of_service.group_size} is not at least 0")
    directory = StateDir.of(of_service.state)
    directory.make()
    tls = _tls(of_service, directory)
    service = Service(
        directory,
        launcher_of(of_service, directory, lambda: url),
        Options(
            policy=of_service.policy,
            seed=of_service.seed,
            settings=settings.policy.get(of_service.policy, {}),
            database=of_service.database,
            checkpoints=of_service.checkpoints,
            mechanism=of_service.mechanism,
            timeouts=Timeouts(
                join_seconds=of_service.join_seconds,
                grace_seconds=of_service.grace_seconds,
                silence_seconds=of_service.silence_seconds,
            ),
            authority=tls.authority if tls is not None else "",
            limits=Limits.of(of_service),
            trusting=of_service.trusting,
            keep_environments=of_service.keep_environments,
            group_size=of_service.group_size,
            half_life=half_life_seconds(of_service.fair_share_half_life_hours),
            whatif_cpu_seconds=of_service.whatif_cpu_seconds,
            utilisation=utilisation_limits(of_service),
            health=HealthLimits(
                stuck_seconds=of_service.stuck_seconds, min_free_mb=of_service.min_free_mb
            ),
            keeping=Retention(
                output_days=of_service.keep_output_days,
                checkpoint_days=of_service.keep_checkpoints_days,
                event_days=of_service.keep_events_days,
                output_mb=of_service.max_output_mb,
            ),
        ),
    )
    listener = _listen_again(directory, of_service.host, of_service.port)
    path = socket_of(of_service)
    listeners = [listener, *([_listen_unix(path)] if path is not None else [])]
    url = _url(listener, of_service.advertise or of_service.host, tls=tls is not None)
    app = create_app(service)
    add_page(app)
    hosts = known_hosts(of_service.host, of_service.advertise, of_service.allowed_hosts)
    config = uvicorn.Config(
        Gate(WorkerApi(app, service), service, hosts),
        http=guarded_protocol(service.limits),
        ws="none",
        log_level="error",  # a warning per request that is not HTTP would fill the log
        log_config=None,  # `logs` configures logging
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_certfile=tls.certificate if tls is not None else None,
        ssl_keyfile=tls.key if tls is not None else None,
    )
    server = GuardedServer(config, service.limits)
    _beat(server, service)

    def end() -> None:
        service.closing = True
        server.should_exit = True

    service.on_end = end
    service.start(url)
    service.first_admin()
    directory.write_address(Address(pid=os.getpid(), url=url))
    slots = service.launcher.slots()
    log.info("service started", url=url, pid=os.getpid(), policy=of_service.policy,
             launcher=of_service.launcher, slots=len(slots))  # fmt: skip
    on_ready(
        ServiceReady(
            url,
            _link(service, url),
            sum(not slot.used_by for slot in slots),
            tuple(f"{s.id} ({', '.join(s.used_by)})" for s in slots if s.used_by),
            service.isolation(),
        )
    )
    signals = _close_on_signal(server, service)
    server.run(sockets=listeners)
    service.closing = True
    service.stop()
    log.info("service stopped", url=url, pid=os.getpid())
    for number in signals:  # end as the sender of the signal expects
        logging.shutdown()  # another thread writes the log
        signal.raise_signal(number)
    if service.failure is not None:
        raise BugError(f"the scheduler has stopped: {service.failure}")


def utilisation_limits(settings: ServiceSettings) -> UtilisationLimits:
    """Raises InvalidSettingError for a value that is not a time or a percentage."""
    for name in _UTILISATION:
        value = getattr(settings, name)
        if not 0.0 <= value <= (100.0 if name == "idle_below_percent" else 1e6):
            raise InvalidSettingError(f"{name}: {value} is not in its range, from 0 on")
    return UtilisationLimits(
        idle_below=settings.idle_below_percent / 100.0,
        idle_warn_seconds=settings.idle_warn_minutes * MINUTE,
        idle_end_seconds=settings.idle_end_minutes * MINUTE,
        slow_by=settings.slow_worker_percent / 100.0,
        slow_seconds=settings.slow_worker_minutes * MINUTE,
    )


_UTILISATION = (
    *("idle_below_percent", "idle_warn_minutes", "idle_end_minutes"),
    *("slow_worker_percent", "slow_worker_minutes"),
)


def allow_many_files() -> None:
    """Raise the limit of open files, which is often 1,024 by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@dataclass(frozen=True, slots=True)
class _Tls:
    certificate: str
    key: str
    authority: str  # PEM that workers trust


def _tls(settings: ServiceSettings, directory: StateDir) -> _Tls | None:
    """The given certificate; else our own, unless only this machine can reach the service."""
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        missing = "tls_key" if settings.tls_certificate else "tls_certificate"
        raise InvalidSettingError(f"{missing}: missing; a certificate needs its key")
    if settings.tls_certificate:
        return _Tls(settings.tls_certificate, settings.tls_key, _checked(settings))
    if warning := insecurity(settings):
        log.warning(warning.removeprefix("warning: "))
    if warning or is_loopback(settings.host):
        return None
    pair = own_pair(directory.tls, names_of(settings.host, settings.advertise))
    return _Tls(str(pair.certificate), str(pair.key), pair.authority.read_text(encoding="ascii"))


def insecurity(settings: ServiceSettings) -> str:
    """A warning if other machines reach the service without TLS; else empty."""
    if settings.tls_certificate or not settings.insecure or is_loopback(settings.host):
        return ""
    return (
        f"warning: insecure: tokens and environments of jobs reach {settings.host} in clear text;"
        " leave out --insecure for TLS with a certificate of the service"
    )


def _checked(settings: ServiceSettings) -> str:
    """The text of the given certificate. Raises errors that name the files; uvicorn's do not."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = f"{settings.tls_certificate}, {settings.tls_key}"
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
        return Path(settings.tls_certificate).read_text(encoding="ascii")
    except (OSError, ValueError) as problem:  # ssl.SSLError is an OSError
        raise InvalidSettingError(f"tls_certificate: {pair}: {problem}") from problem


def _beat(server: Any, service: Service) -> None:  # noqa: ANN401
    """Make each tick of the server's loop, ten per second, a heartbeat."""
    tick = server.on_tick

    async def beat_and_tick(counter: int) -> bool:
        service.server_heartbeat.working()
        stop: bool = await tick(counter)
        return stop

    server.on_tick = beat_and_tick


def _close_on_signal(server: Any, service: Service) -> list[int]:  # noqa: ANN401
    """Set `closing` on a signal: long polls and event streams check it and end.

    Returns a list that gets the signals. uvicorn would raise them again at the end of `run`, so
    the service would end before it has stopped its parts.
    """
    signals: list[int] = []

    def close(number: int, frame: object) -> None:
        service.closing = True
        log.info("service stopping", signal=signal.Signals(number).name)
        server.force_exit = server.should_exit and number == signal.SIGINT
        server.should_exit = True
        signals[:] = [number]

    server.handle_exit = close
    return signals


def _listen_again(directory: StateDir, host: str, port: int) -> socket.socket:
    """Listen on a port. For port 0 first try the last one, which running workers know."""
    before = directory.address()
    last = before.url.rpartition(":")[2] if before is not None else ""
    listener = None
    if port == 0 and last.isdigit():
        with suppress(WorldError):
            listener = _listen(host, int(last))
    listener = listener or _listen(host, port)
    now = listener.getsockname()[1]
    if before is not None and str(now) != last:
        # workers that run already cannot report there: they are killed as silent
        log.warning("port changed", before=before.url, port=now)
    return listener


def _listen_unix(path: Path) -> socket.socket:
    """Listen on a Unix socket that every user of the machine may open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise WorldError(f"socket: {path}: {problem.strerror or problem}") from problem
    return listener


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InvalidSettingError(f"port: {port} is not in 0..65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except OSError as problem:
        raise InvalidSettingError(f"host: {host!r}: {problem.strerror or problem}") from problem
    # the protocol is explicit: asyncio sets TCP_NODELAY only on sockets with IPPROTO_TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # from now on clients wait instead of being refused
    except OSError as problem:
        listener.close()
        raise WorldError(
            f"{host}:{port}: {problem.strerror or problem}; choose another with"
            f" {'--host' if problem.errno == errno.EADDRNOTAVAIL else '--port'}"
        ) from problem
    return listener


def _url(listener: socket.socket, host: str, *, tls: bool) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "") else host
    if ":" in shown:
        shown = f"[{shown}]"
    return f"{'https' if tls else 'http'}://{shown}:{listener.getsockname()[1]}"


def _link(service: Service, url: str) -> str:
    admins = [user for user in service.accounts.all() if user.is_admin]
    return f"{url}/login?code={service.accounts.new_link(admins[0])}" if admins else url


def configure_logs(settings: ServiceSettings) -> None:
    """Set up logging of this process as the controller."""
    directory = StateDir.of(settings.state)
    logs.configure(settings.log_format, settings.log_level, directory.log)


def main() -> int:
    """Run `python -m ones.control.server`, as `ones up` does: settings come on standard input."""
    given = json.loads(sys.stdin.read())
    settings = Settings(service=ServiceSettings(**given["service"]), policy=given["policy"])

    configure_logs(settings.service)
    try:
        serve(settings, lambda ready: None)
    except OnesError as problem:
        log.error("service failed", error=str(problem))  # noqa: TRY400  # no traceback
        return problem.exit_code
    except Exception as problem:
        log.exception("service failed", error=described(problem))
        return BugError.exit_code
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
