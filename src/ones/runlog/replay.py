"""Replays a recorded run with a new scheduler: the same policy must give equal plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from ones.core.events import Event, PolicyFailed
from ones.core.plan import Plan
from ones.core.policy import Policy
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.errors import BrokenEngineError, InvalidFileError
from ones.runlog.encoding import encode
from ones.runlog.files import RunLog


@dataclass(frozen=True, slots=True)
class Difference:
    line: int
    recorded: str | None  # None: the log has no plan here
    replayed: str | None  # None: the replay made none here


@dataclass(frozen=True, slots=True)
class Replay:
    events: int
    plans: int
    difference: Difference | None  # the first one; later entries were not compared
    open_end: bool = False  # the log ends before the plan that follows its last event


def replay(
    log: RunLog,
    policy: Policy,
    progress: Callable[[int], None] = lambda events: None,
    make: Callable[[str], Policy] | None = None,
) -> Replay:
    """Feed the log's events to a new scheduler and compare its plans with the recorded ones.

    A log that ends with an event, as after a crash or Ctrl-C, may lack the plan for it; that plan
    is not compared. Quarantined entries are skipped as in the run. A decision that raises is an
    error unless the log has a `PolicyFailed` for it. `make` returns the policy of a
    `PolicyReplaced`, by name.
    """
    header = log.header
    scheduler = Scheduler(
        header.cluster,
        policy,
        switch_cost=header.switch_cost,
        state=None if header.state is None else State.restored(header.state),
        in_place=header.in_place,
    )
    if header.learned is not None:
        policy.load(header.learned)
    failures = _Failures()
    scheduler.tolerate, scheduler.make_policy = failures, make
    skipped = log.quarantined()
    events = plans = 0
    made: Plan | None = None  # after the last event, not yet found in the log
    for line, text, entry in log.lines():
        if isinstance(entry, Plan):
            if made is None or not _equal(entry, made):
                return Replay(
                    events, plans, Difference(line, text, None if made is None else encode(made))
                )
            made = None
            plans += 1
            continue
        if made is not None:
            return Replay(events, plans, Difference(line, None, encode(made)))
        failures.compare(entry)
        policy_only = skipped.get(log.number_of(line))
        if policy_only is False:
            continue
        try:
            if policy_only:
                scheduler.recall(entry, observed=False)
                plan = scheduler.resume()
            else:
                plan = scheduler.handle(entry)
        except BrokenEngineError as problem:
            raise InvalidFileError(log.path, str(problem), line=line) from problem
        made = None if plan.says_nothing else plan
        events += 1
        progress(events)
    failures.compare(None)
    return Replay(events, plans, None, open_end=made is not None)


class _Failures:
    """Checks that a `PolicyFailed` in the log follows every event with a raising decision."""

    def __init__(self) -> None:
        self._problem: Exception | None = None

    def __call__(self, problem: Exception) -> float:
        self._problem = problem
        return inf

    def compare(self, entry: Event | None) -> None:
        problem, self._problem = self._problem, None
        if problem is not None and not isinstance(entry, PolicyFailed):
            raise problem


def _equal(recorded: Plan, made: Plan) -> bool:
    """Whether both plans are equal by value, or by text (a forecast of nan equals itself)."""
    return recorded == made or encode(recorded) == encode(made)
