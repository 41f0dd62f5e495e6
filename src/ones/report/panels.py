"""Line charts in several panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from ones.report.image_files import DPI, drawing_style, format_of, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: safe for colour-blind readers (Okabe and Ito), in the order of the lines
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#20242c", "#999999",
           "#8c6bb1", "#7a5230")  # fmt: skip
_INK, _QUIET, _LINE = "#20242c", "#69707d", "#dfe3e9"


@dataclass(frozen=True, slots=True)
class PlotLine:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    stepped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    title: str
    x: str  # name of the axis, with its unit
    y: str
    lines: Sequence[PlotLine]
    log_x: bool = False
    log_y: bool = False
    ticks: Sequence[float] = field(default_factory=tuple)
    bars: bool = False  # draw the line as bars


def draw_panels(
    panels: Sequence[Panel],
    path: Path,
    *,
    title: str = "",
    columns: int = 2,
    size: tuple[float, float] = (4.6, 3.4),
) -> None:
    """Saves a .png or .svg file; `size` of one panel in inches."""
    format_of(path)
    from matplotlib.figure import Figure

    columns = min(columns, len(panels))
    rows = ceil(len(panels) / columns)
    with drawing_style():
        figure = Figure(
            figsize=(columns * size[0], rows * size[1] + 0.5), dpi=DPI, layout="constrained"
        )
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
        for i, panel in enumerate(panels):
            _draw(figure.add_subplot(rows, columns, i + 1), panel)
        save(figure, path)


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel(panel.x, fontsize=8.5, color=_INK)
    axes.set_ylabel(panel.y, fontsize=8.5, color=_INK)
    axes.tick_params(labelsize=8, colors=_QUIET)
    axes.grid(visible=True, color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for line, colour in zip(panel.lines, COLOURS * ceil(len(panel.lines) / 10), strict=False):
        if panel.bars:
            axes.bar([f"{x:g}" for x in line.x], line.y, color=colour, width=0.7)
        else:
            axes.plot(
                line.x,
                line.y,
                label=line.name,
                color=colour,
                linestyle="--" if line.dashed else "-",
                drawstyle="steps-post" if line.stepped else "default",
                linewidth=1.6,
                marker="o" if len(line.x) <= 10 and not line.dashed else None,
                markersize=3.5,
            )
    if panel.log_x:
        axes.set_xscale("log", base=2 if panel.ticks else 10)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.ticks:
        axes.set_xticks(panel.ticks, [f"{tick:g}" for tick in panel.ticks])
    if len(panel.lines) > 1:
        axes.legend(fontsize=7.5, frameon=False, labelcolor=_INK)
