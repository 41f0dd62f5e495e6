"""Labels of a Gantt chart: positions and sizes that fit; labels that do not fit are omitted.

First each job's id, as large as its largest box allows; then the batches, in blocks that are large
enough and not covered by an id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ones.core.job import JobId
from ones.report.blocks import Block, Box, largest_boxes

_EM_WIDTH = 0.66  # of a bold character; rather too much, so that labels fit
_LINE_HEIGHT = 1.1  # em
_ID_SIZES = (4.8, 13.0)  # points, smallest and largest
_BATCH_SIZES = (5.2, 8.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """Points on paper per second and per row."""

    second: float
    row: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    text: str
    x: float  # its middle, in seconds
    y: float  # in rows
    size: float  # points
    upright: bool  # reads from bottom to top
    strong: bool = False


def place(blocks: list[Block], scale: Scale) -> list[Label]:
    """All labels of a chart; they do not overlap."""
    trained: dict[JobId, list[Block]] = {}
    for block in blocks:
        if block.phase == "training":
            trained.setdefault(block.job, []).append(block)
    labels = []
    for job, box in largest_boxes(blocks, lambda box: _id_size(box, scale)):
        id_label = _id_label(job, box, trained[job], scale)
        if id_label is not None:
            labels.append(id_label)
        for block in trained[job]:
            label = _batch_label(block, scale)
            if label is not None and not (id_label and _overlap(id_label, label, scale)):
                labels.append(label)
    return labels


def _id_size(box: Box, scale: Scale) -> float:
    """Ranks boxes by the size of a short id in it, then by area."""
    width, height = _paper(box, scale)
    size = max(_size("j00", width, height), _size("j00", height, width))
    return min(size, _ID_SIZES[1]) + 1e-6 * width * height


def _id_label(job: JobId, box: Box, blocks: list[Block], scale: Scale) -> Label | None:
    alone = _fit(job, box, scale, _ID_SIZES)
    if alone is None:
        return None
    # with the batch, where the id is within one block and need not be much smaller for that
    for block in blocks:
        within = _common(box, block)
        if (
            block.text
            and within.start <= alone.x < within.end
            and within.top <= alone.y < within.bottom
        ):
            text = f"{job} · {block.text}"
            least = max(0.65 * alone.size, _ID_SIZES[0])
            both = _fit(text, within, scale, (least, 0.85 * _ID_SIZES[1]))
            return replace(both or alone, strong=True)
    return replace(alone, strong=True)


def _batch_label(block: Block, scale: Scale) -> Label | None:
    """The batch of a block, with the id if there is enough space."""
    if not block.text:
        return None
    text = f"{block.job} · {block.text}"
    long = _fit(text, block, scale, _BATCH_SIZES)
    if long is not None and not long.upright:
        return long
    return _fit(block.text, block, scale, _BATCH_SIZES)


def _fit(text: str, box: Box, scale: Scale, sizes: tuple[float, float]) -> Label | None:
    """The text in the middle of a box, vertical only if it does not fit otherwise."""
    width, height = _paper(box, scale)
    least, largest = sizes
    level, upright = _size(text, width, height), _size(text, height, width)
    stand = level < least or (upright > 1.5 * level and level < 0.6 * largest)
    size = min(upright if stand else level, largest)
    if size < least:
        return None
    return Label(
        text=text,
        x=(box.start + box.end) / 2,
        y=(box.top + box.bottom) / 2,
        size=size,
        upright=stand,
    )


def _size(text: str, length: float, across: float) -> float:
    return min(length / (_EM_WIDTH * (len(text) + 0.6)), across / _LINE_HEIGHT)


def _paper(box: Box, scale: Scale) -> tuple[float, float]:
    return (box.end - box.start) * scale.second, (box.bottom - box.top) * scale.row


def _common(one: Box, other: Box) -> Box:
    return Box(
        max(one.start, other.start),
        min(one.end, other.end),
        max(one.top, other.top),
        min(one.bottom, other.bottom),
    )


def _overlap(one: Label, other: Label, scale: Scale) -> bool:
    common = _common(_extent(one, scale), _extent(other, scale))
    return common.start < common.end and common.top < common.bottom


def _extent(label: Label, scale: Scale) -> Box:
    length, across = label.size * _EM_WIDTH * len(label.text), label.size * _LINE_HEIGHT
    width, height = (across, length) if label.upright else (length, across)
    half_x, half_y = width / 2 / scale.second, height / 2 / scale.row
    return Box(label.x - half_x, label.x + half_x, label.y - half_y, label.y + half_y)
