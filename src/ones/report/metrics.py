"""The metrics of a run, from its final state: one definition for all commands and figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from math import fsum

from ones.core.job import EndReason
from ones.core.record import Outcome
from ones.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Times in seconds, over completed jobs; None where no job has completed."""

    mean_jct: float | None  # job completion time: submission to end
    median_jct: float | None
    p95_jct: float | None
    p99_jct: float | None
    mean_exec: float | None  # holding at least one GPU
    mean_queue: float | None  # the rest: mean_exec + mean_queue = mean_jct
    makespan: float | None  # from the first submission to the last completion
    utilization: float  # share of all GPU time with a worker
    gpu_hours: float  # held by all jobs, ended or not
    rescales: int  # this and preemptions: over all jobs, unfinished ones included
    preemptions: int
    rescale_rate: float | None  # rescales per hour of running
    finished: int  # completed jobs
    failed: int
    cancelled: int
    refused: int  # not admitted by the policy
    unfinished: int


def metrics_of(state: State) -> Metrics:
    """The metrics up to the state's last event. GPU time is counted from time 0."""
    state.book()
    ended, living = state.ended.values(), state.records.values()
    completed = [outcome for outcome in ended if outcome.reason.completed]
    jcts = [outcome.completion_seconds for outcome in completed]
    capacity = state.capacity_gpu_seconds
    rescales = sum(o.rescales for o in ended) + sum(r.rescales for r in living)
    gpu_seconds = fsum(o.gpu_seconds for o in ended) + fsum(r.gpu_seconds for r in living)
    hours = (fsum(o.run_seconds for o in ended) + fsum(r.run_seconds for r in living)) / 3600
    return Metrics(
        mean_jct=_mean(jcts),
        median_jct=_percentile(jcts, 50),
        p95_jct=_percentile(jcts, 95),
        p99_jct=_percentile(jcts, 99),
        mean_exec=_mean([outcome.run_seconds for outcome in completed]),
        mean_queue=_mean([outcome.queue_seconds for outcome in completed]),
        makespan=_makespan(completed, state),
        utilization=state.busy_gpu_seconds / capacity if capacity else 0.0,
        gpu_hours=gpu_seconds / 3600,
        rescales=rescales,
        preemptions=sum(o.preemptions for o in ended) + sum(r.preemptions for r in living),
        rescale_rate=rescales / hours if hours else None,
        finished=len(completed),
        failed=_count(ended, EndReason.FAILED),
        cancelled=_count(ended, EndReason.CANCELLED),
        refused=_count(ended, EndReason.REFUSED),
        unfinished=len(living),
    )


def fairness_figures(ratios: list[float]) -> dict[str, float | None]:
    """Figures of the finish-time fairness of a run; None where no job has completed."""
    return {
        "mean_rho": _mean(ratios),
        "worst_rho": max(ratios, default=None),
        "unfair_share": _mean([float(ratio > 1.0) for ratio in ratios]),
    }


def _mean(values: list[float]) -> float | None:
    return fsum(values) / len(values) if values else None


def _percentile(values: list[float], percent: float) -> float | None:
    import numpy as np  # slow to import

    return float(np.percentile(values, percent)) if values else None


def _makespan(completed: list[Outcome], state: State) -> float | None:
    if not completed:
        return None
    submissions = chain(
        (outcome.submitted_at for outcome in state.ended.values()),
        (record.job.submitted_at for record in state.records.values()),
    )
    return max(outcome.ended_at for outcome in completed) - min(submissions)


def _count(ended: Iterable[Outcome], reason: EndReason) -> int:
    return sum(outcome.reason is reason for outcome in ended)
