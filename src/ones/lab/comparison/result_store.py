"""Results of finished runs, stored line by line, so that an interruption loses only current runs.

A line that was cut off is ignored; the next result begins on a new line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, UserError, WorldError

FILE_NAME = "rows.jsonl"

RunResult = dict[str, Any]


class ResultStore:
    """Results by key. Several comparisons may use a directory, one after the other."""

    def __init__(self, directory: Path | None) -> None:
        """`directory` None: results are kept in memory only."""
        self._path = None if directory is None else directory / FILE_NAME
        self._results: dict[str, RunResult] = {}
        self._is_cut_off = False
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def __contains__(self, key: str) -> bool:
        return key in self._results

    def __getitem__(self, key: str) -> RunResult:
        return self._results[key]

    def __len__(self) -> int:
        return len(self._results)

    def add(self, key: str, name: str, result: RunResult) -> None:
        """Stores the result; it is on the disk when this returns."""
        self._results[key] = result
        if self._path is None:
            return
        line = json.dumps({"key": key, "name": name, **result}, allow_nan=False) + "\n"
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" + line if self._is_cut_off else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as problem:
            raise WorldError(f"{self._path}: cannot be written: {problem.strerror}") from problem
        self._is_cut_off = False

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise InvalidFileError(path, f"cannot be read: {problem}") from problem
        self._is_cut_off = lines[-1] != ""
        for number, line in enumerate(lines, start=1):
            if not line:
                continue
            try:
                entry = json.loads(line)
                key = entry.pop("key")
                entry.pop("name")
            except (ValueError, KeyError, AttributeError) as problem:
                if line.startswith('{"key": '):  # cut off, by a crash or a full disk
                    continue
                raise InvalidFileError(
                    path, "is not a result of a comparison", line=number
                ) from problem
            self._results[key] = entry


@contextmanager
def locked(directory: Path) -> Iterator[Path]:
    """Creates the directory if necessary and locks it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / ".lock", os.O_CREAT | os.O_RDWR)
    except FileExistsError as problem:
        raise InvalidFileError(directory, "is a file, not a directory") from problem
    except OSError as problem:
        raise WorldError(f"{directory}: cannot be created: {problem.strerror}") from problem
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            raise UserError(f"{directory}: another comparison is writing there") from problem
        yield directory
    finally:
        os.close(lock)
