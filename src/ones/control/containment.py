"""Keeps the scheduler running when an event or a policy raises an exception.

The scheduler is rebuilt from the newest snapshot and the log, as after a restart, so that no event
is half applied. An entry of the log that raises is quarantined: a mark in the log
(`EntryQuarantined`) makes every later reader skip it, and its job fails. A decision that raises or
is invalid leaves the schedule as it is (`PolicyFailed`) and is retried with growing delays. After
several failures in a row `fifo` takes over (`PolicyReplaced`) until the service is restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control import logs
from ones.control.live.jobs import NOW
from ones.control.live.live_state import LiveState
from ones.control.recorder import EntryError, Recorder, jobs_of, recover, tail_of_service
from ones.control.schema import log as run_log
from ones.control.store import Store
from ones.core import events as ev
from ones.core.job import JobId
from ones.core.plan import Plan
from ones.core.policy import Policy
from ones.core.scheduler import Scheduler
from ones.errors import BrokenPolicyError, WorldError, described
from ones.runlog import Header, decode

FALLBACK = "fifo"
#: failed decisions in a row after which the fallback takes over
MOST_FAILURES = 5
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
#: a policy that raises for more entries while the log is read is replaced
MOST_POLICY_MARKS = 20
#: if more entries of the log raise, the database counts as damaged
MOST_MARKS = 1000

#: measurements of a job: if one makes the policy raise, the state skips it as well. Other events
#: change which job is on which GPU, and the state must keep them
REPORTS = frozenset(
    {
        ev.JobDescribed,
        ev.StepsDone,
        ev.EpochFinished,
        ev.ThroughputMeasured,
        ev.MemoryLimitLearned,
    }
)

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    scheduler: Scheduler
    recorder: Recorder
    policy: str  # the policy that has read the log
    marks: tuple[ev.EntryQuarantined, ...] = ()  # marks that the log does not have yet


class Containment:
    """The scheduler and its recorder, repaired after exceptions. `make`: a new policy by name."""

    def __init__(
        self,
        store: Store,
        header: Header,
        make: Callable[[str], Policy],
        tail: Callable[[int, int], int] = tail_of_service,
        *,
        before: Header | None = None,
    ) -> None:
        self._store, self._header, self._make, self._before = store, header, make, before
        self._tail = tail
        self._live: LiveState | None = None
        self._failures = 0
        self._decisions = 0  # number of decisions at the last failure; higher: it has recovered
        self.policy = header.policy  # the policy that decides now
        self.failing = ""  # warning that another policy decides; empty: none
        self._why = ""
        #: the log ends with another policy, which took over after failures
        self.returned = _last_policy(store) not in (None, self.policy)
        found = self._recover()
        self.scheduler, self.recorder = found.scheduler, found.recorder
        self.scheduler.tolerate, self.scheduler.make_policy = self.tolerate, make
        self._marks = found.marks
        if found.policy != self.policy:
            self._use(found.policy, "it raised while the run log was read")

    def attach(self, live: LiveState) -> None:
        """Emit the events that recovery found; to be called before the loop starts."""
        self._live = live
        if self.policy != self._header.policy:
            self._emit_replaced(self._why)
        elif self.returned:
            self._emit_replaced("the service was restarted")
        for mark in reversed(self._marks):
            live.emit_first(mark)
        self._marks = ()

    def contain(self, event: ev.Event, problem: Exception) -> Plan:
        """Repair the scheduler after an event raised, and return the plan that is due."""
        assert self._live is not None
        if type(event) in ev.OWN_EVENTS:
            raise problem  # these events come from repairs: another repair could go on without end
        kind = type(event).__name__
        log.error("event raised", kind=kind, error=described(problem), exc_info=problem)
        logged = self.recorder.last_event is event
        self._store.flush()
        found = self._rebuild()
        if not logged:
            self._live.emit_first(_mark(0, event, problem))
        elif not found.marks:
            # the log can be read: the plan failed, or the failure does not repeat
            self.scheduler.wake_at = self.tolerate(problem)
        self._live.post(self._live.free_missing)
        try:
            return self.scheduler.resume()
        except Exception as again:
            log.exception("due plan raised", error=described(again))
            self._use(FALLBACK, described(again))
            self._rebuild()
            self._emit_replaced(self._why)
            return self.scheduler.resume()

    def tolerate(self, problem: Exception) -> float:
        """Handle a failed decision. Returns the time at which the policy is asked again."""
        if self.scheduler.decisions != self._decisions:
            self._failures, self._decisions = 0, self.scheduler.decisions
        self._failures += 1
        delay = min(FIRST_RETRY_SECONDS * 2 ** (self._failures - 1), LONGEST_RETRY_SECONDS)
        retry_at: float = self.scheduler.state.now + delay
        reason = str(problem) if isinstance(problem, BrokenPolicyError) else described(problem)
        log.error("policy failed", policy=self.policy, failures=self._failures, error=reason)
        policy = self.policy
        if self._failures >= MOST_FAILURES and policy != FALLBACK:
            self._use(FALLBACK, f"{self._failures} failures in a row: {reason}")
            self._emit_replaced(self._why)
        failed = ev.PolicyFailed(
            at=NOW,
            policy=policy,
            reason=reason,
            failures=self._failures,
            retry_at=retry_at,
        )
        if self._live is not None:
            self._live.emit_first(failed)
        return retry_at

    def _use(self, policy: str, why: str) -> None:
        self.failing = f"policy {self.policy} failed; {policy} decides instead until a restart"
        self._why = why
        self.policy = self.recorder.policy = policy

    def _emit_replaced(self, why: str) -> None:
        assert self._live is not None
        self._live.emit_first(ev.PolicyReplaced(at=NOW, policy=self.policy, reason=why))

    def _rebuild(self) -> Recovered:
        found = self._recover()
        self.scheduler.take_over(found.scheduler)
        if found.policy != self.policy:
            self._use(found.policy, "it raised while the run log was read")
            self._emit_replaced(self._why)
        assert self._live is not None
        for mark in reversed(found.marks):
            self._live.emit_first(mark)
        return found

    def _recover(self) -> Recovered:
        """Read snapshot and log. Entries that raise are quarantined, one after the other."""
        policy = self.policy
        marks: dict[int, ev.EntryQuarantined] = {}
        while True:
            try:
                scheduler, recorder = recover(
                    self._store,
                    replace(self._header, policy=policy),
                    self._make(policy),
                    self._tail,
                    before=self._before,
                    fresh=partial(self._make, policy),
                    skipped={number: mark.policy_only for number, mark in marks.items()},
                )
            except EntryError as failed:
                log.exception("entry quarantined", entry=failed.number, error=str(failed))
                marks[failed.number] = _mark(failed.number, failed.entry, failed.problem)
            else:
                return Recovered(scheduler, recorder, policy, tuple(marks.values()))
            if sum(mark.policy_only for mark in marks.values()) > MOST_POLICY_MARKS:
                policy = FALLBACK
                marks = {number: mark for number, mark in marks.items() if not mark.policy_only}
            if len(marks) > MOST_MARKS:
                raise WorldError(
                    f"more than {MOST_MARKS} entries of the run log raise errors: the database is"
                    " damaged; restore it from a backup"
                )


def _last_policy(store: Store) -> str | None:
    query = sa.select(run_log.c.entry).where(run_log.c.kind == ev.PolicyReplaced.__name__)
    rows = store.rows(query.order_by(run_log.c.number.desc()).limit(1))
    entry = decode(rows[0].entry) if rows else None
    return entry.policy if isinstance(entry, ev.PolicyReplaced) else None


def _mark(number: int, entry: ev.Event | Plan | None, problem: Exception) -> ev.EntryQuarantined:
    in_policy = isinstance(problem, BrokenPolicyError)
    jobs = () if entry is None or isinstance(entry, Plan) else jobs_of(entry)
    return ev.EntryQuarantined(
        at=NOW,
        entry=number,
        kind="an unreadable entry" if entry is None else type(entry).__name__,
        reason=str(problem) if in_policy else described(problem),
        job=JobId(jobs[0]) if jobs else None,
        policy_only=in_policy and type(entry) not in REPORTS,
    )
