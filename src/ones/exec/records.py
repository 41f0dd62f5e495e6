"""What is written down about each worker: what was asked, that it runs, how it ended.

A run directory belongs to one (job, node):

    lock                held by ones-exec while it lives
    exec.sock           later launches reach it here
    exec.log            what ones-exec itself has to say
    <launch>/spec.json      what was asked for (holds the environment: readable by its owner only)
    <launch>/status.json    pid, start, boot: it was started
    <launch>/exit.json      how it ended: written once, after its last process was gone
    <launch>/out.<offset>   its output, in segments

Every file is replaced as a whole, so a reader never sees half of one. The worker could write here,
too: what is not a valid record counts as missing.
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
#: bytes of a record; a spec holds the environment
LARGEST = 8 << 20
#: characters of a message or cause in an exit record
LONGEST_TEXT = 2000
_MOST_PID = 2**31

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One process to start. `env` is all of its environment, nothing is added to it here."""

    id: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    zygote: bool = False  # fork it from an interpreter that has torch already
    segment_bytes: int = 8 << 20
    segments: int = 8  # older output is dropped
    slots: tuple[str, ...] = ()  # where it is; of no meaning here

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
    born: int  # start time in ticks since boot: with the pid, one process and no other
    started_at: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a worker ended. `cause` is a word for programs, `message` a line for people."""

    code: int | None  # None: killed by a signal, or never started
    signal: int | None = None
    at: float
    cause: str  # exited, stopped, fenced, not-started, lost, reboot
    message: str = ""

    @property
    def clean(self) -> bool:
        return self.code == 0

    def told(self) -> str:
        """In words."""
        if self.message:
            return self.message
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.code}"


def boot_id() -> str:
    """Another one after every start of the machine. ONES_BOOT_ID stands in for it in tests."""
    return os.environ.get("ONES_BOOT_ID") or BOOT_ID.read_text().strip()


_Record = TypeVar("_Record", Spec, Status, Exit)


def write(directory: Path, record: Spec | Status | Exit) -> None:
    """As a whole or not at all, and on disk before it has its name."""
    path = directory / _NAMES[type(record)]
    beside = path.with_suffix(".new")
    beside.unlink(missing_ok=True)  # a link there would lead elsewhere
    with open(beside, "w", opener=_private) as file:
        json.dump(asdict(record), file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def read_spec(directory: Path) -> Spec | None:
    return _read(directory, Spec)


def read_status(directory: Path) -> Status | None:
    return _read(directory, Status)


def read_exit(directory: Path) -> Exit | None:
    return _read(directory, Exit)


def spec_of(plain: Mapping[str, Any]) -> Spec:
    """Raises ValueError, TypeError or AttributeError for what is no spec."""
    return _made(Spec, plain)


def exit_of(plain: Mapping[str, Any]) -> Exit:
    """As above."""
    return _made(Exit, plain)


def status_of(plain: Mapping[str, Any]) -> Status:
    """As above."""
    return _made(Status, plain)


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
        return _made(kind, json.loads(read_regular(path, LARGEST)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as problem:
        why = f"{type(problem).__name__}: {problem}"[:200]
        log.warning("invalid record", extra={"path": str(path), "reason": why})
        return None


def _made(kind: type[_Record], plain: Mapping[str, Any]) -> _Record:
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
    if not (_is_whole(status.pid, 1, _MOST_PID) and _is_whole(status.born, 0, 2**63)):
        raise ValueError(f"pid {status.pid!r}, born {status.born!r} are not of a process")
    if not _is_time(status.started_at) or not _is_text(status.boot_id):
        raise ValueError(f"started_at {status.started_at!r}, boot_id {status.boot_id!r}")


def _check_exit(exit: Exit) -> None:
    if not all(n is None or _is_whole(n, -256, 256) for n in (exit.code, exit.signal)):
        raise ValueError(f"code {exit.code!r}, signal {exit.signal!r} are not of an exit")
    if not _is_time(exit.at) or not (_is_text(exit.cause) and _is_text(exit.message)):
        raise ValueError(f"at {exit.at!r}, cause {exit.cause!r}, message {exit.message!r}")


def _is_whole(value: object, least: int, below: int) -> bool:
    return type(value) is int and least <= value < below


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value) and abs(value) < 2**53


def _is_text(value: object) -> bool:
    """Of bounded length, and Unicode: it is stored and shown."""
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and value == shown(value)


def shown(text: str) -> str:
    """Something that the system or a user said, as it may be stored: bounded, and Unicode."""
    return text[:LONGEST_TEXT].encode(errors="backslashreplace").decode()[:LONGEST_TEXT]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
