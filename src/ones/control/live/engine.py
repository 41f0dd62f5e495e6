"""LiveEngine: the second body of the brain. Real time, real processes.

All its state belongs to the brain's thread. Others (HTTP handlers, the launcher's
thread) hand over stimuli, small functions that are run there and may give events. An
event goes out with what must be written beside it and who waits for that to be safe.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import sqlalchemy as sa

from ones.control.clock import Clock
from ones.control.live.jobs import NOW, Kind, LiveJob, LiveWorker, Pending, launch_id
from ones.control.live.mailbox import Mailbox
from ones.control.live.patience import Patience
from ones.control.recorder import Recorder
from ones.control.schema import heard
from ones.control.store import Done, Operation, Store
from ones.control.tokens import JobTokens
from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import EndReason, Generation, JobId
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.schedule import Allocation
from ones.core.state import State
from ones.exec import Exit
from ones.launchers import Exited, Launch, Launcher, LauncherEvent, Started
from ones.wire import messages as wire
from ones.wire.environment import WorkerEnvironment

TICK_SECONDS = 1.0
Stimulus = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Outgoing:
    event: ev.Event
    operations: Sequence[Operation] = ()
    done: Done | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the engine works with."""

    store: Store
    recorder: Recorder
    launcher: Launcher
    clock: Clock
    tokens: JobTokens
    url: str  # where workers reach the service
    checkpoints: Path
    patience: Patience = field(default_factory=Patience)


class LiveEngine:
    """`changed` is told, in the brain's thread, which jobs are not what they were."""

    def __init__(
        self,
        state: State,
        around: Surroundings,
        changed: Callable[[State, set[str]], None] = lambda state, jobs: None,
    ) -> None:
        self._state = state
        self._store, self._recorder = around.store, around.recorder
        self._launcher, self._clock, self._tokens = around.launcher, around.clock, around.tokens
        self._url, self._checkpoints = around.url, around.checkpoints
        self._patience = around.patience
        self._changed = changed
        self._inbox: queue.SimpleQueue[Stimulus] = queue.SimpleQueue()
        self._out: deque[_Outgoing] = deque()
        self._stopping = False
        self._winding_down = False
        self._next_tick = 0.0
        self._began = 0.0
        self.jobs: dict[JobId, LiveJob] = {}
        self.mailbox = Mailbox()
        self.last_word: dict[str, float] = {}  # launch -> when it called last; by the server
        self.decision_seconds: deque[float] = deque(maxlen=256)  # event to orders given

    # from other threads

    def post(self, stimulus: Stimulus) -> None:
        """To be run in the brain's thread, soon."""
        self._inbox.put(stimulus)

    def tell(
        self, event: ev.Event, operations: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """Something happened; its time is that of its receipt."""
        self.post(lambda: self.say(event, operations, done))

    def on_launcher(self, event: LauncherEvent) -> None:
        match event:
            case Started():
                self.post(lambda: self.started(event.id))
            case Exited():
                self.post(lambda: self.exited(event.id, event.exit))
            case _:
                pass  # slots of this machine neither come nor go

    def stop(self) -> None:
        """`next_event` gives None from now on: the loop ends, the workers go on."""
        self.post(self._stop_loop)

    def _stop_loop(self) -> None:
        self._stopping = True

    def wind_down(self) -> None:
        """All workers save their work and go, and nobody new comes: the machine is to be free."""
        for node in self._state.cluster.nodes:
            self.tell(ev.NodeDraining(NOW, node))
        self.post(self._send_all_away)

    def _send_all_away(self) -> None:
        self._winding_down = True
        for job in self.jobs.values():
            for worker in job.workers.values():
                patience = self._patience
                seconds = patience.checkpoint_seconds if worker.joined else patience.grace_seconds
                self._launcher.stop(worker.launch, seconds)

    # the two sides of an engine

    def next_event(self, until: float) -> ev.Event | None:
        self._show_changes()
        while not self._out:
            if self._stopping:
                return None
            now = self._clock.now()
            if now >= self._next_tick:
                self._tick(now)
                self._next_tick = now + TICK_SECONDS
                continue
            if until <= now:
                return ev.Woke(now)
            busy = any(job.workers or job.quiet for job in self.jobs.values())
            rest = min(until, self._next_tick if busy else inf) - now
            try:
                stimulus = self._inbox.get(timeout=min(rest, 3600.0))
            except queue.Empty:
                continue
            stimulus()
        outgoing = self._out.popleft()
        self._recorder.with_next(outgoing.operations, outgoing.done)
        self._began = time.perf_counter()
        return _stamped(outgoing.event, self._clock.now())

    def carry_out(self, plan: Plan) -> None:
        # the plan must be known to whoever comes after us before anything of it is done
        self._store.flush()
        for action in plan.actions:
            self.begin(action, plan.number)
        self.decision_seconds.append(time.perf_counter() - self._began)

    def say(
        self, event: ev.Event, operations: Sequence[Operation] = (), done: Done | None = None
    ) -> None:
        """In the brain's thread: an event, what is written with it, and who waits for that."""
        self._out.append(_Outgoing(event, operations, done))

    def _show_changes(self) -> None:
        touched, self._recorder.touched = self._recorder.touched, set()
        if touched:
            self._changed(self._state, touched)

    # orders

    def begin(self, action: Action, plan: int) -> None:
        job = self.jobs.get(action.job)
        if job is None or job.ended:
            return  # it has ended in the meantime, and its `JobEnded` is on its way
        match action:
            case Start():
                job.generation = Generation(plan)
                self._gather(job, Kind.START, plan, action.allocation)
            case Rescale():
                if job.elastic:
                    self._gather(job, Kind.RESCALE, plan, action.allocation)
                else:
                    why = "it cannot be re-scaled: its script has not called ones.join"
                    self.say(ev.RescaleFailed(NOW, job.id, Generation(plan), why))
            case Stop():
                self._stop_job(job, plan)
            case Finish():
                self._finish(job, plan, action.reason, action.message)
            case Prepare() | Withdraw():
                pass  # a zygote warms up with the first worker; there is nothing to do earlier

    def _gather(self, job: LiveJob, kind: Kind, plan: int, allocation: Allocation) -> None:
        """Start who is missing; once all have joined, they get their `Switch`."""
        deadline = self._clock.now() + self._patience.join_seconds
        job.pending = Pending(kind, plan, allocation, deadline=deadline)
        present = job.present()
        missing = [gpu for gpu in allocation.gpus if gpu not in present]
        if job.elastic:
            for gpu in missing:
                self._launch(job, plan, (gpu,))
            self.publish_if_all_joined(job)
        elif missing:
            job.pending.deadline = inf
            self._launch(job, plan, tuple(missing))

    def _launch(self, job: LiveJob, plan: int, gpus: tuple[Gpu, ...]) -> None:
        if self._winding_down:
            return  # the order stands in the log: it is begun again when the service is
        launch = launch_id(job.id, plan, gpus)
        submission = job.submission
        env = dict(submission.env)
        if job.elastic:
            env |= WorkerEnvironment(
                controller=self._url,
                token=self._tokens.of(job.id),
                job=job.id,
                worker=str(gpus[0]),
                plan=plan,
                run_dir="",  # these two are the launcher's to say
                job_dir="",
                checkpoints=str(self._checkpoints / job.id),
            ).to_env()
        job.workers[launch] = LiveWorker(launch, gpus, plan)
        self._launcher.launch(
            Launch(
                id=launch,
                job=job.id,
                slots=tuple(map(str, gpus)),
                argv=submission.argv,
                cwd=submission.cwd,
                env=env,
                grace_seconds=self._patience.grace_seconds,
                zygote=job.elastic and submission.elastic is True,
            )
        )

    def publish_if_all_joined(self, job: LiveJob) -> None:
        """The go-ahead of a start or a re-scale, once nobody is missing."""
        order = job.pending
        if order is None or order.published or order.allocation is None:
            return
        workers = {gpu: job.on(gpu) for gpu in order.allocation.gpus}
        if not all(w is not None and w.alive and w.joined for w in workers.values()):
            return
        allocation = job.spelled_out(order.allocation)
        switch = wire.Switch(
            plan=order.plan,
            members=tuple(
                wire.Member(worker=str(w.gpu), batch=w.batch, micro_steps=w.micro_steps)
                for w in allocation.workers
            ),
            batch=allocation.batch,
            base_batch=(
                job.description.base_batch if job.description is not None else allocation.batch
            ),
        )
        order.published = True
        order.deadline = self._clock.now() + self._patience.switch_seconds
        members = set(order.allocation.gpus)
        for worker in job.workers.values():
            worker.leaving |= worker.gpus[0] not in members
            self.mailbox.put(worker.launch, switch)

    def _stop_job(self, job: LiveJob, plan: int) -> None:
        deadline = self._clock.now() + self._patience.checkpoint_seconds
        job.pending = Pending(Kind.STOP, plan, deadline=deadline)
        for worker in job.workers.values():
            self._send_away(worker, wire.CheckpointAndLeave(plan))

    def _finish(self, job: LiveJob, plan: int, reason: EndReason, message: str) -> None:
        self.end(job, plan)
        self.say(ev.JobEnded(NOW, job.id, reason, message))
        for worker in job.workers.values():
            self._send_away(worker, wire.End(reason.value, plan))

    def _send_away(self, worker: LiveWorker, order: wire.Order) -> None:
        worker.leaving = True
        if worker.joined:
            self.mailbox.put(worker.launch, order)
        else:
            self._launcher.stop(worker.launch, self._patience.grace_seconds)

    def end(self, job: LiveJob, plan: int = 0) -> None:
        """It is over. Workers that are still there get some time to go."""
        job.ended = True
        deadline = self._clock.now() + self._patience.end_seconds
        job.pending = Pending(Kind.STOP, plan, deadline=deadline)
        if not job.workers:
            self._forget(job)

    def _forget(self, job: LiveJob) -> None:
        self.jobs.pop(job.id, None)
        self._launcher.forget(job.id)
        rows = heard.delete().where(heard.c.job == job.id)
        self._store.write(operations=[lambda connection: _run(connection, rows)])

    # what the launcher says

    def started(self, launch: str) -> None:
        job, worker = self.find(launch)
        if job is None or worker is None or job.elastic:
            return
        self._count_as_ready(job, worker)

    def _count_as_ready(self, job: LiveJob, worker: LiveWorker) -> None:
        """A script that does not join trains as soon as it runs, for all we know."""
        if job.pending is not None and job.pending.kind is Kind.START:
            generation = Generation(job.pending.plan)
            for gpu in worker.gpus:
                self.say(ev.WorkerReady(NOW, job.id, generation, gpu))
            job.pending = None

    def find(self, launch: str) -> tuple[LiveJob | None, LiveWorker | None]:
        job = self.jobs.get(JobId(launch.split("~", maxsplit=1)[0]))
        return job, job.workers.get(launch) if job else None

    def exited(self, launch: str, exit: Exit) -> None:
        """Nothing of it is left. Did it leave, was it lost, or is the job done?"""
        job, worker = self.find(launch)
        if job is None or worker is None:
            return
        del job.workers[launch]
        worker.alive = False
        self.mailbox.drop(launch)
        self.last_word.pop(launch, None)
        if job.ended:
            self._let_quiet_ones_leave(job)
            self._left(job, worker)
            if not job.workers:
                self._forget(job)
            return
        if worker.condemned:
            self._lost(job, worker, worker.condemned)
            return
        told = worker.leaving or (job.pending is not None and job.pending.kind is Kind.STOP)
        # stopped by somebody beside us, or with the machine: that costs no try either
        if (told and exit.clean) or exit.cause in ("stopped", "reboot"):
            self._left(job, worker)
        elif exit.clean or worker.done:
            self._left_quietly(job, worker)
        else:
            self._lost(job, worker, exit.told())

    def _left(self, job: LiveJob, worker: LiveWorker) -> None:
        generation = self._newest(job, worker)
        for gpu in worker.gpus:
            self.say(ev.WorkerLeft(NOW, job.id, generation, gpu))

    def _lost(self, job: LiveJob, worker: LiveWorker, reason: str) -> None:
        generation = self._newest(job, worker)
        order = job.pending
        for gpu in worker.gpus:
            self.say(ev.WorkerLost(NOW, job.id, generation, gpu, reason))
        if order is None or order.kind is not Kind.RESCALE or order.published:
            return
        if worker.plan == order.plan:  # a newcomer, and nobody has been told of it yet
            self.give_up_rescale(job, f"worker {worker.name} died: {reason}")

    def give_up_rescale(self, job: LiveJob, reason: str) -> None:
        """The job goes on as before; newcomers are sent away, and who was to leave stays."""
        order = job.pending
        assert order is not None
        plan = order.plan
        job.pending = None
        for worker in job.workers.values():
            worker.leaving = worker.plan == plan
            if worker.leaving:
                self._launcher.stop(worker.launch, self._patience.grace_seconds)
        self.say(ev.RescaleFailed(NOW, job.id, Generation(plan), reason))

    def done(self, job: LiveJob, worker: LiveWorker) -> bool:
        """A worker says that the job is done. It is when all say so: the one that reports for all
        may be the last."""
        worker.done = True
        return self._done_if_all_are(job)

    def _done_if_all_are(self, job: LiveJob) -> bool:
        job.quiet_since = min(job.quiet_since, self._clock.now())
        if not all(w.done or w.leaving for w in job.workers.values()):
            return False
        self.end(job)
        return True

    def _left_quietly(self, job: LiveJob, worker: LiveWorker) -> None:
        """Exit code 0, said to be done or without a word: the job is done if all go so."""
        job.quiet.append(worker)
        if self._done_if_all_are(job):
            self._say_done(job)

    def _say_done(self, job: LiveJob) -> None:
        generation = max([job.generation, *(Generation(w.plan) for w in job.quiet)])
        self.say(ev.JobEnded(NOW, job.id, EndReason.FINISHED, generation=generation))
        self._let_quiet_ones_leave(job)

    def _let_quiet_ones_leave(self, job: LiveJob) -> None:
        quiet, job.quiet = job.quiet, []
        for worker in quiet:
            self._left(job, worker)

    def _newest(self, job: LiveJob, worker: LiveWorker) -> Generation:
        """A generation that is not older than the one that put the worker where it is."""
        return max(job.generation, Generation(worker.plan))

    # time

    def _tick(self, now: float) -> None:
        for job in list(self.jobs.values()):
            if job.pending is not None and now >= job.pending.deadline:
                self._run_out_of_patience(job, job.pending)
            if now - job.quiet_since > self._patience.quiet_seconds and not job.ended:
                self._decide_who_is_right(job)
            self._look_for_silence(job)
            self._look_at_run_time(job, now)

    def _run_out_of_patience(self, job: LiveJob, order: Pending) -> None:
        order.deadline = inf
        if order.kind is Kind.STOP:
            for worker in job.workers.values():
                self._launcher.stop(worker.launch, self._patience.grace_seconds)
        elif order.published:
            # it may have switched or not: nobody can say, so it begins again from its checkpoint
            why = f"a switch did not come together within {self._patience.switch_seconds:g} s"
            for worker in job.workers.values():
                self.condemn(worker, why)
            job.pending = None
        elif order.kind is Kind.RESCALE:
            seconds = self._patience.join_seconds
            self.give_up_rescale(job, f"newcomers did not join within {seconds:g} s")
        elif len(job.workers) == 1 and not any(w.joined for w in job.workers.values()):
            job.elastic = False  # it runs, and does not join: a fixed-size job
            self._count_as_ready(job, next(iter(job.workers.values())))
        else:
            why = f"its workers did not all join within {self._patience.join_seconds:g} s"
            plan = order.plan
            self.say(ev.RescaleFailed(NOW, job.id, Generation(plan), why))

    def _decide_who_is_right(self, job: LiveJob) -> None:
        """Some workers were done long ago, others go on."""
        job.quiet_since = inf
        if not any(w.done for w in (*job.quiet, *job.workers.values())):
            quiet, job.quiet = job.quiet, []
            for worker in quiet:
                self._lost(job, worker, "it ended by itself while the others went on")
        else:
            self.end(job)
            self._say_done(job)

    def _look_for_silence(self, job: LiveJob) -> None:
        for worker in job.workers.values():
            heard_at = self.last_word.get(worker.launch)
            if not worker.joined or heard_at is None or worker.leaving:
                continue
            if time.monotonic() - heard_at > self._patience.silence_seconds:
                self.last_word.pop(worker.launch)
                self.condemn(worker, f"silent for {self._patience.silence_seconds:g} s")

    def condemn(self, worker: LiveWorker, why: str) -> None:
        worker.condemned = why
        self._launcher.stop(worker.launch, 0.0)

    def _look_at_run_time(self, job: LiveJob, now: float) -> None:
        limit = job.submission.max_run_seconds
        record = self._state.records.get(job.id)
        if limit is None or job.overdue or record is None:
            return
        ran = record.run_seconds + (now - record.since if record.occupied else 0.0)
        if ran > limit:
            job.overdue = True
            by = f"its time limit of {limit:g} s"
            self.say(ev.CancelRequested(NOW, job.id, by))


def _run(connection: sa.Connection, statement: sa.Delete) -> None:
    connection.execute(statement)


def _stamped(event: ev.Event, at: float) -> ev.Event:
    if isinstance(event, ev.JobSubmitted):
        return ev.JobSubmitted(at, replace(event.job, submitted_at=at))
    return replace(event, at=at)
