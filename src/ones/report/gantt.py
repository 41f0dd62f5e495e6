"""Gantt charts of runs: time to the right, GPUs downwards, a colour for each job.

Below each chart is the number of waiting jobs. For a cluster with more than 256 GPUs each row is a
node. matplotlib is imported when drawing, and used without windows and global figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ones.report.colours import job_colours
from ones.report.gantt_run import INK, MAX_GPU_ROWS, QUIET, Colours, draw_queue, draw_run
from ones.report.image_files import DPI, drawing_style, format_of, save
from ones.report.time_axis import TimeAxis
from ones.report.timeline import RunTimeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEGEND_JOBS = 12
_WIDTH = 14.0  # inches
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.72, 0.2, 0.66, 0.52  # inches around the charts
_APART = 0.78  # between two charts, for the title of the lower one
_STRIP, _GAP = 0.1, 0.07  # share of a chart that the queue gets; inches above it


def draw_gantt(timeline: RunTimeline, path: Path, title: str = "") -> None:
    """One run as a .png or .svg file."""
    _draw([(title, timeline)], path, height=9.0)


def draw_comparison(runs: Sequence[tuple[str, RunTimeline]], path: Path) -> None:
    """Several named runs, one below the other on one time axis, with the same colours for jobs."""
    if not runs:
        raise ValueError("there is no run to compare")
    _draw(runs, path, height=min(5.2 * len(runs), 30.0))


def _draw(runs: Sequence[tuple[str, RunTimeline]], path: Path, *, height: float) -> None:
    format_of(path)
    with drawing_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(_WIDTH, height), dpi=DPI, facecolor="white")
        axis = TimeAxis.of([timeline for _, timeline in runs])
        colours = job_colours(job for _, timeline in runs for job in timeline.submissions)
        each = (height - _TOP - _BOTTOM - _APART * (len(runs) - 1)) / len(runs)
        strip = _STRIP * each
        for number, (title, timeline) in enumerate(runs):
            floor = height - _TOP - number * (each + _APART) - each

            def box(low: float, high: float) -> tuple[float, float, float, float]:
                """The area between two heights in inches, relative to the figure."""
                across = (_WIDTH - _LEFT - _RIGHT) / _WIDTH
                return _LEFT / _WIDTH, low / height, across, (high - low) / height

            chart = figure.add_axes(box(floor + strip + _GAP, floor + each))
            queue = figure.add_axes(box(floor, floor + strip))
            paper = (_WIDTH - _LEFT - _RIGHT, each - strip - _GAP)
            draw_run(chart, timeline, axis, colours, paper)
            _draw_titles(chart, title, _summary(timeline, axis))
            draw_queue(queue, timeline, axis)
            if number == 0 and len(colours) <= _LEGEND_JOBS:
                _draw_legend(chart, colours)
        queue.set_xlabel(axis.title, fontsize=9, color=INK, loc="right")
        figure.text(_LEFT / _WIDTH, 0.13 / height, _key(runs), fontsize=7.5, color=QUIET)
        save(figure, path)


def _draw_legend(axes: Axes, colours: Colours) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(color=colour, label=job if len(job) <= 14 else f"{job[:13]}…")
        for job, colour in colours.items()
    ]
    axes.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=6,
        frameon=False,
        fontsize=7.5,
        handlelength=1.0,
        columnspacing=1.0,
        borderaxespad=0.2,
    )


def _draw_titles(axes: Axes, title: str, summary: str) -> None:
    for text, above, size, weight, colour in (
        (title, 21, 13, "bold", INK),
        (summary, 7, 9, "normal", QUIET),
    ):
        axes.annotate(
            text,
            (0, 1),
            xytext=(0, above),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="left",
            fontsize=size,
            fontweight=weight,
            color=colour,
        )


def _summary(timeline: RunTimeline, axis: TimeAxis) -> str:
    seconds = [
        end.at - timeline.submissions[job]
        for job, end in timeline.ends.items()
        if end.reason.completed
    ]
    words = (
        f"{len(timeline.gpus)} GPUs, {len(seconds)} of {len(timeline.submissions)} jobs completed"
    )
    if seconds:
        words += f", on average {axis.format(sum(seconds) / len(seconds))} after submission"
    return words


def _key(runs: Sequence[tuple[str, RunTimeline]]) -> str:
    timelines = [timeline for _, timeline in runs]
    words = ["striped or pale: starting", "ticks at the bottom: submissions"]
    if any(len(timeline.gpus) <= MAX_GPU_ROWS for timeline in timelines):
        words.insert(0, "4×128: four workers with 128 samples each per step")
    if any(timeline.down for timeline in timelines):
        words.append("dark: node down")
    return "   ·   ".join(words)
