"""The interface of launchers. `ones.testing.LauncherContract` tests each one against it.

Calls return at once and may come from any thread; results reach the listener in the launcher's own
thread. `running` is authoritative: after a restart the controller compares it with its log. No exit
is lost in between, because exit records stay until the job is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:  # settings of launchers are read by every command: this module stays small
    from ones.exec import Chunk, Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Room for one worker: a GPU, or a share of the CPUs."""

    node: str
    index: int
    kind: str = "cpu"  # cpu, gpu
    name: str = ""  # of the device
    memory_mb: int = 0
    device: str = ""  # its name in CUDA_VISIBLE_DEVICES
    used_by: tuple[str, ...] = ()  # other processes on it: the slot is shown and not used
    host: str = "127.0.0.1"  # address at which workers on it are reached
    group: str = ""  # slots of a node that are close to one another share a name; empty: unknown

    @property
    def id(self) -> str:
        return f"{self.node}/{self.index}"

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """From its fields as JSON has them."""
        return cls(**{**plain, "used_by": tuple(plain["used_by"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process, on one slot or on several of one node. `env` is its whole environment, except
    what the launcher adds: directories, devices and threads."""

    id: str  # unique, never used again: the same id twice is one process
    job: str
    slots: tuple[str, ...]
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    grace_seconds: float = 10.0
    zygote: bool = False  # fork it from an interpreter that has imported torch

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """From its fields as JSON has them."""
        return cls(**{**plain, "slots": tuple(plain["slots"]), "argv": tuple(plain["argv"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProcess:
    """The current state of a launch."""

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
    """No process of the launch is left: its slots are free."""

    id: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class SlotUp:
    slot: Slot


@dataclass(frozen=True, slots=True)
class SlotSuspect:
    """Out of reach. Workers may still run there: the slot must not be given to another job."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """Gone, and no process runs there any more."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotEnding:
    """The slot will be lost soon: its workers should move, and no worker should start there."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotUsed:
    """`used_by` has changed: processes that are not ours have come to the GPU, or left it."""

    slot: Slot


LauncherEvent = Started | Exited | SlotUp | SlotSuspect | SlotEnding | SlotLost | SlotUsed
Listener = Callable[[LauncherEvent], None]


class Launcher(Protocol):
    def open(self, listener: Listener) -> None:
        """Connect, and find processes that an earlier controller started."""

    def slots(self) -> list[Slot]: ...

    def launch(self, launch: Launch) -> None:
        """Start a process. Answered by `Started` and `Exited`, or by `Exited` with the cause."""

    def stop(self, id: str, grace_seconds: float) -> None:
        """SIGTERM, grace, then SIGKILL for the whole process tree. `Exited` follows if it lived."""

    def running(self) -> dict[str, LaunchedProcess]:
        """All launches of jobs that are not forgotten, including those that have exited."""
        ...

    def history(self, job: str) -> list[LaunchedProcess]:
        """Launches of one job in the order of their start, also of a job that is forgotten."""
        ...

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        """Output from an offset on; a negative offset counts from the end."""
        ...

    def forget(self, job: str) -> None:
        """The job is over: release what was kept for it, except its output."""

    def close(self, *, kill: bool) -> None:
        """Disconnect and leave the workers running; with `kill`, end them first."""


@runtime_checkable
class SupportsPrepare(Protocol):
    def prepare(self, launch: Launch) -> None:
        """A launch of the same job on the same node will follow: do now what takes time and needs
        no slot. No launch has to follow."""


@runtime_checkable
class SupportsKeptReports(Protocol):
    """Can read the reports that workers stored while the controller was unreachable."""

    def reports(self, job: str, id: str) -> bytes:
        """`Reports` messages in the run directory of a worker that has ended, one per line; empty:
        none. Written by the worker: validate them like everything it sends."""
        ...


@runtime_checkable
class SupportsUnfitNodes(Protocol):
    """Knows nodes that have slots and cannot be used, and why."""

    unfit: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherContext:
    """What the service tells the launcher that `ones.launchers.create` makes for it."""

    runs: Path  # directory for its files and run directories; only the service's user may read it
    checkpoints: str = ""  # where jobs save their work: path or URL that every node must see
    slots: int | None = None  # CPU slots (of each node), instead of GPUs; None: not set
    host: str = "127.0.0.1"  # address on which the service listens
    advertise: str = ""  # address at which other nodes reach it, if that is another one
    url: Callable[[], str] = str  # where workers reach the service; known when it is opened
