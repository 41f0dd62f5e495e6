"""The run log as a table: how a brain is recorded, and how it comes back after a restart.

Recovery reads the newest snapshot and the entries after it. Nothing is decided again:
recorded plans are taken for true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from ones.control import logs
from ones.control.schema import meta, outcomes, snapshots
from ones.control.store import Done, Entry, Operation, Store, insert, upsert
from ones.core.brain import Brain
from ones.core.events import Event, StepsDone
from ones.core.plan import Plan
from ones.core.policy import Policy
from ones.core.state import State
from ones.errors import UserError, WorldError
from ones.runlog import VERSION, Header, decode, encode
from ones.runlog.encoding import decode_outcome, decode_snapshot, encode_saved
from ones.wire.codec import CodecError, parse

HEADER = "header"
#: taking in an event again costs a policy that searches about a millisecond, a snapshot 20 to 30
#: (80 jobs), and 20 us for each worker: a restart is to take seconds
LEAST_TAIL, TAIL_PER_JOB, TAIL_PER_WORKER = 2000, 4, 1

log = logs.logger(__name__)


def tail_of_service(live_jobs: int, workers: int) -> int:
    """A longer tail of the log than this is worth a snapshot."""
    return max(LEAST_TAIL, TAIL_PER_JOB * live_jobs, TAIL_PER_WORKER * workers)


class Recorder:
    """The `record` of `drive`. `with_next` adds what must be written in the same transaction as
    the next entry, and who is to be told when it is safe."""

    def __init__(
        self,
        store: Store,
        brain: Brain,
        *,
        number: int,
        snapshot_number: int = 0,
        ended_written: int = 0,
        limit: Callable[[int, int], int] = tail_of_service,
        policy: str = "",
    ) -> None:
        self._store, self._brain, self._limit, self._policy = store, brain, limit, policy
        self.number = number  # of the last entry
        self._tail = number - snapshot_number
        self._ended = ended_written
        self._operations: Sequence[Operation] = ()
        self._done: Done | None = None
        self.touched: set[str] = set()  # jobs that entries spoke of since somebody looked

    def with_next(self, operations: Sequence[Operation], done: Done | None) -> None:
        self._operations, self._done = operations, done

    def __call__(self, entry: Event | Plan) -> None:
        # before an event the brain has taken in all that is written: the one safe moment
        if not isinstance(entry, Plan):
            state = self._brain.state
            if self._tail >= self._limit(len(state.records), len(state.occupants)):
                self._take_snapshot()
            self._tail += 1
        self.number += 1
        jobs = jobs_of(entry)
        self.touched.update(jobs)
        line = Entry(
            self.number,
            entry.at,
            type(entry).__name__,
            encode(entry),
            () if isinstance(entry, StepsDone) else jobs,
        )
        self._store.write([line], self._operations, self._done)
        self._operations, self._done = (), None

    def _take_snapshot(self) -> None:
        saved = self._brain.state.snapshot(ended_before=self._ended)
        plain = encode_saved(saved)
        plain["ended"] = []
        learned = self._brain.policy.save()
        body = {"version": VERSION, "state": plain, "policy": learned, "by": self._policy}
        rows = [
            {"position": self._ended + i, "job": o.id, "body": json.dumps(encode_saved(o))}
            for i, o in enumerate(saved.ended)
        ]
        body["ended"] = self._ended = self._ended + len(rows)
        text, number = json.dumps(body), self.number

        def keep(connection: sa.Connection) -> None:
            if rows:
                connection.execute(outcomes.insert(), rows)
            connection.execute(snapshots.insert().values(number=number, body=text))
            known = connection.execute(
                sa.select(snapshots.c.number).order_by(snapshots.c.number.desc())
            ).scalars()
            old = list(known)[2:]
            if old:
                connection.execute(snapshots.delete().where(snapshots.c.number.in_(old)))

        self._store.write(operations=[keep])
        self._tail = 0


def jobs_of(entry: Event | Plan) -> tuple[str, ...]:
    """The jobs that an entry speaks of."""
    if isinstance(entry, Plan):
        return tuple(
            dict.fromkeys([*(a.job for a in entry.actions), *entry.notes, *entry.forecasts])
        )
    job: Any = getattr(entry, "job", None)
    if job is None:
        return ()
    return (job if isinstance(job, str) else job.id,)


def begin(store: Store, header: Header) -> Header:
    """The header of this database: written once, and kept."""
    known = _header(store)
    if known is None:
        store.write_now(insert(meta, {"key": HEADER, "value": encode(header)}))
        return header
    return known


def change_header(store: Store, header: Header) -> None:
    """From now on another policy decides; what is logged stays what it was."""
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


def recover(
    store: Store,
    header: Header,
    policy: Policy,
    limit: Callable[[int, int], int] = tail_of_service,
    *,
    before: Header | None = None,
    fresh: Callable[[], Policy] | None = None,
) -> tuple[Brain, Recorder]:
    """The brain as it was, and the recorder that goes on where the log ends.

    `before`: of who was here last. `fresh` makes another policy: what a different one has learned,
    or this one in another version, is of no use, and it learns anew.
    """
    number, ended, state = 0, 0, None
    rows = store.rows(sa.select(snapshots).order_by(snapshots.c.number.desc()).limit(1))
    if rows:
        try:
            body = parse(rows[0].body)
            earlier = store.rows(
                sa.select(outcomes.c.body)
                .where(outcomes.c.position < body["ended"])
                .order_by(outcomes.c.position)
            )
            state = State.restored(
                decode_snapshot(body["state"]), [decode_outcome(parse(r.body)) for r in earlier]
            )
        except (CodecError, KeyError, TypeError) as problem:
            raise WorldError(f"snapshot {rows[0].number} cannot be read: {problem}") from problem
        learned_by = body.get("by", (before or header).policy)
        if learned_by == header.policy:
            policy = _taught(policy, body["policy"], fresh)
        number, ended = rows[0].number, body["ended"]
    brain = Brain(
        header.cluster,
        policy,
        switch_cost=header.switch_cost,
        state=state,
        in_place=header.in_place,
    )
    last = number
    for last, text in store.entries_after(number):
        entry = decode(text)
        if isinstance(entry, Header):
            raise WorldError(f"entry {last} of the log is a header")
        brain.recall(entry)
    recorder = Recorder(
        store,
        brain,
        number=last,
        snapshot_number=number,
        ended_written=ended,
        limit=limit,
        policy=header.policy,
    )
    return brain, recorder


def _taught(policy: Policy, saved: Any, fresh: Callable[[], Policy] | None) -> Policy:  # noqa: ANN401
    try:
        policy.load(saved)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        if fresh is None:
            raise
        what = f"{type(problem).__name__}: {problem}"
        log.warning("policy state not read, the policy learns anew", error=what)
        return fresh()
    return policy
