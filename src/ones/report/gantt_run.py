"""One run of a Gantt chart, drawn on axes of matplotlib: blocks of jobs, and the waiting jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ones.core.cluster import NodeId
from ones.core.job import JobId
from ones.report.blocks import Block, gpu_blocks, node_blocks
from ones.report.colours import Colour, faded
from ones.report.labels import Scale, place
from ones.report.time_axis import TimeAxis
from ones.report.timeline import RunTimeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_GPU_ROWS = 256
_NODE_LABELS = 40
_MIN_STRIPED = 3.0  # points; smaller blocks are not hatched
INK, QUIET, _LINE = "#20242c", "#69707d", "#c3c8d1"
_IDLE = ("#f4f5f7", "#eceef2")  # alternating by node
_DOWN, _QUEUE = "#4d525c", "#8793a6"

Colours = dict[JobId, Colour]
_Rows = dict[NodeId, tuple[float, float]]  # top and bottom


def draw_run(
    axes: Axes,
    timeline: RunTimeline,
    axis: TimeAxis,
    colours: Colours,
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
        color=INK,
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
        axes.hlines(edges, 0.0, axis.units, colors=INK, alpha=0.22, linewidths=0.5, zorder=3)


def _draw_blocks(
    axes: Axes, blocks: list[Block], axis: TimeAxis, colours: Colours, scale: Scale
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
            color=INK if label.strong else "#343a45",
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
        axes.axvline(x, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=4)
        axes.annotate(
            f"last job ends: {axis.format(last - axis.begin)}",
            (x, 0.0),
            xytext=(5, -5),
            textcoords="offset points",
            fontsize=8,
            color=INK,
            ha="left" if x < 0.8 * axis.units else "right",
            va="top",
            zorder=5,
        )


def _label_nodes(axes: Axes, nodes: _Rows) -> None:
    step = -(-len(nodes) // _NODE_LABELS) or 1
    shown = list(nodes.items())[::step]
    axes.set_yticks([(top + bottom) / 2 for _, (top, bottom) in shown])
    axes.set_yticklabels([node for node, _ in shown], fontsize=8, color=QUIET)
    axes.tick_params(axis="y", length=0)


def draw_queue(axes: Axes, timeline: RunTimeline, axis: TimeAxis) -> None:
    from matplotlib.ticker import MaxNLocator

    times = [axis.place(at) for at in (*timeline.queue_times, timeline.end)]
    lengths = [*timeline.queue_lengths, *timeline.queue_lengths[-1:]]
    most = max(lengths, default=0)
    if lengths:
        axes.fill_between(times, lengths, step="post", color=_QUEUE, alpha=0.45, linewidth=0)
        axes.step(times, lengths, where="post", color=_QUEUE, linewidth=1.0)
    submitted = [axis.place(at) for at in timeline.submissions.values()]
    axes.vlines(
        submitted, 0.0, 0.14, transform=axes.get_xaxis_transform(), colors=QUIET, linewidths=0.7
    )
    axes.set_xlim(0.0, axis.units)
    axes.set_ylim(0.0, max(1.0, 1.15 * most))
    axes.set_yticks([0, most] if most else [0])
    axes.set_ylabel("waiting\njobs", fontsize=8, color=INK, rotation=90)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=14, steps=[1, 2, 3, 5, 6, 10]))
    axes.tick_params(labelsize=8, colors=QUIET, length=3)
    for side, spine in axes.spines.items():
        spine.set_color(_LINE)
        spine.set_visible(side in ("left", "bottom"))
