"""Run logs as files of JSON lines: a header, then events and plans in order."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

from ones.core.events import EntryQuarantined
from ones.errors import InvalidFileError, UserError, WorldError
from ones.runlog.encoding import VERSION, Entry, Header, decode, encode
from ones.wire.decoding import CodecError


class LogWriter:
    """Writes a log, one line per entry. Written lines are kept however the run ends."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self._file: BufferedWriter = _open_for_writing(path)
        self.entries = 0
        self.write_line(encode(header))

    def __call__(self, entry: Entry) -> None:
        self.write_line(encode(entry))
        self.entries += 1

    def write_line(self, line: str) -> None:
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as problem:
            raise WorldError(f"{self.path}: {problem.strerror}") from problem

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError as problem:
            raise WorldError(f"{self.path}: {problem.strerror}") from problem

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as problem:
            raise WorldError(f"{self.path}: {problem.strerror}") from problem

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RunLog:
    """Reads a log: iterate over it for its entries.

    A crash may have cut off the last line: reading ends before it, and `cut_off` is set. Any other
    damage raises InvalidFileError with file, line and field.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False
        with _open_for_reading(path) as file:
            first = file.readline()
        if not first.strip():
            raise InvalidFileError(path, "is empty: a run log begins with a header")
        if not first.endswith(b"\n"):
            raise InvalidFileError(path, "the header is cut off", line=1)
        header = self._decode(first, 1)
        if not isinstance(header, Header):
            raise InvalidFileError(
                path, f"{type(header).__name__} is not the header of a run log", line=1
            )
        if header.version != VERSION:
            raise InvalidFileError(
                path,
                f"{header.version} is not supported; this version of ones reads {VERSION}",
                line=1,
                field="version",
            )
        try:
            header.cluster  # noqa: B018  # raises if a node is listed twice
        except UserError as problem:
            raise InvalidFileError(path, str(problem), line=1, field="nodes") from problem
        self.header = header

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in self.lines())

    def lines(self, offset: int = 0, number: int = 1) -> Iterator[tuple[int, str, Entry]]:
        """Tuples (line number, text, entry), from a byte offset right after line `number`."""
        with _open_for_reading(self.path) as file:
            if offset:
                file.seek(offset)
            else:
                file.readline()
            for line in file:
                number += 1
                if not line.endswith(b"\n"):
                    self.cut_off = True
                    return
                entry = self._decode(line, number)
                if isinstance(entry, Header):
                    raise InvalidFileError(
                        self.path, "a Header is valid on the first line only", line=number
                    )
                yield number, line[:-1].decode(), entry

    def number_of(self, line: int) -> int:
        """The number of the entry in a line. The header is line 1."""
        return line - 2 + self.header.first

    def quarantined(self) -> dict[int, bool]:
        """Numbers of quarantined entries -> whether only the policy skips the entry."""
        found = {}
        mark = EntryQuarantined.__name__.encode()
        with _open_for_reading(self.path) as file:
            for number, line in enumerate(file, 1):
                if mark in line and line.endswith(b"\n"):
                    entry = self._decode(line, number)
                    if isinstance(entry, EntryQuarantined):
                        found[entry.entry] = entry.policy_only
        return found

    def _decode(self, line: bytes, number: int) -> Entry | Header:
        try:
            return decode(line[:-1])
        except CodecError as problem:
            if isinstance(problem.__cause__, UnicodeDecodeError):
                raise InvalidFileError(self.path, "is not text in UTF-8", line=number) from problem
            raise InvalidFileError(
                self.path, problem.problem, line=number, field=problem.field or None
            ) from problem


def _open_for_reading(path: Path) -> BufferedReader | gzip.GzipFile:
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem


def _open_for_writing(path: Path) -> BufferedWriter:
    try:
        return path.open("wb")
    except OSError as problem:
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
