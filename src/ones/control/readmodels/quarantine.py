"""The quarantined entries of the run log, read from the log itself."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import sqlalchemy as sa

from ones.control.schema import log
from ones.control.store import Store
from ones.core.events import EntryQuarantined
from ones.runlog import decode


@dataclass(frozen=True, slots=True)
class QuarantinedEntry:
    number: int  # number of the `EntryQuarantined` event in the log
    at: float
    entry: int  # number of the quarantined entry; 0: it was refused before it was logged
    kind: str
    job: str | None
    reason: str
    policy_only: bool  # the state applies the entry; only the policy does not see it


class Quarantine:
    """Cache of the quarantined entries: each call reads only new ones, by one indexed query."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._entries: list[QuarantinedEntry] = []
        self._seen = 0

    def entries(self) -> list[QuarantinedEntry]:
        """All quarantined entries, oldest first."""
        with self._lock:
            query = sa.select(log.c.number, log.c.entry).where(
                log.c.kind == EntryQuarantined.__name__, log.c.number > self._seen
            )
            for row in self._store.rows(query.order_by(log.c.number)):
                self._seen = row.number
                mark = decode(row.entry)
                if isinstance(mark, EntryQuarantined):
                    self._entries.append(
                        QuarantinedEntry(
                            row.number, mark.at, mark.entry, mark.kind, mark.job, mark.reason,
                            mark.policy_only,
                        )
                    )  # fmt: skip
            return list(self._entries)
