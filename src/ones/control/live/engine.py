"""LiveEngine: the second body of the brain. Real time, real processes.

All its state belongs to the brain's thread. Others (HTTP handlers, the launcher's
thread) hand over stimuli, small functions that are run there and may give events. An
event goes out with what must be written beside it and who waits for that to be safe.
"""

from __future__ import annotations

import logging
import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from msgspec.structs import replace

from ones.control import logs
from ones.control.heartbeat import Heartbeat
from ones.control.live import nodes
from ones.control.live.asides import used
from ones.control.live.departures import exited, started
from ones.control.live.floor import Floor, Surroundings
from ones.control.live.jobs import NOW, job_of
from ones.control.live.orders import begin
from ones.control.live.watch import look_round
from ones.control.store import Done, Operation
from ones.core import events as ev
from ones.core.brain import Brain
from ones.core.cluster import NodeId
from ones.core.plan import Plan
from ones.core.state import State
from ones.launchers import (
    Exited,
    LauncherEvent,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    SlotUsed,
    Started,
)

__all__ = ["LiveEngine", "Surroundings"]

TICK_SECONDS = 1.0
#: so long may what is shown be behind while reports keep coming
SHOW_SECONDS = 0.2

log = logs.logger(__name__)


class LiveEngine(Floor):
    """`changed` is told, in the brain's thread, which jobs are not what they were."""

    def __init__(
        self,
        brain: Brain,
        around: Surroundings,
        changed: Callable[[State, set[str]], None] = lambda state, jobs: None,
    ) -> None:
        super().__init__(brain, around)
        self._changed = changed
        self.heartbeat = Heartbeat("scheduler", self.clock.monotonic)
        self._stopping = False
        self._shown = self.state.cluster
        self._shown_at = 0.0
        self._next_tick = 0.0
        self._began = 0.0
        self.decision_seconds: deque[float] = deque(maxlen=256)  # event to orders given

    # from other threads

    def tell(
        self, event: ev.Event, operations: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """Something happened; its time is that of its receipt."""
        self.post(lambda: self.say(event, operations, done))

    def on_launcher(self, event: LauncherEvent) -> None:
        match event:
            case Started():
                self.post(lambda: started(self, event.id), job_of(event.id))
            case Exited():
                self.post(lambda: exited(self, event.id, event.exit), job_of(event.id))
            case SlotUsed():
                self.post(lambda: used(self, event.slot))
            case SlotUp():
                self.post(lambda: nodes.came(self, NodeId(event.slot.node)))
            case SlotEnding():
                self.post(lambda: nodes.ending(self, event.slot))
            case SlotLost():
                self.post(lambda: nodes.lost(self, event.slot))
            case SlotSuspect():
                pass  # it stays its owner's until it is well again or lost

    def stop(self) -> None:
        """`next_event` gives None from now on: the loop ends, the workers go on."""
        self.post(self._stop_loop)

    def _stop_loop(self) -> None:
        self._stopping = True

    def wind_down(self) -> None:
        """All workers save their work and go, and nobody new comes: the machine is to be free."""
        for node in self.state.cluster.nodes:
            self.tell(ev.NodeDraining(NOW, node))
        self.post(self._send_all_away)

    def _send_all_away(self) -> None:
        self.winding_down = True
        for job in self.jobs.values():
            for worker in job.workers.values():
                patience = self.patience
                seconds = patience.checkpoint_seconds if worker.joined else patience.grace_seconds
                self.launcher.stop(worker.launch, seconds)

    # the two sides of an engine

    def next_event(self, until: float) -> ev.Event | None:
        if self.clock.monotonic() - self._shown_at > SHOW_SECONDS:
            self.show_changes()
        while not self.out:
            if self._inbox.empty():
                self.show_changes()
            if self._stopping:
                return None
            now = self.clock.now()
            if now >= self._next_tick:
                look_round(self, now)
                self._next_tick = now + TICK_SECONDS
                continue
            if until <= now:
                return ev.Woke(max(now, self.state.now))
            busy = any(job.workers or job.quiet for job in self.jobs.values())
            rest = min(until, self._next_tick if busy else inf) - now
            self.heartbeat.waiting()
            try:
                stimulus = self._inbox.get(timeout=min(rest, 3600.0))
            except queue.Empty:
                continue
            finally:
                self.heartbeat.working()
            stimulus()
        self.heartbeat.working()
        outgoing = self.out.popleft()
        if self._is_void(outgoing.event):
            return self.next_event(until)
        self.recorder.with_next(outgoing.operations, outgoing.done)
        self._began = self.clock.monotonic()
        # never before the last event, whatever the clock says: the state would refuse it
        return _stamped(outgoing.event, max(self.clock.now(), self.state.now))

    def _is_void(self, event: ev.Event) -> bool:
        """Of several workers that are gone, all were to be told; a plan that was made after the
        first has put another worker where a later one was. That GPU is not free."""
        if not isinstance(event, ev.WorkerLeft | ev.WorkerLost):
            return False
        job = self.jobs.get(event.job)
        return job is not None and job.on(event.gpu) is not None

    def carry_out(self, plan: Plan) -> None:
        # the plan must be known to whoever comes after us before anything of it is done
        self.store.flush()
        for action in plan.actions:
            self.guarded(partial(begin, self, action, plan.number), action.job)
        if plan.actions and log.isEnabledFor(logging.DEBUG):
            counts = Counter(type(action).__name__.lower() for action in plan.actions)
            log.debug("plan adopted", plan=plan.number, **counts)
        self.decision_seconds.append(self.clock.monotonic() - self._began)

    def show_changes(self) -> None:
        """In the brain's thread. As soon as there is nothing else to do; under load all that
        happened in a while at once."""
        self._shown_at = self.clock.monotonic()
        touched, self.recorder.touched = self.recorder.touched, set()
        if touched or self.state.cluster is not self._shown:
            self._shown = self.state.cluster
            self.guarded(partial(self._changed, self.state, touched), None)


def _stamped(event: ev.Event, at: float) -> ev.Event:
    if isinstance(event, ev.JobSubmitted):
        return ev.JobSubmitted(at, replace(event.job, submitted_at=at))
    return replace(event, at=at)
