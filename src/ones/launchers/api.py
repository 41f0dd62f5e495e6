"""What every launcher can do. tests/contracts/test_launcher.py holds each one to it.

Calls return at once and from any thread; what comes of them arrives at the listener, in
the launcher's own thread. The truth is what `running` says: after a restart the
controller compares it with its log, and no exit is lost in between, for exit records
stay until the job is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from ones.exec import Chunk, Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A place for one worker: a GPU, or a share of the CPUs."""

    node: str
    index: int
    kind: str = "cpu"  # cpu, gpu
    name: str = ""  # of the device
    memory_mb: int = 0
    device: str = ""  # what CUDA_VISIBLE_DEVICES calls it
    used_by: tuple[str, ...] = ()  # strangers on it: such a slot is shown and not used
    host: str = "127.0.0.1"  # where workers on it are reached by others
    group: str = ""  # slots of a node that are closer to one another share a name; empty: unknown

    @property
    def id(self) -> str:
        return f"{self.node}/{self.index}"

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """From its fields as JSON has them."""
        return cls(**{**plain, "used_by": tuple(plain["used_by"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process, on one slot or on several of one node. `env` is all of its environment but
    for what only the launcher knows: its directories, devices and threads."""

    id: str  # of one launch and never given again: the same id twice is one process
    job: str
    slots: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    grace_seconds: float = 10.0
    zygote: bool = False  # fork it from an interpreter that has torch already

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """From its fields as JSON has them."""
        return cls(**{**plain, "slots": tuple(plain["slots"]), "argv": tuple(plain["argv"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A launch as it stands."""

    id: str
    job: str
    slots: tuple[str, ...]
    pid: int | None = None
    exit: Exit | None = None

    @property
    def alive(self) -> bool:
        return self.exit is None


@dataclass(frozen=True, slots=True)
class Started:
    id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """Nothing of it is left: its slots are free."""

    id: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class SlotUp:
    slot: Slot


@dataclass(frozen=True, slots=True)
class SlotSuspect:
    """Out of reach. What runs there may run on: the slot must not be given away."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """Gone, and nothing runs there any more."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotEnding:
    """It will be lost soon: who is there should go elsewhere, and nobody new should come."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotUsed:
    """Strangers have come to it, or gone: `used_by` says who is there now."""

    slot: Slot


LauncherEvent = Started | Exited | SlotUp | SlotSuspect | SlotEnding | SlotLost | SlotUsed
Listener = Callable[[LauncherEvent], None]


class Launcher(Protocol):
    def open(self, listener: Listener) -> None:
        """Connect, and find what an earlier controller left running."""

    def slots(self) -> list[Slot]: ...

    def launch(self, launch: Launch) -> None:
        """Begin. The answer is `Started`, then `Exited`; or `Exited` alone, with the cause."""

    def stop(self, id: str, grace_seconds: float) -> None:
        """SIGTERM, grace, then SIGKILL for all it started. `Exited` follows, if it lived."""

    def running(self) -> dict[str, Process]:
        """Every launch of a job that is not forgotten, those that have exited included."""
        ...

    def history(self, job: str) -> list[Process]:
        """Launches of one job in the order of their start, also of a job that is forgotten."""
        ...

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        """Output from an offset on; a negative one counts from the end."""
        ...

    def forget(self, job: str) -> None:
        """The job is over: let go of what was kept for it, but not of its output."""

    def close(self, *, kill: bool) -> None:
        """Leave the workers to themselves, or end them all first."""


@runtime_checkable
class Judging(Protocol):
    """Knows nodes that have slots and cannot be used, and why."""

    unfit: dict[str, str]


@runtime_checkable
class KeepingReports(Protocol):
    """Can reach what workers wrote down for a controller that was away."""

    def reports(self, job: str, id: str) -> bytes:
        """`Reports` messages that a worker left in its run directory when it ended, one to a line;
        empty: none. Written by the worker: to be checked like everything it sends."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """What a launcher may be able to do besides."""

    def prepare(self, launch: Launch) -> None:
        """A launch like this one, whatever its id and slot on that node, will follow soon: whatever
        takes time and needs no slot may be done now. It binds nobody to anything."""
