"""Variations of a trace that make it harder: wrong labels, jobs that end early, rigid jobs.

Each takes a share of the jobs, drawn by the seed alone: the jobs of a smaller share are among those
of a larger one, and arrivals stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from msgspec import structs

from ones.errors import InvalidSettingError, UnknownNameError
from ones.workload.kinds import paper_numbers
from ones.workload.trace import RecordedTraining, Trace, TraceJob, Training

#: random numbers by use
_LABEL, _END, _RIGID = 1, 2, 3
#: a job that ends early does so within this part of its epochs
EARLIEST_END, LATEST_END = 0.1, 0.9

#: epochs that a job needs at a batch; provided by the simulator
EpochsNeeded = Callable[[Training | RecordedTraining, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShares:
    """Shares of the jobs, 0 to 1; all 0: the trace as it is."""

    mislabelled: float = 0.0  # with the label of another kind
    killed: float = 0.0  # killed or failed midway, half of them each
    rigid: float = 0.0  # not elastic: the requested GPUs and batch until the end

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if not 0 <= share <= 1:
                raise InvalidSettingError(f"{field.name}: {share} is not in 0..1")

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def varied(trace: Trace, shares: JobShares, seed: int, epochs_needed: EpochsNeeded) -> Trace:
    """The trace with these shares of its jobs changed."""
    if not shares:
        return trace
    labels = sorted({entry.job.kind for entry in trace.jobs})
    jobs = list(trace.jobs)
    changes: list[tuple[int, float, Callable[[TraceJob, float], TraceJob]]] = [
        (_LABEL, shares.mislabelled, lambda entry, draw: _mislabelled(entry, draw, labels)),
        (_END, shares.killed, lambda entry, draw: _killed(entry, draw, epochs_needed)),
        (_RIGID, shares.rigid, lambda entry, draw: _rigid(entry)),
    ]
    for use, share, change in changes:
        draws = np.random.default_rng([seed, 0xFA1, use]).random((len(jobs), 2)).tolist()
        jobs = [
            change(entry, how) if which < share else entry
            for entry, (which, how) in zip(jobs, draws, strict=True)
        ]
    return replace(Trace.of(trace.name, jobs, trace.incidents), incident_lines=trace.incident_lines)


def without_kind(trace: Trace, kind: str) -> Trace:
    """The trace without the jobs of one kind."""
    jobs = [entry for entry in trace.jobs if entry.job.kind != kind]
    known = {entry.job.kind for entry in trace.jobs} | set(paper_numbers().kinds)
    if kind not in known:
        raise UnknownNameError("kind", kind, known)
    if not jobs:
        raise InvalidSettingError(f"{trace.name}: no job is left without {kind}")
    return Trace.of(trace.name, jobs, trace.incidents)


def _mislabelled(entry: TraceJob, draw: float, labels: Sequence[str]) -> TraceJob:
    others = [kind for kind in labels if kind != entry.job.kind]
    if not others:
        return entry
    label = others[int(draw * len(others))]
    return replace(entry, job=structs.replace(entry.job, kind=label))


def _killed(entry: TraceJob, draw: float, epochs_needed: EpochsNeeded) -> TraceJob:
    """The user kills it in the first half of the draws, else it fails."""
    training = entry.training
    if isinstance(training, RecordedTraining) or training.dies_after is not None:
        return entry
    killed, part = draw < 0.5, 2 * draw % 1
    share = EARLIEST_END + (LATEST_END - EARLIEST_END) * part
    epochs = round(share * epochs_needed(training, training.base_batch), 3)
    return replace(entry, training=replace(training, dies_after=epochs, killed=killed))


def _rigid(entry: TraceJob) -> TraceJob:
    """The script's own batch is the requested one, because no policy can change it later."""
    job, training = entry.job, entry.training
    gpus = job.requested_gpus
    batch = min(job.requested_batch or training.base_batch, training.dataset_size)
    fixed = structs.replace(job, elastic=False, min_gpus=gpus, max_gpus=gpus)
    return replace(entry, job=fixed, training=replace(training, base_batch=batch))
