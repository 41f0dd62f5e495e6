"""Geometry of a Gantt chart: its rectangles, before anything is drawn.

Workers of a job on adjacent rows for the same time are one block, so that a chart has few shapes
and space for labels. Rows count from the top, one per GPU; for a large cluster one per node, with
the node's jobs stacked by their share of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ones.core.cluster import NodeId
from ones.core.job import JobId
from ones.report.timeline import RunTimeline, WorkerPhase, WorkerSegment


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the chart: time and rows."""

    start: float
    end: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Box):
    """A part that one job fills with the same workers."""

    job: JobId
    phase: WorkerPhase
    workers: int
    batches: tuple[int, int]  # smallest and largest local batch

    @property
    def text(self) -> str:
        """`4×128`: workers and local batch; `~` if batches differ; empty while unknown."""
        least, largest = self.batches
        if not least:
            return ""
        # an even split of an odd batch differs by one
        batch = f"{least}" if least == largest else f"~{(least + largest) / 2:.0f}"
        return batch if self.workers == 1 else f"{self.workers}×{batch}"


def gpu_blocks(timeline: RunTimeline) -> list[Block]:
    row = {gpu: i for i, gpu in enumerate(timeline.gpus)}
    ordered = sorted(timeline.segments, key=lambda s: (s.job, s.start, s.end, s.phase, row[s.gpu]))
    blocks = []
    for _, alike in groupby(ordered, key=lambda s: (s.job, s.start, s.end, s.phase)):
        together: list[WorkerSegment] = []
        for segment in alike:
            if together and row[segment.gpu] != row[together[-1].gpu] + 1:
                blocks.append(_block(together, row[together[0].gpu]))
                together = []
            together.append(segment)
        blocks.append(_block(together, row[together[0].gpu]))
    return blocks


def _block(segments: list[WorkerSegment], top: int) -> Block:
    first = segments[0]
    batches = [segment.batch for segment in segments]
    return Block(
        job=first.job,
        start=first.start,
        end=first.end,
        top=top,
        bottom=top + len(segments),
        phase=first.phase,
        workers=len(segments),
        batches=(min(batches), max(batches)),
    )


def node_blocks(timeline: RunTimeline) -> list[Block]:
    """One row per node. A block lasts as long as its job and its position are the same."""
    sizes: dict[NodeId, int] = {}
    for gpu in timeline.gpus:
        sizes[gpu.node] = sizes.get(gpu.node, 0) + 1
    of_node: dict[NodeId, list[WorkerSegment]] = {node: [] for node in sizes}
    for segment in timeline.segments:
        of_node[segment.gpu.node].append(segment)
    blocks: list[Block] = []
    for row, (node, size) in enumerate(sizes.items()):
        blocks += _stacked(of_node[node], row, size)
    return blocks


_Slice = tuple[JobId, WorkerPhase, float, float, int]  # with top, bottom and workers


def _stacked(segments: list[WorkerSegment], row: int, size: int) -> Iterator[Block]:
    order: dict[JobId, int] = {}
    changes: dict[float, list[tuple[int, WorkerSegment]]] = {}
    for segment in segments:
        order.setdefault(segment.job, len(order))
        changes.setdefault(segment.start, []).append((1, segment))
        changes.setdefault(segment.end, []).append((-1, segment))
    counts: dict[tuple[int, WorkerPhase, JobId], int] = {}
    since: dict[_Slice, float] = {}
    for at in sorted(changes):
        for change, segment in changes[at]:
            key = (order[segment.job], segment.phase, segment.job)
            counts[key] = counts.get(key, 0) + change
        counts = {key: n for key, n in counts.items() if n}
        now: dict[_Slice, float] = {}
        low = 0
        for (_, phase, job), n in sorted(counts.items()):
            bottom, top = row + 1 - low / size, row + 1 - (low + n) / size
            slice_ = (job, phase, top, bottom, n)
            now[slice_] = since.pop(slice_, at)
            low += n
        for (job, phase, top, bottom, n), start in since.items():
            yield Block(
                job=job,
                start=start,
                end=at,
                top=top,
                bottom=bottom,
                phase=phase,
                workers=n,
                batches=(0, 0),
            )
        since = now


def largest_boxes(
    blocks: list[Block], space: Callable[[Box], float]
) -> Iterator[tuple[JobId, Box]]:
    """The box of each job with the most space for its name, by `space`.

    Adjacent blocks of a job are merged, on each row and then over several rows.
    """
    trained = sorted(
        (block for block in blocks if block.phase == "training"), key=lambda b: (b.job, b.start)
    )
    for job, own in groupby(trained, key=lambda b: b.job):
        best = max(_boxes(list(own)), key=space)
        yield job, best


def _boxes(blocks: list[Block]) -> Iterator[Box]:
    """Boxes that the job fills without a gap. Blocks are sorted by start."""
    rows: dict[tuple[float, float], list[tuple[float, float]]] = {}
    for block in blocks:
        for top, bottom in _rows(block):
            runs = rows.setdefault((top, bottom), [])
            if runs and runs[-1][1] == block.start:
                runs[-1] = (runs[-1][0], block.end)
            else:
                runs.append((block.start, block.end))
    row_at = {top: (top, bottom) for top, bottom in rows}
    for (top, _), runs in rows.items():
        for run in runs:
            (start, end), row = run, row_at[top]
            while start < end:
                yield Box(start, end, top, row[1])
                if row[1] not in row_at:
                    break
                row = row_at[row[1]]
                overlaps = ((max(start, s), min(end, e)) for s, e in rows[row])
                start, end = max(overlaps, key=lambda pair: pair[1] - pair[0])


def _rows(block: Block) -> Iterator[tuple[float, float]]:
    """The whole rows that a block fills, or its own part of one row."""
    if block.bottom - block.top < 1:
        yield block.top, block.bottom
        return
    top = block.top
    while top < block.bottom:
        yield top, top + 1
        top += 1
