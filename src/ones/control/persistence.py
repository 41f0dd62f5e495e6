"""Records that the live engine stores beside the run log: plain values, independent of a database.

`ones.control.store` translates them to SQL; `ones run` does not store them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Done = Callable[[Exception | None], None]


@dataclass(frozen=True, slots=True)
class ReportsReceived:
    """The reports of a launch up to `number` are in the run log."""

    launch: str
    job: str
    number: int
    joined: bool


@dataclass(frozen=True, slots=True)
class ProcessesForgotten:
    """No process of the job is left: `ReportsReceived` of its launches are not needed any more."""

    job: str


@dataclass(frozen=True, slots=True)
class CordonsChanged:
    """All drained nodes and cordoned GPUs that a restart must know, as JSON."""

    text: str


LiveWrite = ReportsReceived | ProcessesForgotten | CordonsChanged


class LiveStore(Protocol):
    """The part of the store that the live engine uses."""

    def write(
        self,
        entries: Sequence[Any] = (),
        operations: Sequence[Any] = (),
        done: Done | None = None,
    ) -> None:
        """Queue a write; `done` is called after the commit."""

    def flush(self) -> None:
        """Returns when all writes queued before are committed."""


class ChangedJobs(Protocol):
    """Part of the recorder: `touched` has the jobs of entries since the read models were made."""

    touched: set[str]
