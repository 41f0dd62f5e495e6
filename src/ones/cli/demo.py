"""`ones demo`: real or simulated jobs under the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ones.cli.options import Json
from ones.cli.output import (
    err,
    print_json,
    print_results,
    print_table,
    progress_of_jobs,
    say,
)
from ones.cli.words import duration
from ones.errors import InvalidSettingError

if TYPE_CHECKING:
    from ones.apps.demo import DemoResult
    from ones.apps.service_snapshot import ServiceSnapshot


def demo(
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the service's state and the run log in this directory."
        ),
    ] = None,
    simulated: Annotated[
        bool,
        typer.Option("--simulated", help="Instead: 50 simulated jobs on 64 GPUs, and a picture."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="With --simulated: directory for logs and picture.  [default: out/demo]"),
    ] = None,
    json: Json = False,
) -> None:
    """Train six real jobs on 4 CPU slots of this machine under the scheduler, and watch.

    The jobs arrive over a minute, and grow and shrink while they train. At the end: the time of
    each job, and a comparison with first come, first served. The demo has its own state directory
    and port, and removes all its files unless --keep is given.
    """
    if simulated:
        if keep is not None:
            raise InvalidSettingError("--keep: not together with --simulated; use --out")
        _simulated(out or Path("out/demo"), json=json)
        return
    if out is not None:
        raise InvalidSettingError("--out: only together with --simulated; use --keep")
    from ones.apps.demo import demo as run_demo
    from ones.cli.client import Client

    with _display() as show:
        result = run_demo(Client, show, keep=keep)
    if json:
        print_json({**asdict(result), "kept": str(result.kept) if result.kept else None})
    else:
        _print(result)


@contextmanager
def _display() -> Iterator[Callable[[ServiceSnapshot, float, str], None]]:
    """Draws the service repeatedly, or prints lines if the console cannot be redrawn."""
    from rich.live import Live

    from ones.cli.screen import Lines, is_live, picture

    console = err()
    first = "the first start compiles the search, which takes some seconds more"
    console.print(f"starting the service ({first}) ...", highlight=False)
    printed = False

    def print_link(link: str) -> None:
        nonlocal printed
        if not printed:
            printed = True
            console.print("web page (the link works once):", highlight=False)
            console.print(link, soft_wrap=True, highlight=False)

    if not is_live(console):
        lines = Lines(console)

        def print_lines(snapshot: ServiceSnapshot, seconds: float, link: str) -> None:
            print_link(link)
            lines(snapshot, seconds)

        yield print_lines
        return
    console.soft_wrap = False
    with Live(console=console, auto_refresh=False) as live:

        def draw(snapshot: ServiceSnapshot, seconds: float, link: str) -> None:
            print_link(link)
            title = f"six jobs on 4 CPU slots, policy {snapshot.cluster['policy']}"
            title = f"{title}, {duration(seconds)}"
            live.update(picture(snapshot, title, console.width), refresh=True)

        yield draw


def _print(result: DemoResult) -> None:
    rows = [
        (
            job["id"],
            job["state"],
            job["ended_at"] - job["submitted_at"],
            job["queue_seconds"],
            job["gpu_seconds"] / job["run_seconds"] if job["run_seconds"] else None,
            job["epochs"],
            job["accuracy"],
            job["rescales"],
            1000 * job["pause_seconds"] / job["rescales"] if job["rescales"] else None,
        )
        for job in result.jobs
    ]
    columns = ["job", "ended", "completion s", "waited s", "GPUs (mean)", "epochs", "accuracy"]
    print_table("What happened", [*columns, "rescales", "pause ms (mean)"], rows)
    if result.simulated:
        _print_comparison(result)
    if result.kept is not None:
        say(f"kept in {result.kept}; open it with: ones up --dir {result.kept}")


def _print_comparison(result: DemoResult) -> None:
    live = result.live
    names = {"live": live, **{f"{p}, simulated": row for p, row in result.simulated.items()}}
    wanted = {
        "mean_jct": "mean completion s",
        "mean_queue": "mean queueing s",
        "makespan": "last job done after s",
        "rescales": "rescales",
    }
    rows: list[list[object]] = [
        [label, *(_value(row[key]) for row in names.values())] for key, label in wanted.items()
    ]
    title = "The same jobs again, simulated from their measured step times, starts and pauses"
    print_table(title, ["", *(n.replace("live", f"{live['policy']}, live") for n in names)], rows)
    simulated, rival = (result.simulated[p]["mean_jct"] for p in result.simulated)
    measured = live["mean_jct"]
    print(
        f"In the simulator the mean completion time is {simulated:.0f} s with {live['policy']} and"
        f" {rival:.0f} s with first come, first served. The simulator is"
        f" {abs(100 * (simulated / measured - 1)):.0f} %"
        f" {'above' if simulated > measured else 'below'} the {measured:.0f} s of the live run."
    )


def _value(value: Any) -> object:  # noqa: ANN401
    return round(value, 1) if isinstance(value, float) else value


def _simulated(directory: Path, *, json: bool) -> None:
    from ones.apps.simulated_demo import GPUS, JOBS, simulated_demo

    rows, picture = simulated_demo(directory, progress_of_jobs)
    if json:
        print_json({"rows": rows, "picture": None if picture is None else str(picture)})
    else:
        print_results(f"{JOBS} jobs of the paper's workload on {GPUS} GPUs, simulated", rows)
    if picture is None:
        say("no picture: matplotlib is not installed (pip install 'ones[report]')")
    else:
        say(f"picture of GPUs, jobs and batches over time: {picture}")
