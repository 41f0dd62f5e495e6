"""A body for the brain, and the one loop that turns both.

There are two kinds of engine, one in virtual time and one in real time, and a third
that plays a script for tests. The loop cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ones.core.brain import Brain
from ones.core.events import Event, Woke
from ones.core.plan import Plan


class Engine(Protocol):
    """Carries plans out, and says what happened. Time is whatever the engine says it is.

    What an engine owes the core:

    * times never go back;
    * `Start` is answered by `WorkerReady` for every worker, or `RescaleFailed`;
      `Rescale` by `Rescaled` or `RescaleFailed`; `Stop` by `WorkerLeft` for every worker;
      `Finish` by `JobEnded`;
    * a worker's GPU is free from `WorkerLeft`, `WorkerLost` or `NodeDown` on, not before;
    * `JobEnded` comes before the `WorkerLeft` of its workers;
    * after `WorkerLost` those who remain re-form and report `Rescaled` with the next incarnation;
    * a `Finish` or a loss may come while another order is being carried out; nothing else does;
    * an order for a job whose `JobEnded` is already on its way is ignored.
    """

    def carry_out(self, plan: Plan) -> None:
        """Begin, and return at once: what comes of it arrives as events, failures too."""

    def next_event(self, until: float) -> Event | None:
        """The next event; `Woke(until)` if there is none by then; None once none can come."""
        ...


def drive(
    brain: Brain,
    engine: Engine,
    record: Callable[[Event | Plan], None],
    contain: Callable[[Event, Exception], Plan] | None = None,
) -> None:
    """Run until the engine is done. Virtual or real time, it is the same loop.

    `contain` is called with an event and the exception that it caused, repairs the brain and
    returns the plan that is due; without it the exception propagates.
    """

    def act(plan: Plan) -> None:
        if not plan.says_nothing:
            record(plan)
            if plan.actions:
                engine.carry_out(plan)

    act(brain.resume())  # what a crash left undone; a fresh brain has nothing
    while (event := engine.next_event(until=brain.wake_at)) is not None:
        try:
            record(event)  # before acting on it: after a crash the log is what we know
            act(brain.handle(event))
        except Exception as problem:
            if contain is None:
                raise
            act(contain(event, problem))


class ScriptedEngine:
    """Plays a list of events and keeps the plans it is given. For tests; public, like the loop.

    Events are played in order of time; an event may also be a function of the plans so far, so
    that a script can name the generation it answers.
    """

    def __init__(self, script: Iterable[Event | Callable[[list[Plan]], Event]]) -> None:
        self.plans: list[Plan] = []
        self._script = list(script)
        self._next: Event | None = None

    def carry_out(self, plan: Plan) -> None:
        self.plans.append(plan)

    def next_event(self, until: float) -> Event | None:
        if self._next is None:
            if not self._script:
                return None
            entry = self._script.pop(0)
            self._next = entry(self.plans) if callable(entry) else entry
        if until < self._next.at:
            return Woke(until)
        event, self._next = self._next, None
        return event
