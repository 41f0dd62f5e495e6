"""A worker's output: segment files named by their offset, read by offset.

Only the newest segments are kept, so that a script that prints without end cannot fill the disk.
Offsets do not change when older segments are dropped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ones.exec.files import open_regular

PREFIX = "out."
SEGMENT_BYTES = 8 << 20
SEGMENTS = 8  # of one launch; older ones are dropped


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a worker's output."""

    data: bytes
    offset: int  # of the first byte; later than requested if older output was dropped
    end: int  # of all output so far

    @property
    def next(self) -> int:
        return self.offset + len(self.data)


class OutputWriter:
    """Appends output; drops the oldest segment when there are too many."""

    def __init__(
        self, directory: Path, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS
    ) -> None:
        self._directory = directory
        self._segment_bytes, self._segments = max(1, segment_bytes), max(1, segments)
        self._offset = 0
        self._lost = 0  # bytes, because the disk was full
        self._file: int | None = None
        self._free = 0

    def write(self, data: bytes) -> None:
        if self._lost:
            data = f"\n[ones: {self._lost} bytes of output lost: disk full]\n".encode() + data
        while data:
            try:
                taken = self._append(data)
            except OSError:
                # the worker must not stop because the disk is full
                self._lost += len(data)
                return
            data = data[taken:]
        self._lost = 0

    def _append(self, data: bytes) -> int:
        if self._file is None or not self._free:
            self.close()
            path = self._directory / f"{PREFIX}{self._offset:015d}"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._free = self._segment_bytes
            for old in _segments(self._directory)[: -self._segments]:
                old.unlink(missing_ok=True)
        taken = os.write(self._file, data[: self._free])
        self._offset += taken
        self._free -= taken
        return taken

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_output(directory: Path, offset: int, limit: int, owner: int | None = None) -> Chunk:
    """Returns up to `limit` bytes from `offset`, or from the oldest byte kept.

    A negative offset counts from the end. `owner`: files of other users are not read.
    """
    segments = _segments(directory)
    end = _end(segments)
    if offset < 0:
        offset = max(0, end + offset)
    if not segments or offset >= end:
        return Chunk(b"", min(offset, end), end)
    offset = max(offset, _start(segments[0]))
    data = b""
    for path, following in zip(segments, [*segments[1:], None], strict=True):
        if following is not None and _start(following) <= offset:
            continue
        position = offset + len(data)
        try:
            with os.fdopen(open_regular(path, owner), "rb") as file:
                file.seek(position - _start(path))
                data += file.read(limit - len(data))
        except FileNotFoundError:  # dropped just now: continue with the next one
            return read_output(directory, position, limit, owner)
        except OSError:  # a link, a pipe or another user's: not written by ones-exec
            break
        if len(data) >= limit:
            break
    return Chunk(data, offset, max(end, offset + len(data)))


def drop_oldest(launches: Sequence[tuple[Path, bool]], max_bytes: int) -> int:
    """Removes the oldest output above `max_bytes` of all launches; returns the bytes removed.

    `launches`: directories in the order of their start, and whether each may still write. The
    segment that a launch writes to stays.
    """
    found = []
    for directory, writes in launches:
        segments = _segments(directory)
        for path in segments:
            with suppress(FileNotFoundError):
                found.append((path, path.stat().st_size, writes and path == segments[-1]))
    excess, removed = sum(size for _, size, _ in found) - max_bytes, 0
    for path, size, is_open in found:
        if removed >= excess:
            break
        if not is_open:
            path.unlink(missing_ok=True)
            removed += size
    return removed


def _segments(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [directory / n for n in sorted(names) if n.startswith(PREFIX) and n[4:].isdecimal()]


def _start(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def _end(segments: list[Path]) -> int:
    if not segments:
        return 0
    try:
        return _start(segments[-1]) + segments[-1].stat().st_size
    except FileNotFoundError:
        return _end(segments[:-1])
