"""Paced jobs: as submissions to the service, and as a trace for the simulator. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ones.core.job import Job, JobId
from ones.core.schedule import Allocation
from ones.workload import Trace, TraceJob, Training

SCRIPT = "ones.train.bench.paced_job"
URGENT = 3  # priority


def loss_in(epoch: int) -> float:
    """Loss of an epoch, counted from 0."""
    return float(0.1 + 2.0 * 0.8**epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedKind:
    """A step takes `fixed + per_sample * samples` for each micro-batch of a worker."""

    name: str
    samples: int
    batch: int  # the script's own
    max_local_batch: int
    fixed: float  # seconds
    per_sample: float

    def compute_seconds(self, allocation: Allocation) -> float:
        """Seconds of one step: the micro-batches of the slowest worker, one after another."""
        return max(
            w.micro_steps * self.fixed + w.batch * self.per_sample for w in allocation.workers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedJob:
    at: float
    kind: PacedKind
    epochs: int
    gpus: int = 1  # requested, for policies that need a request
    urgent: bool = False  # needs all requested GPUs, and has a higher priority


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills the last worker of the job as soon as it has two, from this time on."""

    at: float
    job: str


@dataclass(frozen=True, slots=True)
class PacedTrace:
    name: str
    slots: int  # of the machine that runs it
    jobs: tuple[PacedJob, ...]
    kills: tuple[Kill, ...] = ()

    def named(self) -> list[tuple[str, PacedJob]]:
        """
        >>> [name for name, _ in calibration_trace().named()][:2]
        ['p00', 'p01']
        """
        return [(f"p{number:02d}", job) for number, job in enumerate(self.jobs)]

    def simulated(self) -> Trace:
        return Trace.of(self.name, [_trace_job(name, job) for name, job in self.named()])


def _trace_job(name: str, job: PacedJob) -> TraceJob:
    kind = job.kind
    submitted = Job(
        id=JobId(name),
        submitted_at=job.at,
        kind=kind.name,
        requested_gpus=job.gpus,
        requested_batch=kind.batch * job.gpus,
        epochs=job.epochs,
        **_urgency(job),
    )
    return TraceJob(
        submitted, Training(kind=kind.name, dataset_size=kind.samples, base_batch=kind.batch)
    )


def _urgency(job: PacedJob) -> dict[str, Any]:
    return {"priority": URGENT, "min_gpus": job.gpus} if job.urgent else {}


def submission(name: str, job: PacedJob, env: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """Body of the POST request that submits the job."""
    kind = job.kind
    options = {
        "samples": kind.samples, "batch": kind.batch, "max-local-batch": kind.max_local_batch,
        "epochs": job.epochs, "fixed": kind.fixed, "per-sample": kind.per_sample,
        "losses": ",".join(str(loss_in(epoch)) for epoch in range(job.epochs)),
    }  # fmt: skip
    command = [sys.executable, "-m", SCRIPT]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    return {
        "command": command, "cwd": cwd, "env": dict(env), "name": name, "kind": kind.name,
        "requested_gpus": job.gpus, "batch": kind.batch * job.gpus, "epochs": job.epochs,
        "elastic": True, "retries": 2, **_urgency(job),
    }  # fmt: skip


#: a vision model, a language model with slow steps, and a small one: on one slot an epoch takes
#: 9.6, 11.5 and 6.4 s
VISION = PacedKind(
    name="vision", samples=960, batch=16, max_local_batch=32, fixed=0.032, per_sample=0.008
)
LANGUAGE = PacedKind(
    name="language", samples=480, batch=8, max_local_batch=16, fixed=0.048, per_sample=0.018
)
SMALL = PacedKind(
    name="small", samples=640, batch=16, max_local_batch=32, fixed=0.08, per_sample=0.005
)
#: for tests
TINY = PacedKind(
    name="tiny", samples=160, batch=8, max_local_batch=16, fixed=0.02, per_sample=0.004
)
KINDS = {kind.name: kind for kind in (VISION, LANGUAGE, SMALL, TINY)}


def _jobs(
    rows: Sequence[tuple[float, PacedKind, int, int]], *, urgent: Sequence[int] = ()
) -> tuple[PacedJob, ...]:
    return tuple(
        PacedJob(at=at, kind=kind, epochs=n, gpus=gpus, urgent=number in urgent)
        for number, (at, kind, n, gpus) in enumerate(rows)
    )


def mixed_trace() -> PacedTrace:
    """Fourteen jobs for eight slots; in the middle three urgent jobs preempt others."""
    return PacedTrace(
        "mixed",
        8,
        _jobs(
            [
                (0, VISION, 20, 4), (4, LANGUAGE, 10, 2), (9, VISION, 12, 4), (14, SMALL, 6, 2),
                (20, SMALL, 2, 1), (26, LANGUAGE, 2, 6), (32, VISION, 6, 2), (38, SMALL, 3, 2),
                (44, LANGUAGE, 8, 4), (50, SMALL, 2, 6), (56, VISION, 3, 2), (62, SMALL, 8, 4),
                (68, LANGUAGE, 2, 6), (74, SMALL, 2, 1),
            ],
            urgent=(5, 9, 12),
        ),
        kills=(Kill(18.0, "p00"),),
    )  # fmt: skip


def bursts_trace() -> PacedTrace:
    """Three bursts of five short jobs for four slots; each burst ends before the next one."""
    burst = [(SMALL, 2, 1), (VISION, 1, 2), (SMALL, 3, 2), (LANGUAGE, 1, 1), (VISION, 2, 4)]
    return PacedTrace(
        "bursts",
        4,
        _jobs(
            [
                (at + 0.5 * number, kind, epochs, gpus)
                for at in (0, 35, 70)
                for number, (kind, epochs, gpus) in enumerate(burst)
            ]
        ),
    )


def long_trace() -> PacedTrace:
    """A job of four minutes on one slot and twelve short jobs, for four slots."""
    return PacedTrace(
        "long",
        4,
        _jobs(
            [
                (0, VISION, 24, 4), (6, SMALL, 2, 1), (12, LANGUAGE, 1, 2), (18, VISION, 1, 1),
                (24, SMALL, 3, 2), (30, SMALL, 1, 1), (36, LANGUAGE, 1, 1), (42, VISION, 2, 2),
                (48, SMALL, 2, 4), (54, LANGUAGE, 1, 2), (60, SMALL, 1, 1), (66, VISION, 1, 2),
                (72, SMALL, 2, 1),
            ]
        ),
    )  # fmt: skip


def calibration_trace(slots: int = 8) -> PacedTrace:
    """Other jobs at other times, with every kind of change."""
    return PacedTrace(
        "calibration",
        slots,
        _jobs(
            [
                (0, SMALL, 3, 2), (6, VISION, 3, 4), (14, LANGUAGE, 2, 1), (22, SMALL, 2, 2),
                (30, VISION, 2, 1), (36, LANGUAGE, 1, 2),
            ]
        ),
        kills=(Kill(10.0, "p01"),),
    )  # fmt: skip


def quick_trace() -> PacedTrace:
    """A short trace for tests: runs every stage, measures little."""
    return PacedTrace("quick", 3, _jobs([(0, TINY, 8, 2), (2, TINY, 5, 2), (4, TINY, 3, 1)]))


#: the measured traces, by name; the first is the default
TRACES: Mapping[str, Callable[[], PacedTrace]] = {
    "mixed": mixed_trace,
    "bursts": bursts_trace,
    "long": long_trace,
}
