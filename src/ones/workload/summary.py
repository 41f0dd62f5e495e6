"""Summary statistics of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ones.workload.trace import RecordedTraining, Trace, Training

#: work of a job in single-GPU seconds; provided by the simulator
Work = Callable[[Training | RecordedTraining], float]
_QUANTILES = (5, 25, 50, 75, 95, 99)


def load_of(trace: Trace, gpus: int, work: Work) -> float | None:
    """Single-GPU seconds that arrive per GPU-second; None if all arrive at once."""
    span = trace.jobs[-1].job.submitted_at - trace.jobs[0].job.submitted_at
    return sum(work(entry.training) for entry in trace.jobs) / (span * gpus) if span else None


def summary_of(trace: Trace, gpus: int, work: Work) -> dict[str, Any]:
    """Arrivals, lengths, sizes and kinds."""
    at = np.array([entry.job.submitted_at for entry in trace.jobs])
    seconds = np.array([work(entry.training) for entry in trace.jobs])
    gaps = np.diff(at)
    mean_gap = float(gaps.mean()) if gaps.size else None
    quantiles = np.percentile(seconds, _QUANTILES)
    return {
        "jobs": len(trace.jobs),
        "span_seconds": float(at[-1] - at[0]),
        "mean_gap_seconds": mean_gap,
        "gap_variation": float(gaps.std() / gaps.mean()) if mean_gap else None,
        "one_gpu_seconds": float(seconds.sum()),
        "mean_one_gpu_seconds": float(seconds.mean()),
        **{
            f"p{q}_one_gpu_seconds": float(value)
            for q, value in zip(_QUANTILES, quantiles, strict=True)
        },
        "gpus": gpus,
        "load": load_of(trace, gpus, work),
        "owners": len({entry.job.owner for entry in trace.jobs}),
        "requested_gpus": _counted(
            str(n) for n in sorted(e.job.requested_gpus for e in trace.jobs)
        ),
        "kinds": _counted(sorted(e.job.kind for e in trace.jobs)),
        "incidents": _counted(sorted(type(i).__name__ for i in trace.incidents)),
    }


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values))
