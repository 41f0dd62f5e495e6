"""`ones run`: one elastic job, without the service."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ones.cli.output import say
from ones.cli.scripts import look_at
from ones.errors import UserError, WorldError
from ones.extras import require

if TYPE_CHECKING:
    from ones.launchers import Launcher

CPU_SLOTS = 4


def run(
    command: Annotated[list[str], typer.Argument(help="After --: python train.py ...")],
    slots: Annotated[
        int | None,
        typer.Option(help="Workers that fit this machine, on CPUs (default: 4).", min=1),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="Train on as many free GPUs instead of CPUs.", min=1)
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="STEP:WORKERS[xBATCH],... as 0:1,50:2,120:4x512.")
    ] = "0:1",
    exact: Annotated[
        bool, typer.Option(help="Wait at each step of the schedule until its workers are there.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where logs and checkpoints are kept.")
    ] = None,
) -> None:
    """Run one training script by a schedule: workers and batch change between two steps."""
    from ones.lab.elastic_run import ElasticRun, check_outcome
    from ones.lab.scripted_policy import parse_schedule

    if slots is not None and gpus is not None:
        raise UserError("--slots (CPUs) and --gpus exclude each other: give one of them")
    count = gpus or slots or CPU_SLOTS
    phases = parse_schedule(schedule, count)
    look_at(command, Path.cwd(), dict(os.environ))  # raises if the command cannot run
    with without_engine_warnings(), tempfile.TemporaryDirectory(prefix="ones-run-") as temporary:
        place = directory or Path(temporary)
        job = ElasticRun(
            command,
            phases,
            slots=count,
            directory=place,
            launcher=None if gpus is None else _gpu_launcher(gpus, place),
            exact=exact,
            on_event=say,
        )
        with _ended_by_sigterm(job.interrupt) as is_terminated:
            outcome = job.run()
        if is_terminated():
            raise SystemExit(128 + signal.SIGTERM)
    check_outcome(outcome)


def _gpu_launcher(count: int, directory: Path) -> Launcher:
    """Raises WorldError if fewer GPUs are free. With gloo, workers may share a GPU."""
    from ones.launchers.devices import free_gpu_slots
    from ones.launchers.local import NODE, LocalLauncher

    require("ones run --gpus", "pynvml")
    may_share = os.environ.get("ONES_BACKEND") == "gloo"
    try:
        slots = free_gpu_slots(NODE, count, may_share=may_share)
    except WorldError as problem:
        raise WorldError(f"--gpus {count}: {problem} (on CPUs: --slots {count})") from None
    return LocalLauncher(directory / "launcher", slots)


@contextmanager
def _ended_by_sigterm(interrupt: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Ends the run's workers at SIGTERM: else they would train on by themselves.

    The signal may arrive at any point of the run, also while its workers are ended: so the run is
    asked to end, and no exception is raised. In a thread: the signal may interrupt a lock's owner.
    """
    received = threading.Event()

    def end(*_: object) -> None:
        received.set()
        threading.Thread(target=interrupt, daemon=True).start()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield received.is_set
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def without_engine_warnings() -> Iterator[None]:
    """Silence the log of the engine: lost workers are printed as events of the run."""
    log = logging.getLogger("ones.control")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
