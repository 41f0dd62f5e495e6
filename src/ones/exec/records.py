"""Records of each worker in the run directory: its specification, that it runs, how it ended.

A run directory belongs to one (job, node):

    lock                held by ones-exec while it lives
    exec.sock           its socket
    exec.log            its log
    <launch>/spec.json      the process to start (with its environment: readable by the owner only)
    <launch>/status.json    pid, start time, boot: it was started
    <launch>/exit.json      how it ended: written once, after its last process has ended
    <launch>/out.<offset>   its output, in segments

Files are written atomically. The worker can write here, too: an invalid record counts as missing.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from ones.exec.files import read_regular

LOCK = "lock"
SOCKET = "exec.sock"
LOG = "exec.log"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MAX_RECORD = 8 << 20  # bytes; a spec holds the environment
MAX_TEXT = 2000  # characters of a message or cause in an exit record
_MAX_PID = 2**31

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A process to start. `env` is its whole environment."""

    id: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    zygote: bool = False  # fork it from an interpreter with torch loaded
    segment_bytes: int = 8 << 20
    segments: int = 8  # older output is dropped
    slots: tuple[str, ...] = ()  # for the launcher; not used here

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id or self.id.startswith("."):
            raise ValueError(f"launch id {self.id!r} is not the name of a directory")
        if not self.argv:
            raise ValueError(f"launch {self.id}: no command")
        texts = (self.id, self.cwd, *self.argv, *self.slots, *self.env.keys(), *self.env.values())
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"launch {self.id!r}: command, directory, slots and env are texts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    pid: int
    born: int  # start time in ticks since boot: with the pid it identifies the process
    started_at: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a worker ended. `cause` is for programs, `message` for people."""

    code: int | None  # None: killed by a signal, or never started
    signal: int | None = None
    at: float
    cause: str  # exited, stopped, fenced, not-started, lost, reboot
    message: str = ""

    @property
    def clean(self) -> bool:
        return self.code == 0

    def describe(self) -> str:
        if self.message:
            return self.message
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.code}"


def boot_id() -> str:
    """Identifies the current boot of the machine. Tests set ONES_BOOT_ID."""
    return os.environ.get("ONES_BOOT_ID") or BOOT_ID.read_text().strip()


_Record = TypeVar("_Record", Spec, Status, Exit)


def write_record(directory: Path, record: Spec | Status | Exit) -> None:
    """Writes a record atomically, synced to disk."""
    path = directory / _NAMES[type(record)]
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)  # it could be a link to another file
    with open(temporary, "w", opener=_private) as file:
        json.dump(asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_spec(directory: Path) -> Spec | None:
    return _read(directory, Spec)


def read_status(directory: Path) -> Status | None:
    return _read(directory, Status)


def read_exit(directory: Path) -> Exit | None:
    return _read(directory, Exit)


def parse_spec(plain: Mapping[str, Any]) -> Spec:
    """Raises ValueError, TypeError or AttributeError for an invalid record."""
    return _parse(Spec, plain)


def parse_exit(plain: Mapping[str, Any]) -> Exit:
    return _parse(Exit, plain)


def parse_status(plain: Mapping[str, Any]) -> Status:
    return _parse(Status, plain)


def known_launches(run_dir: Path) -> Iterator[Path]:
    """Directories of launches that were accepted, running or not."""
    try:
        paths = sorted(run_dir.iterdir())
    except OSError:
        return
    for path in paths:
        if not path.is_symlink() and os.path.lexists(path / "spec.json"):
            yield path


_NAMES: Mapping[type, str] = {Spec: "spec.json", Status: "status.json", Exit: "exit.json"}


def _read(directory: Path, kind: type[_Record]) -> _Record | None:
    path = directory / _NAMES[kind]
    try:
        return _parse(kind, json.loads(read_regular(path, MAX_RECORD)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as problem:
        why = f"{type(problem).__name__}: {problem}"[:200]
        log.warning("invalid record", extra={"path": str(path), "reason": why})
        return None


def _parse(kind: type[_Record], plain: Mapping[str, Any]) -> _Record:
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {k: v for k, v in plain.items() if k in known}
    for name in ("argv", "slots"):
        if name in values:
            values[name] = tuple(values[name])
    record = kind(**values)
    if isinstance(record, Status):
        _check_status(record)
    elif isinstance(record, Exit):
        _check_exit(record)
    return record


def _check_status(status: Status) -> None:
    if not (_is_integer(status.pid, 1, _MAX_PID) and _is_integer(status.born, 0, 2**63)):
        raise ValueError(f"pid {status.pid!r}, born {status.born!r} are not of a process")
    if not _is_time(status.started_at) or not _is_text(status.boot_id):
        raise ValueError(f"started_at {status.started_at!r}, boot_id {status.boot_id!r}")


def _check_exit(exit: Exit) -> None:
    if not all(n is None or _is_integer(n, -256, 256) for n in (exit.code, exit.signal)):
        raise ValueError(f"code {exit.code!r}, signal {exit.signal!r} are not of an exit")
    if not _is_time(exit.at) or not (_is_text(exit.cause) and _is_text(exit.message)):
        raise ValueError(f"at {exit.at!r}, cause {exit.cause!r}, message {exit.message!r}")


def _is_integer(value: object, least: int, below: int) -> bool:
    return type(value) is int and least <= value < below


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value) and abs(value) < 2**53


def _is_text(value: object) -> bool:
    """Whether it is a valid string of bounded length: it is stored and displayed."""
    return isinstance(value, str) and len(value) <= MAX_TEXT and value == storable(value)


def storable(text: str) -> str:
    """A text of the system or a user, truncated and made valid Unicode."""
    return text[:MAX_TEXT].encode(errors="backslashreplace").decode()[:MAX_TEXT]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
