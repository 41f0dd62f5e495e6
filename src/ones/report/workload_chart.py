"""Chart of a workload: arrivals, lengths and sizes of its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ones.report.panels import Panel, PlotLine, draw_panels

_BINS = 120


def draw_workload(
    times: Sequence[float],
    seconds: Sequence[float],
    gpus: Sequence[int],
    path: Path,
    *,
    title: str = "",
) -> None:
    """`times`: seconds from the start; `seconds`: length of each job on one GPU."""
    at, lengths = np.asarray(times, float), np.sort(np.asarray(seconds, float))
    unit, name = (3600.0, "hours") if at.max() > 3 * 3600 else (60.0, "minutes")
    counts, edges = np.histogram(at / unit, _BINS)
    sizes = sorted(Counter(gpus).items())
    share = np.arange(1, lengths.size + 1) / lengths.size
    draw_panels(
        [
            Panel(
                title=f"arrivals in {(edges[1] - edges[0]):.3g} {name}",
                x=f"time ({name})",
                y="jobs",
                lines=[PlotLine("", edges[:-1].tolist(), counts.tolist(), stepped=True)],
            ),
            Panel(
                title="all arrivals so far",
                x=f"time ({name})",
                y="jobs",
                lines=[PlotLine("", (np.sort(at) / unit).tolist(), list(range(1, at.size + 1)))],
            ),
            Panel(
                title="length on one GPU",
                x="seconds",
                y="share of jobs that are no longer",
                lines=[PlotLine("", lengths.tolist(), share.tolist())],
                log_x=True,
            ),
            Panel(
                title="requested size",
                x="GPUs",
                y="jobs",
                lines=[PlotLine("", [size for size, _ in sizes], [n for _, n in sizes])],
                bars=True,
            ),
        ],
        path,
        title=title,
    )
