"""The engine in virtual time: plays the arrivals and incidents of a trace, carries out plans.

Plans take time, as in the live engine. Workers take time to start. Joining workers start in the
background while the job trains. A switch happens between two steps and costs a pause. A job that
keeps no worker goes through its checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from ones.core import events as ev
from ones.core.cluster import Cluster, Gpu
from ones.core.job import Generation, JobId
from ones.core.lifecycle import OrderKind
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.schedule import Allocation
from ones.errors import BugError
from ones.sim.gpu_sharing import GpuSharing
from ones.sim.lengths import Truth
from ones.sim.physics import JobPhysics
from ones.sim.sim_job import Pending, SimJob
from ones.sim.sim_state import SimState
from ones.sim.stragglers import NO_STRAGGLERS, Stragglers
from ones.sim.training_model import TrainingModel
from ones.sim.worker_losses import WorkerLosses
from ones.workload.trace import Incident, Trace

#: a run ends after this many consecutive wake-ups of the policy without any other event
IDLE_WAKES = 10_000

MECHANISMS = ("elastic", "checkpoint", "suspend")


class _Kill(NamedTuple):
    at: float
    job: JobId


class SimEngine:
    """Plays a trace. `mechanism` is the way jobs change size: `elastic` (a pause between two
    steps), `checkpoint` (a stop and a restart) or `suspend` (a stop that keeps the state in the
    memory of the host: short on the same GPUs, longer on others)."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        physics: Callable[[Truth], JobPhysics],
        *,
        mechanism: str = "elastic",
        seed: int = 0,
        kills: Sequence[tuple[float, JobId]] = (),
        stragglers: Stragglers = NO_STRAGGLERS,
        first: Sequence[ev.Event] = (),
    ) -> None:
        """`first`: events of time 0, before those of the trace.

        `kills`: (time, job). From that time on, the job loses its last worker once it trains
        with at least two."""
        self._elastic, self._suspends = mechanism == "elastic", mechanism == "suspend"
        self._physics = physics
        self._arrivals = trace.jobs
        self._next_arrival = 0
        self._incidents: deque[Incident | _Kill] = deque(
            sorted([*trace.incidents, *(_Kill(at, job) for at, job in kills)], key=lambda i: i.at)
        )
        self._node_gpus = {node.id: node.gpus for node in cluster.nodes.values()}
        self._sim = SimState()
        for event in first:
            self._sim.emit(event)
        self._gpu_sharing = GpuSharing(cluster)
        self._training = TrainingModel(self._sim, seed, stragglers, self._gpu_sharing)
        self._losses = WorkerLosses(self._sim, self._training, elastic=self._elastic)
        self._idle_wakes = 0
        self.events = 0

    @property
    def now(self) -> float:
        return self._sim.now

    # engine interface

    def next_event(self, until: float) -> ev.Event | None:
        sim = self._sim
        while not sim.out:
            at = min(self._next_trace_time(), sim.next_time())
            if at == inf and (until == inf or not sim.jobs or self._idle_wakes > IDLE_WAKES):
                return None
            if until < at:
                self._idle_wakes += 1
                sim.now = max(sim.now, until)
                return ev.Woke(sim.now)
            self._advance(at)
        self.events += 1
        self._idle_wakes = 0
        return sim.out.popleft()

    def carry_out(self, plan: Plan) -> None:
        for action in plan.actions:
            self._carry_out(action, plan.number)

    def _carry_out(self, action: Action, number: int) -> None:
        job = self._sim.jobs.get(action.job)
        if job is None:  # the job has ended; its `JobEnded` is still in the queue
            if isinstance(action, Start | Rescale):
                self._report_unused_gpus(action, number)
            return
        match action:
            case Prepare():
                joining = (g for g in action.allocation.gpus if g not in job.present)
                job.prepared = dict.fromkeys(joining, self._sim.now)
            case Withdraw():
                job.prepared = {}
            case Start():
                self._start(job, action.allocation, number)
            case Rescale():
                self._rescale(job, action.allocation, number)
            case Stop():
                self._stop(job, number)
            case Finish():
                self._training.end(job, action.reason, action.message)

    # time

    def _next_arrival_time(self) -> float:
        arrivals, i = self._arrivals, self._next_arrival
        return arrivals[i].job.submitted_at if i < len(arrivals) else inf

    def _next_trace_time(self) -> float:
        at = self._next_arrival_time()
        return min(at, self._incidents[0].at) if self._incidents else at

    def _advance(self, at: float) -> None:
        """Advances to `at` and handles one arrival, incident or callback, in this order."""
        self._sim.now = at
        if self._next_arrival_time() <= at:
            self._arrive()
        elif self._incidents and self._incidents[0].at <= at:
            self._incident(self._incidents.popleft())
        else:
            self._sim.run_next()

    def _arrive(self) -> None:
        entry = self._arrivals[self._next_arrival]
        physics = self._physics(entry.training)
        job = SimJob(self._next_arrival, entry.job, entry.training, physics)
        self._next_arrival += 1
        if entry.job.id in self._sim.jobs:
            raise BugError(f"{entry.job.id} arrived twice")
        self._sim.jobs[entry.job.id] = job
        self._sim.emit(ev.JobSubmitted(self._sim.now, entry.job))

    def _incident(self, incident: Incident | _Kill) -> None:
        if isinstance(incident, _Kill):
            self._losses.kill(incident.job)
            return
        self._sim.emit(incident)
        match incident:
            case ev.NodeUp():
                self._node_gpus[incident.node] = incident.gpus
                self._gpu_sharing.add_node(incident.node, incident.gpus, incident.slots)
            case ev.NodeDown():
                gpus = range(self._node_gpus.get(incident.node, 0))
                self._losses.node([Gpu(incident.node, index) for index in gpus])
            case _:
                pass

    # orders

    def _start(self, job: SimJob, allocation: Allocation, number: int) -> None:
        resumes = self._resume_seconds(job, allocation)
        job.suspended_on = ()
        self._sim.enter(job, allocation.gpus)
        job.generation = Generation(number)
        job.pending = Pending(OrderKind.START, job.generation)
        job.order += 1
        ready_at = self._sim.now + resumes

        def ready(job: SimJob) -> None:
            job.ran_before, job.pending = True, None
            for gpu in allocation.gpus:
                self._sim.emit(ev.WorkerReady(self._sim.now, job.job.id, job.generation, gpu))
            if not job.described:
                self._training.describe(job)
            self._training.train(job, job.resolved(allocation))

        self._sim.at(ready_at, job, -job.order, ready)

    def _resume_seconds(self, job: SimJob, allocation: Allocation) -> float:
        """Seconds until the workers of a start train."""
        times = job.physics.switch
        if not job.ran_before:
            return times.first_start
        if not (self._suspends and job.suspended_on):
            return times.restart
        return times.resume if job.suspended_on == allocation.gpus else times.migrate

    def _rescale(self, job: SimJob, allocation: Allocation, number: int) -> None:
        allocation = job.resolved(allocation)
        joining = [g for g in allocation.gpus if g not in job.present]
        leaving = [g for g in job.present if g not in set(allocation.gpus)]
        times = job.physics.switch
        # a change of the batch alone needs no restart
        if not self._elastic and (joining or leaving):
            warm_at = self._sim.now
            pause = times.migrate if self._suspends else times.restart
        elif joining:
            begun = self._sim.now
            if times.warms_early:
                begun = max(job.prepared.get(gpu, self._sim.now) for gpu in joining)
            warm_at, pause = max(self._sim.now, begun + times.join), times.rescale
        else:
            warm_at, pause = self._sim.now + times.notice, (times.regroup if leaving else 0.0)
        self._sim.enter(job, joining)
        job.order += 1
        generation = Generation(number)
        job.pending = Pending(OrderKind.RESCALE, generation)
        if job.finishing:
            return  # joining workers leave with all others when the job ends

        def switch(job: SimJob) -> None:
            if not self._training.interrupt(job):
                return
            self._sim.leave_after(times.leave, job, sorted(leaving), generation)
            self._sim.at(self._sim.now + pause, job, -job.order, resume)

        def resume(job: SimJob) -> None:
            job.generation, job.pending = generation, None
            for gpu in joining:
                self._sim.emit(ev.WorkerReady(self._sim.now, job.job.id, generation, gpu))
            self._sim.emit(ev.Rescaled(self._sim.now, job.job.id, generation, pause))
            self._training.train(job, allocation)

        def warm(job: SimJob) -> None:
            self._sim.at(job.boundary(self._sim.now), job, -job.order, switch)

        if warm_at > self._sim.now:
            self._sim.at(warm_at, job, -job.order, warm)
        else:
            warm(job)

    def _stop(self, job: SimJob, number: int) -> None:
        job.order += 1
        generation = Generation(number)
        job.pending = Pending(OrderKind.STOP, generation)
        if job.finishing:
            return

        def halt(job: SimJob) -> None:
            if not self._training.interrupt(job):
                return
            self._sim.at(self._sim.now + job.physics.switch.stop, job, -job.order, leave)

        def leave(job: SimJob) -> None:
            job.held = job.pending = None
            job.suspended_on = tuple(sorted(job.present))
            self._sim.leave(job, sorted(job.present), generation)

        self._sim.at(job.boundary(self._sim.now), job, -job.order, halt)

    def _report_unused_gpus(self, action: Start | Rescale, number: int) -> None:
        """Emits `WorkerLeft` for GPUs that a plan gave to a job that had already ended."""
        left = {
            e.gpu for e in self._sim.out if isinstance(e, ev.WorkerLeft) and e.job == action.job
        }
        for gpu in action.allocation.gpus:
            if gpu not in left and gpu not in self._sim.on:
                self._sim.emit(ev.WorkerLeft(self._sim.now, action.job, Generation(number), gpu))
