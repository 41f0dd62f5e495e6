"""Snapshots beside a log file: a restart reads the last snapshot and the lines after it.

Two files: `<log>.snapshot` is replaced as a whole and has the byte of the log that it goes up to;
`<log>.ended` only grows, so every ended job is written once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.core.plan import Plan
from ones.core.policy import Policy
from ones.core.record import Outcome
from ones.core.scheduler import Scheduler
from ones.core.state import Snapshot, State
from ones.errors import BrokenEngineError, InvalidFileError
from ones.runlog.encoding import (
    VERSION,
    Entry,
    decode_outcome,
    decode_snapshot,
    encode_saved,
)
from ones.runlog.files import LogWriter, RunLog
from ones.wire.decoding import CodecError, parse

LEAST_TAIL = 10_000
TAIL_PER_JOB = 4


def tail_limit(live_jobs: int) -> int:
    """Number of entries after the last snapshot that makes the next one worthwhile."""
    return max(LEAST_TAIL, TAIL_PER_JOB * live_jobs)


def forget_snapshots(log: Path) -> None:
    """Remove the snapshots of an earlier log with this name."""
    _ended_path(log).unlink(missing_ok=True)
    _snapshot_path(log).unlink(missing_ok=True)


class SnapshottingLog:
    """A log writer for `drive` that takes a snapshot when the tail is longer than `tail_limit`."""

    def __init__(
        self,
        log: LogWriter,
        scheduler: Scheduler,
        tail_limit: Callable[[int], int] = tail_limit,
    ) -> None:
        self._log, self._scheduler, self._tail_limit = log, scheduler, tail_limit
        self._tail = 0
        self._ended = 0
        self._ended_bytes = 0
        forget_snapshots(log.path)

    def __call__(self, entry: Entry) -> None:
        # right before an event, the state includes all written entries
        if not isinstance(entry, Plan):
            if self._tail >= self._tail_limit(len(self._scheduler.state.records)):
                self.take()
            self._tail += 1
        self._log(entry)

    def take(self) -> None:
        self._log.flush()
        saved = self._scheduler.state.snapshot(ended_before=self._ended)
        with _ended_path(self._log.path).open("ab") as file:
            file.truncate(self._ended_bytes)  # drops lines that a crash left after the snapshot
            file.seek(0, os.SEEK_END)
            for outcome in saved.ended:
                file.write(json.dumps(encode_saved(outcome)).encode() + b"\n")
            file.flush()
            self._ended_bytes = file.tell()
        self._ended += len(saved.ended)
        plain = encode_saved(saved)
        plain["ended"] = []
        whole = {
            "version": VERSION,
            "offset": self._log.tell(),
            "lines": self._log.entries + 1,
            "ended": self._ended,
            "state": plain,
            "policy": self._scheduler.policy.save(),
        }
        path = _snapshot_path(self._log.path)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(whole))
        beside.replace(path)
        self._tail = 0


def recover(log: RunLog, policy: Policy, *, use_snapshot: bool = True) -> Scheduler:
    """The scheduler after the last complete line, from the snapshot and the tail or from all lines.

    Nothing is decided: recorded plans are adopted as they are.
    """
    path = _snapshot_path(log.path)
    offset, number, state = 0, 1, None
    if use_snapshot and path.exists():
        saved = _read_snapshot(path)
        if saved.offset > log.path.stat().st_size:
            raise InvalidFileError(
                path, f"{saved.offset} is beyond the end of {log.path.name}", field="offset"
            )
        earlier = _read_ended(_ended_path(log.path), saved.ended)
        state = State.restored(saved.state, earlier)
        policy.load(saved.policy)
        offset, number = saved.offset, saved.lines
    scheduler = Scheduler(
        log.header.cluster,
        policy,
        switch_cost=log.header.switch_cost,
        state=state,
        in_place=log.header.in_place,
    )
    skipped = log.quarantined()
    for line, _, entry in log.lines(offset, number):
        policy_only = skipped.get(log.number_of(line))
        if policy_only is False:
            continue
        try:
            scheduler.recall(entry, observed=policy_only is None)
        except BrokenEngineError as problem:
            raise InvalidFileError(log.path, str(problem), line=line) from problem
    return scheduler


@dataclass(frozen=True, slots=True)
class _Saved:
    offset: int
    lines: int
    ended: int
    state: Snapshot
    policy: Mapping[str, Any]


def _read_snapshot(path: Path) -> _Saved:
    try:
        whole = parse(path.read_bytes())
        version = whole["version"]
        if version != VERSION:
            raise InvalidFileError(
                path,
                f"{version!r} is not supported; this version of ones reads {VERSION}",
                field="version",
            )
        return _Saved(
            whole["offset"],
            whole["lines"],
            whole["ended"],
            decode_snapshot(whole["state"]),
            whole["policy"],
        )
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (CodecError, KeyError, TypeError) as problem:
        raise InvalidFileError(path, f"is not a snapshot: {problem}") from problem


def _read_ended(path: Path, count: int) -> list[Outcome]:
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    if len(lines) < count:
        raise InvalidFileError(path, f"has {len(lines)} ended jobs, the snapshot needs {count}")
    outcomes = []
    for number, line in enumerate(lines[:count], 1):
        try:
            outcomes.append(decode_outcome(parse(line)))
        except CodecError as problem:
            raise InvalidFileError(path, str(problem), line=number) from problem
    return outcomes


def _snapshot_path(log: Path) -> Path:
    return log.with_name(log.name + ".snapshot")


def _ended_path(log: Path) -> Path:
    return log.with_name(log.name + ".ended")
