"""The engine interface, and the loop that runs scheduler and engine together.

There are three engines: the simulator (virtual time), the live engine (real time) and a scripted
one for tests. The loop treats all alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ones.core.events import Event, Woke
from ones.core.plan import Plan
from ones.core.scheduler import Scheduler


class Delivered(NamedTuple):
    """An event, the rows to store in the same transaction, and a callback for when both are on
    disk."""

    event: Event
    rows: Sequence[Any] = ()
    done: Callable[[Exception | None], None] | None = None


class Engine(Protocol):
    """Carries out plans and reports events, each with the time of the engine's clock.

    An engine must guarantee:

    * the times of its events never decrease;
    * `Start` is answered by `WorkerReady` for every worker, or `RescaleFailed`;
      `Rescale` by `Rescaled` or `RescaleFailed`; `Stop` by `WorkerLeft` for every worker;
      `Finish` by `JobEnded`;
    * a worker's GPU is free from `WorkerLeft`, `WorkerLost` or `NodeDown` on, not before;
    * `JobEnded` comes before the `WorkerLeft` of its workers;
    * after `WorkerLost` the other workers re-form and report `Rescaled` with the next incarnation;
    * only a `Finish` or a loss may come while another order is being carried out;
    * an order for a job is ignored once the `JobEnded` of the job is on its way.
    """

    def carry_out(self, plan: Plan) -> None:
        """Start to carry out a plan and return at once. Results and failures arrive as events."""

    def next_event(self, until: float) -> Event | Delivered | None:
        """The next event; `Woke(until)` if there is none by then; None if no more can come."""
        ...


def drive(
    scheduler: Scheduler,
    engine: Engine,
    record: Callable[..., None],
    contain: Callable[[Event, Exception], Plan] | None = None,
) -> None:
    """Run scheduler and engine until the engine has no more events.

    `record` gets every event and plan before it takes effect; for a `Delivered` event it also gets
    the rows and the callback. `contain` is called with an event and the exception that it caused,
    repairs the scheduler and returns the plan that is due; without it the exception propagates.
    """

    def act(plan: Plan) -> None:
        if not plan.says_nothing:
            record(plan)
            if plan.actions:
                engine.carry_out(plan)

    act(scheduler.resume())  # actions that a crash left undone
    while (given := engine.next_event(until=scheduler.wake_at)) is not None:
        event, *attached = given if isinstance(given, Delivered) else (given,)
        try:
            record(event, *attached)
            act(scheduler.handle(event))
        except Exception as problem:
            if contain is None:
                raise
            act(contain(event, problem))


class ScriptedEngine:
    """Plays a list of events and keeps the plans that it gets; for tests.

    Events are played in order of time. An entry may also be a function of the plans so far that
    returns the event: a script needs it to name the generation that a report answers.
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
