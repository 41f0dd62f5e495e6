"""Charts of comparisons: bars with intervals, boxes, cumulative shares, lines with a band.

Each chart is saved as PNG and as SVG. Colours are safe for colour-blind readers and never the only
distinction: lines differ in their dashes, bars and boxes are named on the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ones.report.image_files import drawing_style, save
from ones.report.panels import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK, _QUIET, _LINE = "#20242c", "#69707d", "#dfe3e9"
_DASHES = ("-", "--", ":", "-.")

Painter = Callable[["Axes"], None]


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None  # a reference value


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False
    dots: bool = False
    names: Sequence[str] = ()  # of its points, if they have any


@dataclass(frozen=True, slots=True)
class Axis:
    name: str  # with its unit
    log: bool = False
    ticks: Sequence[float] = ()
    start: float | None = None
    end: float | None = None


def draw(
    home: Path,
    name: str,
    painters: Sequence[Painter],
    *,
    columns: int = 3,
    size: tuple[float, float] = (4.2, 3.3),
) -> Path:
    """Saves name.png and name.svg in a directory; returns the path of the .svg."""
    from matplotlib.figure import Figure

    columns = min(columns, len(painters))
    rows = ceil(len(painters) / columns)
    with drawing_style():
        figure = Figure(figsize=(columns * size[0], rows * size[1]), dpi=130, layout="constrained")
        for i, paint in enumerate(painters):
            axes = figure.add_subplot(rows, columns, i + 1)
            _style(axes)
            paint(axes)
        home.mkdir(parents=True, exist_ok=True)
        for path in (home / f"{name}.png", home / f"{name}.svg"):
            save(figure, path)
    return home / f"{name}.svg"


def bars(title: str, axis: str, values: Sequence[Bar], *, marks: str = "") -> Painter:
    """Horizontal bars; `marks` is the legend of the reference values (diamonds)."""

    def paint(axes: Axes) -> None:
        places = np.arange(len(values))[::-1]
        colours = [_colour(i) for i in range(len(values))]
        axes.barh(places, [bar.value for bar in values], color=colours, height=0.66)
        longest = max((max(bar.value, bar.high or 0, bar.mark or 0) for bar in values), default=1)
        lowest = min((min(0, bar.value, bar.low or 0) for bar in values), default=0)
        width = longest - lowest
        for place, bar in zip(places, values, strict=True):
            if bar.low is not None and bar.high is not None:
                axes.plot([bar.low, bar.high], [place, place], color=_INK, linewidth=1.4)
            end = max(bar.value, bar.high or 0, bar.mark or 0)
            room = 0.04 if bar.mark == end else 0.02
            axes.text(
                end + room * width, place, _brief(bar.value), va="center", fontsize=8, color=_INK
            )
        marked = [(p, bar.mark) for p, bar in zip(places, values, strict=True) if bar.mark]
        if marked:
            axes.plot(
                [mark for _, mark in marked], [place for place, _ in marked], "D", color="white",
                markeredgecolor=_INK, markersize=6, label=marks,
            )  # fmt: skip
            if marks:
                axes.legend(fontsize=7.5, frameon=False, loc="lower right")
        axes.set_yticks(places, [bar.name for bar in values])
        axes.tick_params(axis="y", labelcolor=_INK, length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlim(1.05 * lowest, longest + 0.16 * width or 1)
        if lowest < 0:
            axes.axvline(0, color=_INK, linewidth=0.8)
        _name(axes, title, axis, "")

    return paint


def boxes(title: str, axis: Axis, values: Sequence[tuple[str, Sequence[float]]]) -> Painter:
    """Box plots: median, quartiles, whiskers from 5 to 95 %, outliers as dots."""

    def paint(axes: Axes) -> None:
        places = list(range(len(values), 0, -1))
        drawn = axes.boxplot(
            [list(times) or [0.0] for _, times in values],
            positions=places,
            orientation="horizontal",
            whis=(5, 95),
            widths=0.6,
            patch_artist=True,
            medianprops={"color": _INK, "linewidth": 1.4},
            whiskerprops={"color": _QUIET},
            capprops={"color": _QUIET},
            flierprops={"marker": "o", "markersize": 2.2, "markeredgecolor": _QUIET, "alpha": 0.5},
            manage_ticks=False,
        )
        for i, box in enumerate(drawn["boxes"]):
            box.set(facecolor=_colour(i), edgecolor=_INK, linewidth=0.8, alpha=0.75)
        axes.set_yticks(places, [name for name, _ in values])
        axes.tick_params(axis="y", labelcolor=_INK, length=0)
        axes.grid(visible=False, axis="y")
        _name(axes, title, axis.name, "")
        _scale(axes, axis, "x")

    return paint


def shares(title: str, axis: Axis, values: Sequence[tuple[str, Sequence[float]]]) -> Painter:
    """Cumulative distribution: the share of jobs with at most x."""

    def paint(axes: Axes) -> None:
        for i, (name, times) in enumerate(values):
            ordered = np.sort(np.asarray(times, float))
            share = np.arange(1, len(ordered) + 1) / max(1, len(ordered))
            axes.plot(ordered, share, drawstyle="steps-post", label=name, **_stroke(i))
        axes.set_ylim(0, 1.02)
        axes.legend(fontsize=7.5, frameon=False, labelcolor=_INK, loc="lower right")
        _name(axes, title, axis.name, "share of jobs")
        _scale(axes, axis, "x")

    return paint


def curves(title: str, x: Axis, y: Axis, lines: Sequence[Curve]) -> Painter:
    def paint(axes: Axes) -> None:
        for i, line in enumerate(lines):
            stroke = _stroke(i)
            if line.dashed:
                stroke["linestyle"] = "--"
            few = "o" if line.dots or len(line.x) <= 10 else None
            axes.plot(line.x, line.y, label=line.name, marker=few, markersize=3.5, **stroke)
            for name, x_, y_ in zip(line.names, line.x, line.y, strict=False):
                axes.annotate(
                    name, (x_, y_), (5, 4), textcoords="offset points", fontsize=7.5, color=_INK
                )
            if line.low is not None and line.high is not None:
                axes.fill_between(
                    line.x, line.low, line.high, color=stroke["color"], alpha=0.18, linewidth=0
                )
        if len(lines) > 1:
            axes.legend(fontsize=7.5, frameon=False, labelcolor=_INK)
        _name(axes, title, x.name, y.name)
        _scale(axes, x, "x")
        _scale(axes, y, "y")

    return paint


def _stroke(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": _DASHES[i % len(_DASHES)], "linewidth": 1.7}


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _style(axes: Axes) -> None:
    axes.tick_params(labelsize=8, colors=_QUIET)
    axes.grid(visible=True, color=_LINE, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _name(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel(x, fontsize=8.5, color=_INK)
    if y:
        axes.set_ylabel(y, fontsize=8.5, color=_INK)


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    set_ticks = axes.set_xticks if which == "x" else axes.set_yticks
    set_limits = axes.set_xlim if which == "x" else axes.set_ylim
    if axis.log:
        set_scale("log")
    if axis.ticks:
        set_ticks(list(axis.ticks), [f"{tick:g}" for tick in axis.ticks])
        set_ticks([], minor=True)
    if axis.start is not None or axis.end is not None:
        set_limits(axis.start, axis.end)


def _brief(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
