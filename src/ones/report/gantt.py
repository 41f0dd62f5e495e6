"""The Gantt chart of a run: time to the right, GPUs downwards, a colour for each job.

Below it the number of waiting jobs. For a cluster with more than 256 GPUs each row is a node.
matplotlib is imported when drawing, and used without windows and global figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ones.core.cluster import NodeId
from ones.core.job import JobId
from ones.report.blocks import Block, gpu_blocks, node_blocks
from ones.report.colours import Colour, faded, job_colours
from ones.report.image_files import drawing_style, format_of, save
from ones.report.labels import Scale, place
from ones.report.time_axis import TimeAxis
from ones.report.timeline import RunTimeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_GPU_ROWS = 256
_LEGEND_JOBS = 12
_NODE_LABELS = 40
_MIN_STRIPED = 3.0  # points; smaller blocks are not hatched
_INK, _QUIET, _LINE = "#20242c", "#69707d", "#c3c8d1"
_IDLE = ("#f4f5f7", "#eceef2")  # alternating by node
_DOWN, _QUEUE = "#4d525c", "#8793a6"
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.72, 0.2, 0.66, 0.52  # inches around the charts
_APART = 0.78  # between two charts, for the title of the lower one
_STRIP, _GAP = 0.1, 0.07  # share of a chart that the queue gets; inches above it

_Colours = dict[JobId, Colour]
_Rows = dict[NodeId, tuple[float, float]]  # top and bottom


def draw_gantt(
    timeline: RunTimeline,
    path: Path,
    title: str = "",
    *,
    size: tuple[float, float] = (14.0, 9.0),
    dpi: float = 110.0,
) -> None:
    """One run as a .png or .svg file; size in inches."""
    _draw([(title, timeline)], path, size, dpi)


def draw_comparison(
    runs: Sequence[tuple[str, RunTimeline]],
    path: Path,
    *,
    size: tuple[float, float] | None = None,
    dpi: float = 110.0,
) -> None:
    """Several named runs, one below the other on one time axis, with the same colours for jobs."""
    if not runs:
        raise ValueError("there is no run to compare")
    _draw(runs, path, size or (14.0, min(5.2 * len(runs), 30.0)), dpi)


def _draw(
    runs: Sequence[tuple[str, RunTimeline]], path: Path, size: tuple[float, float], dpi: float
) -> None:
    format_of(path)
    with drawing_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, dpi=dpi, facecolor="white")
        axis = TimeAxis.of([timeline for _, timeline in runs])
        colours = job_colours(job for _, timeline in runs for job in timeline.submissions)
        width, height = size
        each = (height - _TOP - _BOTTOM - _APART * (len(runs) - 1)) / len(runs)
        strip = _STRIP * each
        for number, (title, timeline) in enumerate(runs):
            floor = height - _TOP - number * (each + _APART) - each

            def box(low: float, high: float) -> tuple[float, float, float, float]:
                """The area between two heights in inches, relative to the figure."""
                across = (width - _LEFT - _RIGHT) / width
                return _LEFT / width, low / height, across, (high - low) / height

            chart = figure.add_axes(box(floor + strip + _GAP, floor + each))
            queue = figure.add_axes(box(floor, floor + strip))
            paper = (width - _LEFT - _RIGHT, each - strip - _GAP)
            _draw_run(chart, timeline, axis, colours, paper)
            _draw_titles(chart, title, _summary(timeline, axis))
            _draw_queue(queue, timeline, axis)
            if number == 0 and len(colours) <= _LEGEND_JOBS:
                _draw_legend(chart, colours)
        queue.set_xlabel(axis.title, fontsize=9, color=_INK, loc="right")
        figure.text(_LEFT / width, 0.13 / height, _key(runs), fontsize=7.5, color=_QUIET)
        save(figure, path)


def _draw_run(
    axes: Axes,
    timeline: RunTimeline,
    axis: TimeAxis,
    colours: _Colours,
    paper: tuple[float, float],
) -> None:
    """The chart of one run; `paper` is its size in inches."""
    per_node = len(timeline.gpus) > MAX_GPU_ROWS
    blocks = node_blocks(timeline) if per_node else gpu_blocks(timeline)
    nodes = _node_rows(timeline, per_node)
    rows = max((bottom for _, bottom in nodes.values()), default=1.0)
    scale = Scale(second=72 * paper[0] / axis.length, row=72 * paper[1] / rows)
    axes.set_xlim(0.0, axis.units)
    axes.set_ylim(rows, 0.0)
    _draw_background(axes, nodes, axis)
    _draw_blocks(axes, blocks, axis, colours, scale)
    _draw_down(axes, timeline, nodes, axis)
    _draw_labels(axes, blocks, axis, scale)
    _draw_last_end(axes, timeline, axis)
    _label_nodes(axes, nodes)
    axes.set_ylabel(
        "nodes (filled: share of GPUs taken)" if per_node else "GPUs, by node",
        fontsize=9,
        color=_INK,
    )
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_color(_LINE)


def _node_rows(timeline: RunTimeline, per_node: bool) -> _Rows:
    rows: _Rows = {}
    for row, gpu in enumerate(timeline.gpus):
        top, _ = rows.get(gpu.node, (row, row))
        rows[gpu.node] = (top, row + 1)
    return {node: (i, i + 1) for i, node in enumerate(rows)} if per_node else rows


def _draw_background(axes: Axes, nodes: _Rows, axis: TimeAxis) -> None:
    from matplotlib.collections import PolyCollection

    corners = [_corners(0.0, axis.units, top, bottom) for top, bottom in nodes.values()]
    colours = [_IDLE[i % 2] for i in range(len(corners))]
    axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0, zorder=0.5))
    if len(nodes) <= MAX_GPU_ROWS:
        edges = [top for top, _ in nodes.values()][1:]
        axes.hlines(edges, 0.0, axis.units, colors=_INK, alpha=0.22, linewidths=0.5, zorder=3)


def _draw_blocks(
    axes: Axes, blocks: list[Block], axis: TimeAxis, colours: _Colours, scale: Scale
) -> None:
    from matplotlib.collections import PolyCollection

    def paper(block: Block) -> tuple[float, float]:
        return (block.end - block.start) * scale.second, (block.bottom - block.top) * scale.row

    training = [block for block in blocks if block.phase == "training"]
    starting = [block for block in blocks if block.phase == "starting"]
    striped = [block for block in starting if min(paper(block)) >= _MIN_STRIPED]
    pale = [block for block in starting if min(paper(block)) < _MIN_STRIPED]
    for some, strength, hatch in (
        (training, 1.0, None),
        (striped, 0.75, "//////"),
        (pale, 0.5, None),
    ):
        axes.add_collection(
            PolyCollection(
                [_corners(axis.place(b.start), axis.place(b.end), b.top, b.bottom) for b in some],
                facecolors=[faded(colours[b.job], strength) for b in some],
                edgecolors="white",
                # thinner than its block
                linewidths=[
                    min(0.8, 0.12 * width, 0.08 * height) for width, height in map(paper, some)
                ],
                hatch=hatch,
                zorder=2,
            )
        )


def _draw_down(axes: Axes, timeline: RunTimeline, nodes: _Rows, axis: TimeAxis) -> None:
    from matplotlib.collections import PolyCollection

    corners = [
        _corners(max(axis.place(start), 0.0), axis.place(end), *nodes[node])
        for node, spells in timeline.down.items()
        for start, end in spells
        if end > axis.begin
    ]
    axes.add_collection(
        PolyCollection(
            corners, facecolors=_DOWN, edgecolors="#7d838f", linewidths=0, hatch="xxxx", zorder=3
        )
    )


def _corners(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _draw_labels(axes: Axes, blocks: list[Block], axis: TimeAxis, scale: Scale) -> None:
    for label in place(blocks, scale):
        below = 0.365 * label.size  # from the middle of a digit to the baseline
        x, y = label.x, label.y
        if label.upright:
            x += below / scale.second
        else:
            y += below / scale.row
        axes.text(
            axis.place(x),
            y,
            label.text,
            fontsize=label.size,
            rotation=90 if label.upright else 0,
            rotation_mode="anchor",
            fontweight="bold" if label.strong else "normal",
            color=_INK if label.strong else "#343a45",
            ha="center",
            va="baseline",
            zorder=4,
            clip_on=True,
        )


def _draw_last_end(axes: Axes, timeline: RunTimeline, axis: TimeAxis) -> None:
    """Marks the end of the last job, if the axis continues."""
    if not timeline.ends:
        return
    last = max(end.at for end in timeline.ends.values())
    x = axis.place(last)
    if x < 0.97 * axis.units:
        axes.axvline(x, color=_INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=4)
        axes.annotate(
            f"last job ends: {axis.format(last - axis.begin)}",
            (x, 0.0),
            xytext=(5, -5),
            textcoords="offset points",
            fontsize=8,
            color=_INK,
            ha="left" if x < 0.8 * axis.units else "right",
            va="top",
            zorder=5,
        )


def _label_nodes(axes: Axes, nodes: _Rows) -> None:
    step = -(-len(nodes) // _NODE_LABELS) or 1
    shown = list(nodes.items())[::step]
    axes.set_yticks([(top + bottom) / 2 for _, (top, bottom) in shown])
    axes.set_yticklabels([node for node, _ in shown], fontsize=8, color=_QUIET)
    axes.tick_params(axis="y", length=0)


def _draw_legend(axes: Axes, colours: _Colours) -> None:
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
        (title, 21, 13, "bold", _INK),
        (summary, 7, 9, "normal", _QUIET),
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
    words = ["striped or pale: starting", "strokes at the bottom: submissions"]
    if any(len(timeline.gpus) <= MAX_GPU_ROWS for timeline in timelines):
        words.insert(0, "4×128: four workers with 128 samples each per step")
    if any(timeline.down for timeline in timelines):
        words.append("dark: node down")
    return "   ·   ".join(words)


def _draw_queue(axes: Axes, timeline: RunTimeline, axis: TimeAxis) -> None:
    from matplotlib.ticker import MaxNLocator

    times = [axis.place(at) for at in (*timeline.queue_times, timeline.end)]
    lengths = [*timeline.queue_lengths, *timeline.queue_lengths[-1:]]
    most = max(lengths, default=0)
    if lengths:
        axes.fill_between(times, lengths, step="post", color=_QUEUE, alpha=0.45, linewidth=0)
        axes.step(times, lengths, where="post", color=_QUEUE, linewidth=1.0)
    submitted = [axis.place(at) for at in timeline.submissions.values()]
    axes.vlines(
        submitted, 0.0, 0.14, transform=axes.get_xaxis_transform(), colors=_QUIET, linewidths=0.7
    )
    axes.set_xlim(0.0, axis.units)
    axes.set_ylim(0.0, max(1.0, 1.15 * most))
    axes.set_yticks([0, most] if most else [0])
    axes.set_ylabel("waiting\njobs", fontsize=8, color=_INK, rotation=90)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=14, steps=[1, 2, 3, 5, 6, 10]))
    axes.tick_params(labelsize=8, colors=_QUIET, length=3)
    for side, spine in axes.spines.items():
        spine.set_color(_LINE)
        spine.set_visible(side in ("left", "bottom"))
