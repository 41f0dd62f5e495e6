"""The curves of a job against its progress, so that several jobs fit on one chart."""

from __future__ import annotations

from typing import Literal

from ones.control.readmodels.history import CURVES, CurveReader, entries_of, thinned
from ones.control.store import Store
from ones.core import events as ev
from ones.core.plan import Plan, Start
from ones.runlog import Entry

#: the horizontal axis: finished epochs, samples, or seconds since the first start
Axis = Literal["epochs", "samples", "time"]

#: maximum number of newest entries that are read of a job
MOST_ENTRIES = 20_000


class _Progress:
    """Position of a job on the horizontal axis, from its entries in order."""

    def __init__(self, job: str, axis: Axis) -> None:
        self._job, self._axis = job, axis
        self._done = 0.0  # finished epochs, or samples of them
        self._started: float | None = None

    def after(self, entry: Entry) -> float:
        match entry:
            case ev.EpochFinished():
                self._done += entry.samples if self._axis == "samples" else 1
            case ev.TrainingRestarted():
                self._done = 0.0
            case Plan() if self._started is None and self._starts(entry):
                self._started = entry.at
        if self._axis != "time":
            return self._done
        return 0.0 if self._started is None else entry.at - self._started

    def _starts(self, plan: Plan) -> bool:
        return any(isinstance(a, Start) and a.job == self._job for a in plan.actions)


def progress_curves(
    store: Store, job: str, axis: Axis, most: int
) -> dict[str, list[tuple[float, float]]]:
    """Points of each curve, at most about `most`: (position on the axis, value).

    Against epochs or samples, a change within an epoch is drawn at the epoch's begin, and only the
    points since the last start from the beginning are there.
    """
    progress, reader = _Progress(job, axis), CurveReader(job)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CURVES}
    for _, entry in entries_of(store, job, limit=MOST_ENTRIES):
        at = progress.after(entry)
        if isinstance(entry, ev.TrainingRestarted) and axis != "time":
            # GPUs and batch stay as they are
            found = {name: [(0.0, points[-1][1])] if points and name in ("gpus", "batch") else []
                     for name, points in found.items()}  # fmt: skip
        for name, value in reader.points(entry):
            found[name].append((at, value))
    return {name: thinned(points, most) for name, points in found.items()}
