"""The interface of launchers. `ones.testing.LauncherContract` tests each one against it.

Methods return at once and may be called from any thread; results reach the listener in the
launcher's own thread. `running` is authoritative: after a restart the controller compares it with
its log. No exit is lost in between, because exit records stay until the job is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from ones.exec import Exit, Launch

if TYPE_CHECKING:  # every command reads the settings of launchers: this module imports little
    from ones.exec.output import Chunk
    from ones.wire.samples import SlotSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one worker runs on: a GPU, or a share of the CPUs of a node."""

    node: str
    index: int
    kind: str = "cpu"  # cpu, gpu
    name: str = ""  # of the device
    memory_mb: int = 0
    device: str = ""  # its name in CUDA_VISIBLE_DEVICES
    used_by: tuple[str, ...] = ()  # processes of others on it: listed, and not used
    host: str = "127.0.0.1"  # address at which other workers reach those on this slot
    group: str = ""  # name shared by slots of a node with a fast link; empty: unknown
    path: str = ""  # its device file, such as /dev/nvidia0; empty: unknown or none

    @property
    def id(self) -> str:
        return f"{self.node}/{self.index}"

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        """Returns the slot with these fields, as read from JSON."""
        return cls(**{**plain, "used_by": tuple(plain["used_by"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedProcess:
    """The current state of a launch."""

    id: str
    job: str
    slots: tuple[str, ...]
    node: str = ""  # empty: not placed yet
    pid: int | None = None
    started_at: float = 0.0  # read from its run directory; 0: not read
    exit: Exit | None = None

    @property
    def alive(self) -> bool:
        return self.exit is None


@dataclass(frozen=True, slots=True)
class Started:
    """The process of a launch was started."""

    id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Exited:
    """No process of the launch is left: its slots are free."""

    id: str
    exit: Exit


@dataclass(frozen=True, slots=True)
class SlotUp:
    """The slot can be used, for the first time or again."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class SlotSuspect:
    """The slot is out of reach. Workers may still run there: no other job may get it."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The slot is gone, and no process runs there any more."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotEnding:
    """The slot will be lost soon: its workers should move, and no worker should start there."""

    slot: str
    cause: str


@dataclass(frozen=True, slots=True)
class SlotUsed:
    """`used_by` has changed: processes of others started or ended on the GPU."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the workers of a node use. Only shown: it may be late, or be lost."""

    samples: tuple[SlotSample, ...]


LauncherEvent = Started | Exited | SlotUp | SlotSuspect | SlotEnding | SlotLost | SlotUsed | Sampled
Listener = Callable[[LauncherEvent], None]


class Launcher(Protocol):
    """Starts and stops worker processes on the slots of a machine or a cluster."""

    def open(self, listener: Listener) -> None:
        """Connects, and finds processes that an earlier controller started."""

    def slots(self) -> list[Slot]: ...

    def launch(self, launch: Launch) -> None:
        """Starts a process. `Started` and `Exited` follow, or only `Exited` with the cause."""

    def stop(self, id: str, grace_seconds: float) -> None:
        """Sends SIGTERM, after the grace time SIGKILL, to the process tree. `Exited` follows."""

    def running(self) -> dict[str, LaunchedProcess]:
        """All launches of jobs that are not forgotten, also those that have exited, by id."""
        ...

    def history(self, job: str) -> list[LaunchedProcess]:
        """Launches of one job in the order of their start, also of a job that is forgotten."""
        ...

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        """Up to `limit` bytes of output from an offset on; a negative one counts from the end."""
        ...

    def forget(self, job: str) -> None:
        """Releases what was kept for a job that has ended, except its output."""

    def close(self, *, kill: bool) -> None:
        """Disconnects and leaves the workers running; with `kill`, ends them first."""


@runtime_checkable
class SupportsPrepare(Protocol):
    """Can prepare a launch before its slot is free."""

    def prepare(self, launch: Launch) -> None:
        """Does now what takes time and needs no slot. Similar launches may follow or not."""


@runtime_checkable
class SupportsKeptReports(Protocol):
    """Can read the reports that workers stored while the controller was unreachable."""

    def reports(self, job: str, id: str) -> bytes:
        """The `Reports` messages that an ended worker stored, one per line; may be empty.

        The worker wrote them: validate them like everything that it sends.
        """
        ...


@runtime_checkable
class SupportsUsers(Protocol):
    """Can run each job as a Unix user of its own."""

    @property
    def runs_as_users(self) -> bool:
        """Whether it does."""
        ...

    def check_user(self, user: str) -> str:
        """Empty if jobs may run as this Unix user; else why not."""
        ...

    def remove(self, job: str, *, checkpoints: bool) -> bool:
        """Removes the output, or the checkpoints, of an ended job that ran as its own user.

        False if other files of the job are left. Raises OSError if it cannot.
        """
        ...


@runtime_checkable
class SupportsAllocations(Protocol):
    """Its nodes are in allocations of Slurm."""

    def allocations(self) -> dict[str, str]:
        """The allocation of each node that serves and does not end soon."""
        ...


@runtime_checkable
class SupportsUnfitNodes(Protocol):
    """Knows which nodes have slots but cannot be used."""

    unfit: dict[str, str]  # node -> why


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherContext:
    """Parameters of the service for its launcher, passed to `for_service`."""

    runs: Path  # directory for run directories and other files; readable by the service's user only
    checkpoints: str = ""  # where jobs save their work: path or URL that every node must see
    slots: int | None = None  # CPU slots (of each node), instead of GPUs; None: not set
    host: str = "127.0.0.1"  # address on which the service listens
    advertise: str = ""  # address at which other nodes reach it, if that is another one
    launchd: str = ""  # socket of ones-launchd, which starts jobs as their users; empty: none
    job_memory_gb: float = 0.0  # memory of each slot, for jobs of users; 0: an equal share
    job_processes: int = 4096  # maximum number of processes of a job of a user
    job_output_mb: int = 0  # maximum output of a job of a user; 0: no limit
    users_checkpoints: bool = False  # checkpoints are in the directories of users
    url: Callable[[], str] = str  # URL that workers call; known once the launcher is opened
