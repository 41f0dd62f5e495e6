"""The records of a launch: the process to start, its status, its exit.

Every command imports this module by way of `ones.launchers`: only light modules are imported here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, TypeVar

MAX_TEXT = 2000  # characters of a message or cause in an exit record
_MAX_PID = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start, on one slot or on several slots of one node.

    `env` is its whole environment, except what the launcher adds: directories, devices, threads.
    """

    id: str  # unique, never used again: the same id twice is one process
    job: str
    slots: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    grace_seconds: float = 10.0  # between SIGTERM and SIGKILL
    zygote: bool = False  # fork it from an interpreter that has imported torch
    user: str = ""  # Unix user that it runs as; empty: the user of the service


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The process of a launch that was started."""

    pid: int
    born: int  # start time in ticks since boot: with the pid it identifies the process
    started_at: float
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a launch ended. `cause` is for programs, `message` for people."""

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


def without_process(cause: str, why: str) -> Exit:
    """The exit of a launch without a process to wait for."""
    return Exit(code=None, at=time.time(), cause=cause, message=storable(why))


def not_started(why: str) -> Exit:
    return without_process("not-started", why)


def fenced(why: str) -> Exit:
    return without_process("fenced", why)


Record = TypeVar("Record", Launch, Status, Exit)


def parse_record(kind: type[Record], plain: Mapping[str, Any]) -> Record:
    """A record from JSON; unknown fields are ignored, so that other versions can be read.

    Raises ValueError, TypeError or AttributeError for an invalid record.
    """
    known = {f.name for f in fields(kind)}
    values: dict[str, Any] = {k: v for k, v in plain.items() if k in known}
    if kind is Launch:
        values.setdefault("job", "")  # ONES 0.1 wrote launches without it
    for name in ("argv", "slots"):
        if name in values:
            values[name] = tuple(values[name])
    record = kind(**values)
    if isinstance(record, Launch):
        _check_launch(record)
    elif isinstance(record, Status):
        _check_status(record)
    else:
        _check_exit(record)
    return record


def _check_launch(launch: Launch) -> None:
    texts = (
        launch.id, launch.job, launch.cwd, launch.user,
        *launch.argv, *launch.slots, *launch.env.keys(), *launch.env.values(),
    )  # fmt: skip
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"launch {launch.id!r}: id, job, slots, argv, cwd, env and user must be strings"
        )
    if not launch.id or "/" in launch.id or launch.id.startswith("."):
        raise ValueError(f"launch id {launch.id!r} is not the name of a directory")
    if not launch.argv:
        raise ValueError(f"launch {launch.id}: argv is empty")


def _check_status(status: Status) -> None:
    if not (_is_integer(status.pid, 1, _MAX_PID) and _is_integer(status.born, 0, 2**63)):
        raise ValueError(f"invalid status: pid {status.pid!r}, born {status.born!r}")
    if not _is_time(status.started_at) or not _is_text(status.boot_id):
        raise ValueError(
            f"invalid status: started_at {status.started_at!r}, boot_id {status.boot_id!r}"
        )


def _check_exit(exit: Exit) -> None:
    if not all(n is None or _is_integer(n, -256, 256) for n in (exit.code, exit.signal)):
        raise ValueError(f"invalid exit: code {exit.code!r}, signal {exit.signal!r}")
    if not _is_time(exit.at) or not (_is_text(exit.cause) and _is_text(exit.message)):
        values = f"at {exit.at!r}, cause {exit.cause!r}, message {exit.message!r}"
        raise ValueError(f"invalid exit: {values}")


def _is_integer(value: object, least: int, below: int) -> bool:
    return type(value) is int and least <= value < below


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value) and abs(value) < 2**53


def _is_text(value: object) -> bool:
    """Whether the value is a valid string of bounded length, which can be stored and shown."""
    return isinstance(value, str) and len(value) <= MAX_TEXT and value == storable(value)


def storable(text: str) -> str:
    """A text of the system or a user, truncated and made valid Unicode."""
    return text[:MAX_TEXT].encode(errors="backslashreplace").decode()[:MAX_TEXT]
