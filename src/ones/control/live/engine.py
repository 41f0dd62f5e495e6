"""LiveEngine: the engine of the service, in real time and with real processes.

Its state belongs to the scheduler's thread. Other threads (HTTP handlers, the launcher) post tasks:
functions that run there and may emit events. An event is delivered with the rows that must be
written in the same transaction and a `done` callback for after the commit.
"""

from __future__ import annotations

import logging
import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

from msgspec.structs import replace

from ones.control import logs
from ones.control.heartbeat import Heartbeat
from ones.control.live.action_runner import ActionRunner
from ones.control.live.cordons import Cordons
from ones.control.live.deadlines import DeadlineChecker
from ones.control.live.exits import ExitHandler
from ones.control.live.jobs import NOW, job_of
from ones.control.live.kept_reports import handle_kept, read_kept
from ones.control.live.live_state import EngineDeps, LiveState
from ones.control.live.node_events import NodeEvents
from ones.control.live.report_handlers import ReportHandler
from ones.control.persistence import Done
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.engine import Delivered
from ones.core.plan import Plan
from ones.core.scheduler import Scheduler
from ones.core.state import State
from ones.launchers import (
    Exited,
    LauncherEvent,
    Sampled,
    SlotEnding,
    SlotLost,
    SlotSuspect,
    SlotUp,
    SlotUsed,
    Started,
)
from ones.wire import Reports

TICK_SECONDS = 1.0
#: maximum age of the read models while reports keep coming
SHOW_SECONDS = 0.2

log = logs.logger(__name__)


class LiveEngine:
    """Delivers events to the scheduler and carries out its plans with real processes.

    `changed` is called in the scheduler's thread with the jobs that have changed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        deps: EngineDeps,
        changed: Callable[[State, set[str]], None] = lambda state, jobs: None,
    ) -> None:
        self.live = live = LiveState(scheduler, deps)
        self.cordons = Cordons(live)
        self.runner = ActionRunner(live)
        self.exits = ExitHandler(live, self.runner, self.cordons)
        self.reports = ReportHandler(live, self.runner, self.exits, self.cordons.health)
        self.nodes = NodeEvents(live, self.runner, self.cordons)
        self._deadlines = DeadlineChecker(live, self.runner, self.exits)
        self._recorder = deps.recorder
        self._changed = changed
        self.heartbeat = Heartbeat("scheduler", live.clock.monotonic)
        self._stopping = False
        self._shown = live.state.cluster
        self._shown_at = 0.0
        self.next_tick = 0.0
        self._began = 0.0
        self.decision_seconds: deque[float] = deque(maxlen=256)  # event to actions begun

    # from other threads

    def tell(
        self, event: ev.Event, operations: Sequence[Any] = (), done: Done | None = None
    ) -> None:
        """Post an event; its time is the time of its receipt."""
        self.live.post(lambda: self.live.emit(event, operations, done))

    def report(self, message: Reports, done: Done) -> None:
        """Post the reports of a worker; `done` is called when they are stored."""
        self.live.post(lambda: self.reports.handle(message, done))

    def on_launcher(self, event: LauncherEvent) -> None:
        post, nodes = self.live.post, self.nodes
        match event:
            case Started():
                post(lambda: self.exits.started(event.id), job_of(event.id))
            case Exited():
                kept = read_kept(self.live.launcher, event.id)
                post(partial(self._exited, event, kept), job_of(event.id))
            case SlotUsed():
                post(lambda: self.cordons.slot_used(event.slot))
            case SlotUp():
                post(lambda: nodes.slot_up(NodeId(event.slot.node)))
            case SlotEnding():
                post(lambda: nodes.slot_ending(event.slot))
            case SlotLost():
                post(lambda: nodes.slot_lost(event.slot))
            case Sampled():
                pass  # only shown: see `control.utilisation`
            case SlotSuspect():
                pass  # the job keeps the slot until the slot recovers or is lost

    def _exited(self, event: Exited, kept: bytes) -> None:
        if not kept:
            self.exits.exited(event.id, event.exit)
            return
        handle_kept(self.live, self.reports, event.id, kept)
        exited = partial(self.exits.exited, event.id, event.exit)
        self.live.next_tasks.append(partial(self.live.guarded, exited, job_of(event.id)))

    def stop(self) -> None:
        """End the loop; the workers continue."""
        self.live.post(self._stop_loop)

    def _stop_loop(self) -> None:
        self._stopping = True

    def wind_down(self) -> None:
        """All workers save and leave, and no worker starts any more."""
        for node in self.live.state.cluster.nodes:
            self.tell(ev.NodeDraining(NOW, node))
        self.live.post(self._stop_workers)

    def _stop_workers(self) -> None:
        timeouts = self.live.timeouts
        self.live.winding_down = True
        for job in self.live.jobs.values():
            for worker in job.workers.values():
                seconds = timeouts.checkpoint_seconds if worker.joined else timeouts.grace_seconds
                self.live.launcher.stop(worker.launch, seconds)

    # the two sides of an engine

    def next_event(self, until: float) -> Delivered | None:
        live = self.live
        self._recorder.touched.update(live.state.released)
        if live.clock.monotonic() - self._shown_at > SHOW_SECONDS:
            self.show_changes()
        while True:
            while live.out:
                self.heartbeat.working()
                delivered = live.out.popleft()
                if not self._is_void(delivered.event):
                    self._began = live.clock.monotonic()
                    # the state refuses an event before the last one, also if the clock was set back
                    at = max(live.clock.now(), live.state.now)
                    return delivered._replace(event=_stamped(delivered.event, at))
            if live.next_tasks:
                live.next_tasks.popleft()()
                continue
            if live.inbox.empty():
                self.show_changes()
            if self._stopping:
                return None
            now = live.clock.now()
            if now >= self.next_tick:
                self._deadlines.check(now)
                self.next_tick = now + TICK_SECONDS
            elif until <= now:
                return Delivered(ev.Woke(max(now, live.state.now)))
            else:
                self._wait(until, now)

    def _wait(self, until: float, now: float) -> None:
        """Run the next task from another thread, if one comes in time."""
        busy = any(job.workers or job.quiet for job in self.live.jobs.values())
        rest = min(until, self.next_tick if busy else inf) - now
        self.heartbeat.waiting()
        try:
            task = self.live.inbox.get(timeout=min(rest, 3600.0))
        except queue.Empty:
            return
        finally:
            self.heartbeat.working()
        task()

    def _is_void(self, event: ev.Event) -> bool:
        """Whether the GPU of a gone worker has another worker of the job by now.

        Several workers may be gone, each with its event. A plan made after the first event may
        have started a worker on the GPU of a later event: that GPU is not free.
        """
        if not isinstance(event, ev.WorkerLeft | ev.WorkerLost):
            return False
        job = self.live.jobs.get(event.job)
        return job is not None and job.on(event.gpu) is not None

    def carry_out(self, plan: Plan) -> None:
        live = self.live
        # after a crash the next controller must know the plan before any of it was done
        live.store.flush()
        for action in plan.actions:
            live.guarded(partial(self.runner.begin, action, plan.number), action.job)
        if plan.actions and log.isEnabledFor(logging.DEBUG):
            counts = Counter(type(action).__name__.lower() for action in plan.actions)
            log.debug("plan adopted", plan=plan.number, **counts)
        self.decision_seconds.append(live.clock.monotonic() - self._began)

    def show_changes(self) -> None:
        """Update the read models. To be called in the scheduler's thread."""
        live = self.live
        self._shown_at = live.clock.monotonic()
        touched, self._recorder.touched = self._recorder.touched, set()
        if touched or live.state.cluster is not self._shown:
            self._shown = live.state.cluster
            live.guarded(partial(self._changed, live.state, touched), None)


def _stamped(event: ev.Event, at: float) -> ev.Event:
    if isinstance(event, ev.JobSubmitted):
        return ev.JobSubmitted(at, replace(event.job, submitted_at=at))
    return replace(event, at=at)
