"""The summary of a workload file: numbers, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ones.report.workload_chart import draw_workload
from ones.sim.lengths import length_of, one_gpu_seconds
from ones.workload import load_workload
from ones.workload.summary import summary_of


def summarize_workload(path: Path, gpus: int, picture: Path | None = None) -> dict[str, Any]:
    loaded = load_workload(path, length_of)
    trace = loaded.trace
    summary = {
        "format": loaded.format,
        **summary_of(trace, gpus, one_gpu_seconds),
        "left_out": loaded.left_out,
    }
    if picture is not None:
        draw_workload(
            [entry.job.submitted_at for entry in trace.jobs],
            [one_gpu_seconds(entry.training) for entry in trace.jobs],
            [entry.job.requested_gpus for entry in trace.jobs],
            picture,
            title=f"{path.name}: {len(trace.jobs):,} jobs",
        )
    return summary
