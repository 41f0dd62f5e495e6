"""Converts rows of production traces to elastic jobs.

Such traces have arrival, duration and GPUs of a job, and perhaps how it ended; not what it trained.
A row becomes a job of the kind with the nearest length on one GPU (after a common factor, so that
the geometric means agree), with the amount of data that makes it last as long as recorded.
Arrivals keep their burstiness: for a given load, all gaps are multiplied by one factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from msgspec import structs

from ones.core.job import Job, JobId
from ones.errors import UserError
from ones.workload.generate import stop_rule
from ones.workload.kinds import Kind, paper_numbers
from ones.workload.trace import Trace, TraceJob, Training

#: limits of rows, as in the evaluation of Pollux
MIN_SECONDS = 60.0
MAX_GPU_SECONDS = 1000 * 3600.0
MAX_GPUS = 16
#: progress of a job that failed or was killed (assumed)
DEATH_AT = 0.5

#: training, GPUs, batch -> (seconds, epochs); provided by the simulator
Duration = Callable[[Training, int, int], tuple[float, int]]


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """One row of a production trace of any format."""

    name: str
    at: float
    seconds: float
    gpus: int
    owner: str = ""
    kind: str | None = None  # if the file has it
    died: bool = False
    killed: bool = False


def is_usable(row: ObservedJob) -> bool:
    return row.seconds >= MIN_SECONDS and row.seconds * row.gpus <= MAX_GPU_SECONDS


def window(rows: Sequence[ObservedJob], jobs: int | None, seed: int) -> list[ObservedJob]:
    """Consecutive rows, from a start that depends on the seed; all rows if `jobs` is None."""
    ordered = sorted(rows, key=lambda row: (row.at, row.name))
    if jobs is None or jobs >= len(ordered):
        return ordered
    starts = len(ordered) - jobs + 1
    first = (seed * 0x9E3779B1) % starts  # spread out, and 0 for seed 0
    return ordered[first : first + jobs]


def to_trace(name: str, rows: Iterable[ObservedJob], duration: Duration) -> Trace:
    rows = list(rows)
    if not rows:
        raise UserError(f"{name}: no row is left: all are shorter than {MIN_SECONDS:.0f} s"
                        f" or longer than {MAX_GPU_SECONDS / 3600:.0f} GPU-hours")  # fmt: skip
    begin = min(row.at for row in rows)
    factor = _factor(rows)
    jobs = [_job(row, row.at - begin, factor, duration) for row in rows]
    return Trace.of(name, jobs)


def stretched(trace: Trace, factor: float) -> Trace:
    """The trace with all times multiplied by a factor."""

    def moved(entry: TraceJob) -> TraceJob:
        at = round(entry.job.submitted_at * factor, 3)
        return replace(entry, job=structs.replace(entry.job, submitted_at=at))

    incidents = [replace(i, at=round(i.at * factor, 3)) for i in trace.incidents]
    return Trace.of(trace.name, map(moved, trace.jobs), incidents)


def _factor(rows: list[ObservedJob]) -> float:
    """The factor from the geometric mean of the rows to that of the paper's kinds."""
    kinds = [
        math.log(kind.one_gpu_seconds)
        for kind in paper_numbers().kinds.values()
        for _ in kind.sizes
    ]
    return math.exp(fmean(kinds) - fmean(math.log(row.seconds * row.gpus) for row in rows))


def _job(row: ObservedJob, at: float, factor: float, duration: Duration) -> TraceJob:
    kind = _kind(row, factor)
    middle = len(kind.sizes) // 2
    gpus = min(row.gpus, MAX_GPUS)
    base = int(kind.base_batch)
    sample = Training(
        kind=kind.name, dataset_size=kind.sizes[middle], classes=kind.classes[middle],
        base_batch=base,
    )  # fmt: skip
    wanted = row.seconds * row.gpus / gpus / (DEATH_AT if row.died else 1.0)
    seconds, epochs = duration(sample, gpus, base * gpus)
    times = wanted / seconds
    # more data of the same difficulty: the same number of longer epochs
    size = max(base, round(sample.dataset_size * times))
    training = replace(
        sample,
        dataset_size=size,
        length=math.sqrt(size / sample.dataset_size),
        dies_after=round(DEATH_AT * epochs, 3) if row.died else None,
        killed=row.killed,
    )
    return TraceJob(
        Job(
            id=JobId(row.name),
            submitted_at=round(at, 3),
            kind=kind.name,
            owner=row.owner,
            requested_gpus=gpus,
            requested_batch=base * gpus,
            stop=stop_rule(kind),
        ),
        training,
    )


def _kind(row: ObservedJob, factor: float) -> Kind:
    numbers = paper_numbers()
    if row.kind is not None:
        return numbers.kind(row.kind)
    seconds = row.seconds * row.gpus * factor
    return min(
        numbers.kinds.values(), key=lambda kind: abs(math.log(kind.one_gpu_seconds / seconds))
    )
