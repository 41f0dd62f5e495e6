"""Play a recorded run to a fresh brain: the same policy must give the same plans, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ones.core.brain import Brain
from ones.core.plan import Plan
from ones.core.policy import Policy
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
    difference: Difference | None  # the first one; nothing after it was looked at


def replay(
    log: RunLog, policy: Policy, progress: Callable[[int], None] = lambda events: None
) -> Replay:
    """Feed the log's events to a fresh brain and compare its plans with the recorded ones.

    If the log is cut off after an event, the plan for that event cannot be compared.
    """
    brain = Brain(log.header.cluster, policy, switch_cost=log.header.switch_cost)
    events = plans = 0
    made: str | None = None  # by the last event, not yet met in the log
    line = 1
    for line, text, entry in log.lines():
        if isinstance(entry, Plan):
            if made != text:
                return Replay(events, plans, Difference(line, text, made))
            made = None
            plans += 1
            continue
        if made is not None:
            return Replay(events, plans, Difference(line, None, made))
        plan = brain.handle(entry)
        made = None if plan.says_nothing else encode(plan)
        events += 1
        progress(events)
    if made is not None and not log.cut_off:
        return Replay(events, plans, Difference(line + 1, None, made))
    return Replay(events, plans, None)
