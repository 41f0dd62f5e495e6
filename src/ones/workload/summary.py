"""A trace in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ones.workload.kinds import paper_numbers
from ones.workload.trace import Trace


def summary_of(trace: Trace, gpus: int) -> dict[str, Any]:
    """Arrivals, sizes and kinds; `load` is single-GPU seconds that arrive per GPU-second."""
    numbers = paper_numbers()
    at = np.array([entry.job.submitted_at for entry in trace.jobs])
    gaps = np.diff(at)
    span = float(at[-1] - at[0])
    work = sum(
        numbers.kinds[entry.training.kind].one_gpu_seconds * entry.training.length
        for entry in trace.jobs
    )
    mean_gap = float(gaps.mean()) if gaps.size else None
    return {
        "jobs": len(trace.jobs),
        "span_seconds": span,
        "mean_gap_seconds": mean_gap,
        "gap_variation": float(gaps.std() / gaps.mean()) if mean_gap else None,
        "one_gpu_seconds": work,
        "gpus": gpus,
        "load": work / (span * gpus) if span else None,
        "owners": len({entry.job.owner for entry in trace.jobs}),
        "requested_gpus": dict(sorted(Counter(e.job.requested_gpus for e in trace.jobs).items())),
        "kinds": dict(sorted(Counter(e.job.kind for e in trace.jobs).items())),
        "incidents": dict(sorted(Counter(type(i).__name__ for i in trace.incidents).items())),
    }
