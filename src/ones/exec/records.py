"""What is written down about each worker: what was asked, that it runs, how it ended.

A run directory belongs to one (job, node):

    lock                held by ones-exec while it lives
    exec.sock           later launches reach it here
    exec.log            what ones-exec itself has to say
    <launch>/spec.json      what was asked for (holds the environment: readable by its owner only)
    <launch>/status.json    pid, start, boot: it was started
    <launch>/exit.json      how it ended: written once, after its last process was gone
    <launch>/out.<offset>   its output, in segments

Every file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

LOCK = "lock"
SOCKET = "exec.sock"
LOG = "exec.log"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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
    return _made(Spec, plain)


def known_launches(run_dir: Path) -> Iterator[Path]:
    """Directories of launches that were accepted, running or not."""
    try:
        paths = sorted(run_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in paths:
        if (path / "spec.json").is_file():
            yield path


_NAMES: Mapping[type, str] = {Spec: "spec.json", Status: "status.json", Exit: "exit.json"}


def _read(directory: Path, kind: type[_Record]) -> _Record | None:
    try:
        plain = json.loads((directory / _NAMES[kind]).read_text())
    except FileNotFoundError:
        return None
    return _made(kind, plain)


def _made(kind: type[_Record], plain: Mapping[str, Any]) -> _Record:
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {k: v for k, v in plain.items() if k in known}
    for name in ("argv", "slots"):
        if name in values:
            values[name] = tuple(values[name])
    return kind(**values)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
