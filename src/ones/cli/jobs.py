"""`ones ps`, `show`, `why`, `cancel`: list, inspect and end jobs."""

from __future__ import annotations

import hashlib
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ones.cli.audit import moment_of
from ones.cli.change import by_state, for_each
from ones.cli.client import Client, connect, of_job
from ones.cli.joblist import job_table, progress, reason, utilisation, with_arrays
from ones.cli.options import Json, StateDirectory, check_counts
from ones.cli.output import out, print_json, print_table, say
from ones.cli.terminal import tell
from ones.cli.words import duration, eta, moment, not_used, short
from ones.errors import UnknownNameError, UserError

JOB = typer.Argument(help="Job id.")
MOST_JOBS = 10_000  # in one response
MOST_ROWS = 1000  # unless --limit says another number
WATCH_SECONDS = 2.0
STATES = (
    *("waiting", "held", "blocked", "starting", "running", "changing", "stopping"),
    *("converged", "finished", "failed", "cancelled", "refused"),
)


def ps(
    all: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Jobs of this user.")] = None,
    states: Annotated[
        str | None,
        typer.Option("--state", "-s", metavar="STATES", help="Jobs in these states, as a,b."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Jobs with this tag.")] = None,
    name: Annotated[str | None, typer.Option(help="Jobs of this name; * and ? match.")] = None,
    array: Annotated[
        str | None, typer.Option(help="Tasks of this array, each in a row of its own.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Also jobs that ended since: 2h, 7d, or 2026-01-31."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            help="Only this number of newest rows; an array is one (with --json: of newest jobs).",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Print anew every 2 s until Ctrl-C.")
    ] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """List jobs: state, GPUs, batch, progress, and why they wait.

    Example: ones ps --user ann --state running,waiting
    """
    check_counts(limit=limit)
    if watch and json:
        raise UserError("--json: not together with --watch")
    client = connect(state)
    query = {
        "all": "true" if all else None, "owner": user, "state": _states(states), "tag": tag,
        "name": name, "array": array, "limit": limit,
        "since": None if since is None else moment_of(since, time.time()),
    }  # fmt: skip
    if json:
        print_json(client.get("/api/jobs", **query))
        return
    with suppress(KeyboardInterrupt) if watch else nullcontext():
        while True:
            if watch and sys.stdout.isatty():
                out().clear()
            _print_jobs(client, query)
            if not watch:
                return
            time.sleep(WATCH_SECONDS)


def _states(text: str | None) -> list[str] | None:
    """The states of a list such as `running,waiting`."""
    if text is None:
        return None
    found = [part.strip().lower() for part in text.split(",")]
    for state in found:
        if state not in STATES:
            raise UnknownNameError("state", state, STATES)
    return found


def _print_jobs(client: Client, query: dict[str, Any]) -> None:
    # the tasks of an array are one row: the number of rows is known after they are folded
    jobs = client.get("/api/jobs", **{**query, "limit": MOST_JOBS})
    cluster = client.get("/api/cluster")
    for warning in cluster.get("warnings", ()):
        say(f"warning: {warning}")
    if not jobs:
        filters = any(value for name, value in query.items() if name not in ("all", "limit"))
        rest = (
            ""
            if query["all"] or query["since"] is not None
            else "; those that have ended: ones ps --all"
        )
        more = "" if filters else "; queue one: ones submit -- python train.py"
        say(f"no jobs{' match' if filters else ''}{rest}{more}")
        return
    missing = not_used(cluster)
    if missing:
        say(missing)
    if query["array"] is None:
        jobs = with_arrays(jobs)
    jobs = jobs[: query["limit"] or MOST_ROWS]
    if sys.stdout.isatty():
        console = out()
        same_owner = len({job["owner"] for job in jobs}) == 1
        without = ("owner",) if same_owner else ()
        console.print(job_table(reversed(jobs), console.width, now=time.time(), without=without))
        return
    rows = [
        (
            job["id"],
            job["owner"],
            job["state"] + ("" if job["elastic"] else " (fixed)"),
            job["gpus"] or None,
            utilisation(job) or None,
            job["batch"],
            progress(job) or None,
            job["loss"],
            job["accuracy"],
            duration(job["queue_seconds"] + job["run_seconds"]),
            eta(job),
            short(reason(job)),
        )
        for job in reversed(jobs)
    ]
    columns = [
        "job",
        "owner",
        "state",
        "GPUs",
        "util",
        "batch",
        "progress",
        "loss",
        "accuracy",
        "age",
    ]
    print_table(None, [*columns, "done in (90 %)", "why"], rows)


def show(
    job: Annotated[str, JOB],
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show all details of a job.

    Example: ones show digits-1
    """
    client = connect(state)
    found = client.get(of_job(job))
    launches = client.get(of_job(job, "launches"))
    used = client.get(of_job(job, "utilisation"))["workers"]
    if json:
        print_json({**found, "launches": launches, "utilisation_of_workers": used})
        return
    hidden = {"env", "files", "workers", "command", "tags", "eta_low", "eta_high", "eta"}
    hidden |= {"git", "snapshot", "root", "work"}
    hidden |= {"utilisation", "memory_mb", "power_watts", "idle_gpus", "slow_gpus"}
    rows: list[tuple[str, object]] = [("command", " ".join(found["command"]))]
    rows.append(("code", _code(found)))
    rows += [
        (name.replace("_", " "), _shown(name, value))
        for name, value in found.items()
        if name not in hidden and value not in (None, "", [])
    ]
    rows.append(("progress", progress(found)))
    rows.append(("done in (90 %)", eta(found)))
    workers = ", ".join(f"{w['gpu']} (batch {w['batch']})" for w in found["workers"])
    rows.append(("workers", workers or "none"))
    if found["tags"]:
        rows.append(("tags", ", ".join(found["tags"])))
    print_table(None, [job, ""], rows)
    if used:
        columns = ["GPU", "util", "memory (MB)", "power (W)", "CPUs", "own step (ms)", "idle for"]
        print_table(None, columns, [_use_of(worker) for worker in used])
    for launch in launches:
        where = ", ".join(launch["slots"])
        tell(f"process {launch['id']} on {where}: {launch['ended'] or 'alive'}")
    if found["state"] == "failed":
        say(f"what it printed: ones logs {job}")
    for path in _changed(found["files"]) if not found["snapshot"] else ():
        say(f"{path} was changed since the job was submitted")


def _code(found: dict[str, Any]) -> str:
    """Which files the job runs."""
    commit = f", commit {found['git']}" if found["git"] else ""
    if found["snapshot"]:
        return f"snapshot {found['snapshot'][:12]} of {found['root']}{commit}"
    return f"files in {found['cwd']} as they are when it starts{commit}"


def _use_of(worker: dict[str, Any]) -> tuple[object, ...]:
    step, idle = worker["step_seconds"], worker["idle_seconds"]
    slow = f" ({worker['slowdown']:.1f} times)" if (worker["slowdown"] or 0.0) > 1.1 else ""
    return (
        worker["gpu"],
        utilisation(worker) or None,
        _rounded(worker["memory_mb"], ".0f"),
        _rounded(worker["power_watts"], ".0f"),
        _rounded(worker["cpus"], ".1f"),
        None if step is None else f"{1000 * step:.1f}{slow}",
        None if idle is None else duration(idle),
    )


def _rounded(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def why(
    job: Annotated[str, JOB],
    all: Annotated[bool, typer.Option("--all", "-a", help="Also every epoch and worker.")] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Show the history of a job: each change with its reason, and why it waits now.

    Example: ones why digits-1
    """
    from ones.control.readmodels.entry_texts import MINOR

    client = connect(state)
    lines = client.get(of_job(job, "story"))
    if json:
        print_json(lines)
        return
    for line in lines:
        if all or line["kind"] not in MINOR:
            tell(f"{moment(line['at'])}  {line['text']}")
    card = client.get(of_job(job))
    if card["ended_at"] is None:
        tell(f"{moment(time.time())}  now: {_now(card)}")


def _now(card: dict[str, Any]) -> str:
    """The present state of a job. Why it has its GPUs is the last line of its history."""
    if not card["gpus"]:
        return str(card["note"] or card["state"])
    gpus = "1 GPU" if card["gpus"] == 1 else f"{card['gpus']} GPUs"
    busy = f" ({utilisation(card)} busy)" if utilisation(card) else ""
    left, done = eta(card), progress(card)
    counts_epochs = (card["work"] or {"unit": "epochs"})["unit"] == "epochs"
    what = f", {done} done" if done and not counts_epochs else ""
    idle, slow = (", ".join(card.get(name) or ()) for name in ("idle_gpus", "slow_gpus"))
    return (
        f"{card['state']}, {gpus}{busy}{what}"
        + (f", done in {left}" if left else "")
        + (f"; idle: {idle}" if idle else "")
        + (f"; slower than the others: {slow}" if slow else "")
    )


def cancel(
    jobs: Annotated[list[str] | None, typer.Argument(help="Job ids.", metavar="JOB...")] = None,
    all: Annotated[bool, typer.Option("--all", "-a", help="All jobs that you may cancel.")] = False,
    user: Annotated[str | None, typer.Option("--user", "-u", help="All jobs of this user.")] = None,
    tag: Annotated[str | None, typer.Option(help="All jobs with this tag.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="All jobs of this name; * and ? match.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """End jobs: those that are named, or all that match every given option.

    Example: ones cancel digits-1
    """
    many = all or user is not None or tag is not None or name is not None
    if many == bool(jobs):
        raise UserError("give either job ids, or --all, --user, --tag or --name")
    client = connect(state)
    chosen = jobs or _matching(client, user=user, tag=tag, name=name)
    if many and not chosen:
        say("no job matches")
    elif many and not yes and not _confirmed(chosen):
        raise UserError("nothing was cancelled")
    for_each(client, chosen, lambda job: client.post(of_job(job, "cancel")), by_state, json=json)


def _matching(client: Client, **filters: str | None) -> list[str]:
    found = client.get("/api/jobs", limit=MOST_JOBS, owner=filters.pop("user"), **filters)
    return [job["id"] for job in reversed(found)]


def _confirmed(jobs: list[str]) -> bool:
    """Whether the user wants to end these jobs. A script must say so by an option."""
    if not _on_terminal():
        raise UserError(f"this ends {len(jobs)} jobs; add --yes to do so without a terminal")
    named = ", ".join(jobs[:10]) + (f" and {len(jobs) - 10} more" if len(jobs) > 10 else "")
    return typer.confirm(f"End {named}?", err=True)


def _on_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _shown(name: str, value: object) -> object:
    if (name.endswith("_at") or name == "deadline") and isinstance(value, float):
        return moment(value)
    if name.endswith("_seconds") and isinstance(value, float) and value >= 60:
        return duration(value)
    return value


def _changed(files: dict[str, str]) -> list[str]:
    changed = []
    for path, digest in files.items():
        try:
            now = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            now = ""
        if now != digest:
            changed.append(path)
    return changed
