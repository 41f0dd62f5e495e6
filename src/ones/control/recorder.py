"""Records a scheduler in the run log of the database and restores it after a restart.

Recovery reads the newest snapshot and the entries after it. The policy decides nothing again:
recorded plans are applied as they were.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ones.control import logs
from ones.control.archive import DAY, HEADER, keep_snapshots, kept_snapshots
from ones.control.persistence import Done
from ones.control.schema import log, meta, outcomes, snapshots
from ones.control.store import Entry, Operation, Store, insert, upsert
from ones.core.events import EntryQuarantined, Event, StepsDone
from ones.core.plan import Plan
from ones.core.policy import Policy
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.errors import UserError, WorldError, described
from ones.runlog import VERSION, Header, decode, encode
from ones.runlog.encoding import decode_entry, decode_outcome, decode_snapshot, encode_saved
from ones.wire.decoding import CodecError, parse

#: replaying an event takes about 0.2 ms with a search policy; a snapshot takes about 15 ms with
#: 80 jobs, plus 20 us per worker: so a restart replays events for at most about half a second
LEAST_TAIL, TAIL_PER_JOB, TAIL_PER_WORKER = 1000, 4, 1

logger = logs.logger(__name__)  # `log` is a table


def tail_of_service(live_jobs: int, workers: int) -> int:
    """Number of events after a snapshot from which the next snapshot is taken."""
    return max(LEAST_TAIL, TAIL_PER_JOB * live_jobs, TAIL_PER_WORKER * workers)


class Recorder:
    """The `record` callback of `drive`: writes each event and plan to the log, and snapshots."""

    def __init__(
        self,
        store: Store,
        scheduler: Scheduler,
        *,
        number: int,
        snapshot_number: int = 0,
        ended_written: int = 0,
        limit: Callable[[int, int], int] = tail_of_service,
        policy: str = "",
    ) -> None:
        self._store, self._scheduler, self._limit = store, scheduler, limit
        self.policy = policy  # name of the policy; a snapshot stores it with the policy's state
        self.number = number  # of the last entry
        self.last_event: Event | None = None  # the last event that was written
        self.quarantined = len(quarantined(store))  # number of entries that the log marks to skip
        self._tail = number - snapshot_number
        self._ended = ended_written
        self.touched: set[str] = set()  # jobs of the entries since the read models were made

    def __call__(
        self, entry: Event | Plan, rows: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """Write an entry and `rows` in one transaction; `done` is called after the commit."""
        # a snapshot is safe only before an event: the scheduler has then applied all entries
        if not isinstance(entry, Plan):
            state = self._scheduler.state
            if self._tail >= self._limit(len(state.records), len(state.occupants)):
                self._take_snapshot()
            self._tail += 1
        text = encode(entry)  # raises before anything has changed if the entry cannot be encoded
        self.number += 1
        jobs = jobs_of(entry)
        self.touched.update(jobs)
        line = Entry(
            self.number,
            entry.at,
            type(entry).__name__,
            text,
            () if isinstance(entry, StepsDone) else jobs,
        )
        self._store.write([line], rows, done)
        if not isinstance(entry, Plan):
            self.last_event = entry
            self.quarantined += isinstance(entry, EntryQuarantined)

    def _take_snapshot(self) -> None:
        """Write a snapshot. A failure is only logged: the log is complete without the snapshot,
        and the next one is taken after the same number of events."""
        self._tail = 0
        try:
            self._write_snapshot()
        except Exception:
            logger.exception("a snapshot failed")

    def _write_snapshot(self) -> None:
        saved = self._scheduler.state.snapshot(ended_before=self._ended)
        plain = encode_saved(saved)
        plain["ended"] = []
        learned = self._scheduler.policy.save()
        body = {"version": VERSION, "state": plain, "policy": learned, "by": self.policy}
        rows = [
            {"position": self._ended + i, "job": o.id, "body": json.dumps(encode_saved(o))}
            for i, o in enumerate(saved.ended)
        ]
        body["ended"] = self._ended + len(rows)
        text, number, now = json.dumps(body), self.number, saved.now
        self._ended += len(rows)

        def keep(connection: sa.Connection) -> None:
            for row in rows:  # a snapshot that could not be read may have written some already
                upsert(outcomes, row)(connection)
            upsert(snapshots, {"number": number, "body": text})(connection)
            known = connection.execute(
                sa.select(snapshots.c.number).order_by(snapshots.c.number.desc())
            ).scalars()
            kept = kept_snapshots(connection)
            if now - max(kept.values(), default=0.0) >= DAY:
                kept[number] = now
                keep_snapshots(connection, kept)
            old = [n for n in list(known)[2:] if n not in kept]
            if old:
                connection.execute(snapshots.delete().where(snapshots.c.number.in_(old)))

        self._store.write(operations=[keep])


def jobs_of(entry: Event | Plan) -> tuple[str, ...]:
    """The jobs that an entry names."""
    if isinstance(entry, Plan):
        return tuple(
            dict.fromkeys([*(a.job for a in entry.actions), *entry.notes, *entry.forecasts])
        )
    job: Any = getattr(entry, "job", None)
    if job is None:
        return ()
    return (job if isinstance(job, str) else job.id,)


def begin(store: Store, header: Header) -> Header:
    """The header of the database; writes the given one if there is none yet."""
    known = _header(store)
    if known is None:
        store.write_now(insert(meta, {"key": HEADER, "value": encode(header)}))
        return header
    return known


def change_header(store: Store, header: Header) -> None:
    """Replace the header (another policy decides from now on); the log stays unchanged."""
    store.write_now(upsert(meta, {"key": HEADER, "value": encode(header)}))


def _header(store: Store) -> Header | None:
    rows = store.rows(sa.select(meta.c.value).where(meta.c.key == HEADER))
    if not rows:
        return None
    header = decode(rows[0].value)
    if not isinstance(header, Header):
        raise WorldError("the database holds no header where one should be")
    if header.version != VERSION:
        raise UserError(f"the database holds a log of version {header.version}, not {VERSION}")
    return header


class EntryError(Exception):
    """A log entry that cannot be read (`entry` is None), or that the state or the policy cannot
    apply."""

    def __init__(self, number: int, entry: Event | Plan | None, problem: Exception) -> None:
        super().__init__(f"entry {number} of the log: {described(problem)}")
        self.number, self.entry, self.problem = number, entry, problem


def recover(
    store: Store,
    header: Header,
    policy: Policy,
    limit: Callable[[int, int], int] = tail_of_service,
    *,
    before: Header | None = None,
    fresh: Callable[[], Policy] | None = None,
    skipped: Mapping[int, bool] | None = None,
) -> tuple[Scheduler, Recorder]:
    """The restored scheduler, and a recorder that continues at the end of the log.

    `before` is the header of the previous controller. State saved by another policy is not loaded.
    `fresh` makes a new policy, used if the saved state cannot be loaded (another version).
    `skipped` has quarantined entries, each with whether only the policy skips it; the entries that
    the log itself marks are added. Raises EntryError for an entry that cannot be applied.
    """
    saved = _newest_snapshot(store)
    number, ended, state = 0, 0, None
    if saved is not None:
        number, ended, state = saved.number, saved.ended, saved.state
        if (saved.by or (before or header).policy) == header.policy:
            policy = _loaded_policy(policy, saved.policy, fresh)
    scheduler = Scheduler(
        header.cluster,
        policy,
        switch_cost=header.switch_cost,
        state=state,
        in_place=header.in_place,
    )
    last = _replay(store, scheduler, number, {**quarantined(store, number), **(skipped or {})})
    recorder = Recorder(
        store,
        scheduler,
        number=last,
        snapshot_number=number,
        ended_written=ended,
        limit=limit,
        policy=header.policy,
    )
    return scheduler, recorder


@dataclass(frozen=True, slots=True)
class _Saved:
    number: int
    ended: int
    state: State
    policy: Any
    by: str


def _newest_snapshot(store: Store) -> _Saved | None:
    """The newest readable snapshot; None if there is none and the whole log is replayed."""
    problem: Exception | None = None
    for row in store.rows(sa.select(snapshots).order_by(snapshots.c.number.desc())):
        try:
            body = parse(row.body)
            earlier = store.rows(
                sa.select(outcomes.c.body)
                .where(outcomes.c.position < body["ended"])
                .order_by(outcomes.c.position)
            )
            state = State.restored(
                decode_snapshot(body["state"]), [decode_outcome(parse(r.body)) for r in earlier]
            )
            return _Saved(row.number, body["ended"], state, body["policy"], body.get("by", ""))
        except (CodecError, KeyError, TypeError, ValueError) as raised:
            problem = raised
            logger.exception("snapshot not read", snapshot=row.number)
    if problem is not None and store.first_number() > 1:
        raise WorldError(f"no snapshot can be read, and older entries are archived: {problem}")
    return None


def quarantined(store: Store, after: int = 0) -> dict[int, bool]:
    """Entries that the log marks to skip, each with whether only the policy skips it."""
    query = sa.select(log.c.entry).where(log.c.kind == EntryQuarantined.__name__)
    marks = (decode(row.entry) for row in store.rows(query.where(log.c.number > after)))
    return {m.entry: m.policy_only for m in marks if isinstance(m, EntryQuarantined)}


def _replay(store: Store, scheduler: Scheduler, number: int, skipped: Mapping[int, bool]) -> int:
    """Apply the entries after `number`; returns the number of the last one."""
    last = number
    for last, text in store.entries_after(number):
        policy_only = skipped.get(last)
        if policy_only is False:
            continue
        entry: Event | Plan | None = None
        try:
            entry = decode_entry(text)
            scheduler.recall(entry, observed=policy_only is None)
        except Exception as problem:
            raise EntryError(last, entry, problem) from problem
    return last


def _loaded_policy(
    policy: Policy,
    saved: Any,  # noqa: ANN401
    fresh: Callable[[], Policy] | None,
) -> Policy:
    try:
        policy.load(saved)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        if fresh is None:
            raise
        what = f"{type(problem).__name__}: {problem}"
        logger.warning("policy state not read, the policy learns anew", error=what)
        return fresh()
    return policy
