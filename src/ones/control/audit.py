"""The audit log: which user did what, when, from which address. Rows are added, never changed.

No secret is written here. A client could cause refusals without end, so refusals of one kind within
a minute become two rows: the first at once, the others as a count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from ones.control.schema import audit
from ones.control.store import Store, insert

#: refusals of one kind within this time are counted in one row
GATHER_SECONDS = 60.0
#: maximum number of kinds of refusals that are counted separately; others are counted together
MOST_KINDS = 100
LONGEST = 500  # characters of a detail
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class AuditRow:
    number: int
    at: float
    who: str
    action: str
    subject: str
    detail: str
    address: str


@dataclass(slots=True)
class _Repeated:
    since: float
    more: int = 0  # after the first


class Audit:
    """Writes and reads the audit log; may be used by any thread. `now`: seconds since 1970."""

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        last = store.rows(sa.select(sa.func.max(audit.c.number)))[0][0]
        self._number = int(last or 0)
        self._refused: dict[tuple[str, str, str], _Repeated] = {}

    def record(
        self, user: str, action: str, subject: str = "", detail: str = "", address: str = ""
    ) -> None:
        with self._lock:
            self._add(user, action, subject, detail, address)

    def refused(self, user: str, action: str, detail: str, address: str) -> None:
        """Record a refused request; repetitions are counted."""
        now = self._now()
        with self._lock:
            self._count(now)
            kind = (user, action, address)
            if kind not in self._refused and len(self._refused) >= MOST_KINDS:
                kind = (OTHERS, action, OTHERS)
            known = self._refused.get(kind)
            if known is None:
                self._refused[kind] = _Repeated(now)
                self._add(kind[0], action, "", detail, kind[2])
            else:
                known.more += 1

    def settle(self) -> None:
        """Write all counts now."""
        with self._lock:
            self._count(self._now(), at_once=True)

    def rows(
        self,
        limit: int,
        *,
        user: str | None = None,
        since: float | None = None,
        before: int | None = None,
    ) -> list[AuditRow]:
        """Rows, the newest first. `user`: only rows by or about this user."""
        self.settle()
        self._store.flush()
        query = sa.select(audit).order_by(audit.c.number.desc()).limit(limit)
        if user is not None:
            query = query.where(sa.or_(audit.c.who == user, audit.c.subject == user))
        if since is not None:
            query = query.where(audit.c.at >= since)
        if before is not None:
            query = query.where(audit.c.number < before)
        return [AuditRow(**row._mapping) for row in self._store.rows(query)]

    def _count(self, now: float, *, at_once: bool = False) -> None:
        """Write the counts of repeated refusals: of minutes that are over, or of all."""
        for kind, known in list(self._refused.items()):
            over = now - known.since >= GATHER_SECONDS
            if known.more and (over or at_once):
                user, action, address = kind
                self._add(user, action, "", f"{known.more} more of this kind", address)
                known.more = 0
            if over:
                del self._refused[kind]

    def _add(self, user: str, action: str, subject: str, detail: str, address: str) -> None:
        self._number += 1
        row = {
            "number": self._number,
            "at": self._now(),
            "who": _clean(user),
            "action": action,
            "subject": _clean(subject),
            "detail": _clean(detail),
            "address": _clean(address),
        }
        self._store.write(operations=[insert(audit, row)])


def _clean(text: str) -> str:
    """The text as every database accepts it: no lone surrogates or zero bytes, not too long."""
    return text[:LONGEST].encode("utf-8", "replace").decode().replace("\0", "?")
