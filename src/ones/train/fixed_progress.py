"""`ones.progress`: the progress of a script that runs as a fixed-size job. Imports no torch.

The total is divided into twentieths, which are reported as epochs, as in `job.steps(total)`.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable

from ones.errors import UserError
from ones.train.controller_client import ControllerClient
from ones.train.progress import PARTS
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Epoch, Report, Steps
from ones.wire.work import Unit, Work

_INTERVAL = 0.5  # seconds between two reports within a part
_FLUSH_SECONDS = 2.0  # wait at the end of the script
#: set by torchrun, by mpirun, and by ONES for a process of each node
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "NODE_RANK")
_MOST = 2**53

_reporter: ProgressReporter | None = None
_is_decided = False  # whether this process reports


def progress(step: int, total: int, unit: str = "steps") -> None:
    """Tells the service how far a fixed-size job is: `step` of `total` steps are done.

    `unit`: what is counted instead of steps: "samples", "tokens" or "epochs".

    Call it after each step, on all ranks or on rank 0: only rank 0 reports. Without the service,
    and in an elastic job, which reports by itself, it has no effect.
    """
    global _reporter, _is_decided  # noqa: PLW0603
    if not (1 <= total <= _MOST and 0 <= step <= _MOST):
        raise UserError(
            f"ones.progress({step}, {total}): step must be at least 0, total at least 1"
        )
    if unit not in tuple(Unit):
        raise UserError(f"ones.progress: unit {unit!r} is not one of {', '.join(Unit)}")
    if not _is_decided:
        _is_decided = True
        _reporter = _connect()
    if _reporter is not None:
        _reporter.done(min(int(step), int(total)), int(total), Unit(unit))


def _connect() -> ProgressReporter | None:
    environment = WorkerEnvironment.of_progress(os.environ)
    if environment is None or not _is_first_rank():
        return None

    def stop() -> None:
        client.stop()

    # a launcher within the job may start the script again: its numbers follow the earlier ones
    client = ControllerClient(
        environment,
        on_order=lambda order: None,
        on_fenced=stop,
        on_store=lambda address: None,
        first_number=int(time.time() * 1000),
    )
    client.start(orders=False)
    atexit.register(client.close, _FLUSH_SECONDS)
    return ProgressReporter(client.report)


def _is_first_rank() -> bool:
    for name in _RANKS:
        if name in os.environ:
            return os.environ[name] == "0"
    distributed = sys.modules.get("torch.distributed")  # of a script that starts its own processes
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return True


class ProgressReporter:
    """Converts steps to the reports of an elastic job."""

    def __init__(
        self, report: Callable[[Report], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report, self._clock = report, clock
        self._step = -1  # of the last call
        self._part = 0  # complete parts
        self._began = (0, 0.0)  # step and time from which the current part is measured
        self._reported_at = 0.0
        self._work: Work | None = None

    def done(self, step: int, total: int, unit: Unit = Unit.STEPS) -> None:
        now, parts = self._clock(), min(PARTS, total)
        self._work = Work(unit, step, total)
        if step < self._step or self._step < 0:  # the first call, or the script went back
            begun = max(0, step - 1)
            self._part, self._began = begun * parts // total, (step, now)
            self._report_steps(begun, total, parts, now)
        self._step = step
        part = step * parts // total
        if part > self._part:
            self._part = part
            self._report_part(step, parts, now)
        elif now - self._reported_at >= _INTERVAL:
            self._report_steps(step, total, parts, now)

    def _report_steps(self, step: int, total: int, parts: int, now: float) -> None:
        part, self._reported_at = self._part, now
        steps = max(0, step - -(-part * total // parts))
        self._report(
            Steps(epoch=part + 1, steps=steps, samples=0, planned_epochs=parts, work=self._work)
        )

    def _report_part(self, step: int, parts: int, now: float) -> None:
        since, began = self._began
        self._began, self._reported_at = (step, now), now
        steps = step - since
        seconds = min(max((now - began) / steps, 1e-9), 1e6) if steps else None
        self._report(
            Epoch(
                epoch=self._part,
                steps=steps,
                samples=0,
                step_seconds=seconds,
                planned_epochs=parts,
                work=self._work,
            )
        )
