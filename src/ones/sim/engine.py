"""SimEngine: virtual time. A heap of (time, counter, what), and nothing that waits.

It carries plans out as the real engine does: workers take time to start, newcomers
warm up in the background while the others train, a switch happens between two steps
and costs a pause, a job that keeps no worker goes through its checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from ones.core import events as ev
from ones.core.cluster import Cluster, Gpu
from ones.core.job import EndReason, Generation, JobId
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.schedule import Allocation
from ones.errors import BugError
from ones.sim.lengths import Truth
from ones.sim.network import Network
from ones.sim.noise import lognormal, normal
from ones.sim.physics import JobPhysics
from ones.sim.trainee import Pending, Trainee
from ones.workload.trace import Incident, Trace

#: steps after which a job reports its speed in a new configuration
MEASURED_STEPS = 20
#: seconds until a worker is looked for again that is to be killed
KILL_RETRY = 0.2
#: a policy that asks to be woken so often in a row, with nothing else happening, is idling
IDLE_WAKES = 10_000
_ACCURACY, _SPEED, _NOISE, _STEP = 1, 2, 3, 4  # what a random number is for
_ALWAYS = -(1 << 62)  # token of what happens whatever befalls the job

MECHANISMS = ("elastic", "checkpoint")


class _Kill(NamedTuple):
    at: float
    job: JobId


def accuracy_noise(seed: int, job: int, epoch: int) -> float:
    """The luck of a job in an epoch, the same under every policy."""
    return normal(seed, job, _ACCURACY, epoch)


class SimEngine:
    """Plays a trace. `mechanism` says how a change of size is paid for: `elastic` is a pause
    between two steps, `checkpoint` a stop and a restart."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        physics: Callable[[Truth], JobPhysics],
        *,
        mechanism: str = "elastic",
        seed: int = 0,
        kills: Sequence[tuple[float, JobId]] = (),
    ) -> None:
        """`kills`: from when on a job loses its last worker, as soon as it trains with two."""
        self._elastic = mechanism == "elastic"
        self._physics = physics
        self._seed = seed
        self._arrivals = trace.jobs
        self._next_arrival = 0
        self._incidents: deque[Incident | _Kill] = deque(
            sorted([*trace.incidents, *(_Kill(at, job) for at, job in kills)], key=lambda i: i.at)
        )
        self._node_gpus = {node.id: node.gpus for node in cluster.nodes.values()}
        self._jobs: dict[JobId, Trainee] = {}
        self._on: dict[Gpu, Trainee] = {}
        self._network = Network()
        self._heap: list[tuple[float, int, Trainee, int, Callable[[Trainee], None]]] = []
        self._counter = 0
        self._out: deque[ev.Event] = deque()
        self._idle_wakes = 0
        self.now = 0.0
        self.events = 0

    # the two sides of an engine

    def next_event(self, until: float) -> ev.Event | None:
        while not self._out:
            at = min(self._next_trace_time(), self._heap[0][0] if self._heap else inf)
            if at == inf and (until == inf or not self._jobs or self._idle_wakes > IDLE_WAKES):
                return None
            if until < at:
                self._idle_wakes += 1
                self.now = max(self.now, until)
                return ev.Woke(self.now)
            self._advance(at)
        self.events += 1
        self._idle_wakes = 0
        return self._out.popleft()

    def carry_out(self, plan: Plan) -> None:
        for action in plan.actions:
            self._carry_out(action, plan.number)

    def _carry_out(self, action: Action, number: int) -> None:
        job = self._jobs.get(action.job)
        if job is None:  # it has ended in the meantime, and its `JobEnded` is on its way
            if isinstance(action, Start | Rescale):
                self._never_came(action, number)
            return
        match action:
            case Prepare():
                newcomers = (g for g in action.allocation.gpus if g not in job.present)
                job.prepared = dict.fromkeys(newcomers, self.now)
            case Withdraw():
                job.prepared = {}
            case Start():
                self._start(job, action.allocation, number)
            case Rescale():
                self._rescale(job, action.allocation, number)
            case Stop():
                self._stop(job, number)
            case Finish():
                self._end(job, action.reason, action.message)

    # time

    def _next_arrival_time(self) -> float:
        arrivals, i = self._arrivals, self._next_arrival
        return arrivals[i].job.submitted_at if i < len(arrivals) else inf

    def _next_trace_time(self) -> float:
        at = self._next_arrival_time()
        return min(at, self._incidents[0].at) if self._incidents else at

    def _advance(self, at: float) -> None:
        """Let happen what happens now: arrivals, incidents, then what was planned."""
        self.now = at
        if self._next_arrival_time() <= at:
            entry = self._arrivals[self._next_arrival]
            physics = self._physics(entry.training)
            job = Trainee(self._next_arrival, entry.job, entry.training, physics)
            self._next_arrival += 1
            if entry.job.id in self._jobs:
                raise BugError(f"{entry.job.id} arrived twice")
            self._jobs[entry.job.id] = job
            self._out.append(ev.JobSubmitted(at, entry.job))
        elif self._incidents and self._incidents[0].at <= at:
            self._incident(self._incidents.popleft())
        else:
            _, _, job, token, what = heappop(self._heap)
            if token in (job.run, -job.order, _ALWAYS):
                what(job)

    def _at(self, at: float, job: Trainee, token: int, what: Callable[[Trainee], None]) -> None:
        self._counter += 1
        heappush(self._heap, (at, self._counter, job, token, what))

    def _say(self, event: ev.Event) -> None:
        self._out.append(event)

    # orders

    def _start(self, job: Trainee, allocation: Allocation, number: int) -> None:
        self._enter(job, allocation.gpus)
        job.generation = Generation(number)
        job.pending = Pending("start", job.generation)
        job.order += 1
        times = job.physics.switch
        ready_at = self.now + (times.restart if job.ran_before else times.first_start)

        def ready(job: Trainee) -> None:
            job.ran_before, job.pending = True, None
            for gpu in allocation.gpus:
                self._say(ev.WorkerReady(self.now, job.job.id, job.generation, gpu))
            if not job.described:
                self._describe(job)
            self._train(job, self._spelled_out(job, allocation))

        self._at(ready_at, job, -job.order, ready)

    def _rescale(self, job: Trainee, allocation: Allocation, number: int) -> None:
        allocation = self._spelled_out(job, allocation)
        newcomers = [g for g in allocation.gpus if g not in job.present]
        leavers = [g for g in job.present if g not in set(allocation.gpus)]
        times = job.physics.switch
        if not self._elastic and (newcomers or leavers):  # only the batch: nobody restarts
            warm_at, pause = self.now, times.restart
        elif newcomers:
            begun = self.now
            if times.warms_early:
                begun = max(job.prepared.get(gpu, self.now) for gpu in newcomers)
            warm_at, pause = max(self.now, begun + times.newcomer), times.rescale
        else:
            warm_at, pause = self.now + times.notice, (times.regroup if leavers else 0.0)
        self._enter(job, newcomers)
        job.order += 1
        generation = Generation(number)
        job.pending = Pending("rescale", generation)
        if job.finishing:
            return  # newcomers go with all the others, at its end

        def switch(job: Trainee) -> None:
            job.settle(self.now)
            self._halt(job)
            self._leave_after(times.leave, job, sorted(leavers), generation)
            self._at(self.now + pause, job, -job.order, resume)

        def resume(job: Trainee) -> None:
            job.generation, job.pending = generation, None
            for gpu in newcomers:
                self._say(ev.WorkerReady(self.now, job.job.id, generation, gpu))
            self._say(ev.Rescaled(self.now, job.job.id, generation, pause))
            self._train(job, allocation)

        def warm(job: Trainee) -> None:
            self._at(job.boundary(self.now), job, -job.order, switch)

        if warm_at > self.now:
            self._at(warm_at, job, -job.order, warm)
        else:
            warm(job)

    def _stop(self, job: Trainee, number: int) -> None:
        job.order += 1
        generation = Generation(number)
        job.pending = Pending("stop", generation)
        if job.finishing:
            return

        def halt(job: Trainee) -> None:
            job.settle(self.now)
            self._halt(job)
            self._at(self.now + job.physics.switch.stop, job, -job.order, leave)

        def leave(job: Trainee) -> None:
            job.held = job.pending = None
            self._leave(job, sorted(job.present), generation)

        self._at(job.boundary(self.now), job, -job.order, halt)

    def _end(self, job: Trainee, reason: EndReason, message: str) -> None:
        self._halt(job)
        job.order += 1
        del self._jobs[job.job.id]
        self._say(ev.JobEnded(self.now, job.job.id, reason, message))
        newest = job.pending.generation if job.pending else job.generation
        self._leave_after(job.physics.switch.clear, job, sorted(job.present), newest)

    # training

    def _describe(self, job: Trainee) -> None:
        training = job.training
        job.described = True
        self._say(
            ev.JobDescribed(
                at=self.now,
                job=job.job.id,
                generation=job.generation,
                dataset_size=training.dataset_size,
                base_batch=training.base_batch,
                optimizer=job.physics.optimizer,
                parameter_bytes=job.physics.parameter_bytes,
                max_local_batch=job.physics.max_local_batch,
            )
        )

    def _spelled_out(self, job: Trainee, allocation: Allocation) -> Allocation:
        """What a script does with its own batch, when the plan does not say."""
        if allocation.batch:
            return allocation
        batch = max(job.training.base_batch, allocation.n_gpus)
        return Allocation.even(allocation.gpus, batch, job.physics.max_local_batch)

    def _train(self, job: Trainee, allocation: Allocation) -> None:
        allocation = self._within_memory(job, allocation)
        job.begin(self.now, allocation, self._network.enter(job, allocation))
        self._plan_ahead(job)
        self._repace(self._network.neighbours(job))

    def _within_memory(self, job: Trainee, allocation: Allocation) -> Allocation:
        """A script that runs out of memory says so, and goes on in smaller parts."""
        limit = job.physics.max_local_batch
        if limit is None or allocation.largest_part <= limit:
            return allocation
        self._say(
            ev.MemoryLimitLearned(
                at=self.now, job=job.job.id, generation=job.generation, max_local_batch=limit
            )
        )
        return Allocation.even(allocation.gpus, allocation.batch, limit)

    def _halt(self, job: Trainee) -> None:
        """Stand still; those who shared its network go faster."""
        neighbours = self._network.leave(job)
        job.halt()
        self._repace(neighbours)

    def _repace(self, jobs: Iterable[Trainee]) -> None:
        for other in jobs:
            sharing = self._network.sharing(other)
            if sharing != other.sharing:
                other.share_network(self.now, sharing)
                self._plan_ahead(other)

    def _plan_ahead(self, job: Trainee) -> None:
        """What will happen to it if nothing changes: a report, an epoch, or its end."""
        epoch_end = job.epoch_end()
        if job.configuration not in job.measured:
            measured_at = job.since + MEASURED_STEPS * job.step_seconds
            if self.now <= measured_at < epoch_end:
                self._at(measured_at, job, job.run, self._measure)
        death = job.physics.death
        if death is not None and (dies_at := job.time_of(death)) < epoch_end:
            self._at(max(self.now, dies_at), job, job.run, self._die)
        else:
            self._at(epoch_end, job, job.run, self._epoch)

    def _measure(self, job: Trainee) -> None:
        job.settle(self.now)
        job.measured.add(job.configuration)
        steps = min(MEASURED_STEPS, max(1, job.stretch_steps))
        jitter = job.physics.report_noise.step_seconds / steps**0.5
        factor = lognormal(jitter, self._seed, job.number, _SPEED, len(job.measured))
        self._say(
            ev.ThroughputMeasured(
                at=self.now,
                job=job.job.id,
                generation=job.generation,
                configuration=job.configuration,
                step_seconds=job.step_seconds * factor,
                steps=steps,
            )
        )

    def _epoch(self, job: Trainee) -> None:
        steps, samples = job.finish_epoch(self.now)
        physics, seed, number, epoch = job.physics, self._seed, job.number, job.epochs
        noise = physics.noise_scale(job.progress)
        if noise is not None:
            noise *= lognormal(physics.report_noise.gradient_noise, seed, number, _NOISE, epoch)
        self._say(
            ev.EpochFinished(
                at=self.now,
                job=job.job.id,
                generation=job.generation,
                epoch=epoch,
                samples=samples,
                steps=steps,
                loss=job.loss(),
                accuracy=physics.accuracy(job.progress, accuracy_noise(seed, number, epoch)),
                first_loss=physics.loss(0.0) if epoch == 1 else None,
                step_seconds=job.step_seconds * self._step_noise(job, steps),
                gradient_noise=noise,
            )
        )
        if job.configuration not in job.measured:
            self._measure(job)
        times = physics.switch
        if job.job.epochs is not None and epoch >= job.job.epochs:
            if times.finish:
                self._halt(job)
                job.finishing = True
                self._at(self.now + times.finish, job, _ALWAYS, self._done)
            else:
                self._done(job)
        else:
            job.since += times.epoch
            self._plan_ahead(job)

    def _done(self, job: Trainee) -> None:
        if self._jobs.get(job.job.id) is job:  # else it was cancelled meanwhile
            self._end(job, EndReason.FINISHED, "")

    def _step_noise(self, job: Trainee, steps: int) -> float:
        sigma = job.physics.report_noise.step_seconds / max(1, steps) ** 0.5
        return lognormal(sigma, self._seed, job.number, _STEP, job.epochs)

    def _die(self, job: Trainee) -> None:
        assert job.physics.death is not None
        self._end(job, job.physics.death.reason, job.physics.death.message)

    # workers and nodes

    def _enter(self, job: Trainee, gpus: tuple[Gpu, ...] | list[Gpu]) -> None:
        for gpu in gpus:
            if gpu in self._on:
                raise BugError(f"{job.job.id} was put on GPU {gpu} beside {self._on[gpu].job.id}")
            self._on[gpu] = job
            job.present.add(gpu)
            job.prepared.pop(gpu, None)

    def _leave(self, job: Trainee, gpus: list[Gpu], generation: Generation) -> None:
        for gpu in gpus:
            if self._on.get(gpu) is job:
                del self._on[gpu]
                job.present.discard(gpu)
                self._say(ev.WorkerLeft(self.now, job.job.id, generation, gpu))

    def _leave_after(
        self, seconds: float, job: Trainee, gpus: list[Gpu], generation: Generation
    ) -> None:
        if seconds:
            gone = lambda job: self._leave(job, gpus, generation)  # noqa: E731
            self._at(self.now + seconds, job, _ALWAYS, gone)
        else:
            self._leave(job, gpus, generation)

    def _never_came(self, action: Start | Rescale, number: int) -> None:
        """Places that were counted as taken, on behalf of a job that is over."""
        left = {e.gpu for e in self._out if isinstance(e, ev.WorkerLeft) and e.job == action.job}
        for gpu in action.allocation.gpus:
            if gpu not in left and gpu not in self._on:
                self._say(ev.WorkerLeft(self.now, action.job, Generation(number), gpu))

    def _incident(self, incident: Incident | _Kill) -> None:
        if isinstance(incident, _Kill):
            self._kill(incident.job)
            return
        self._say(incident)
        match incident:
            case ev.NodeUp():
                self._node_gpus[incident.node] = incident.gpus
            case ev.NodeDown():
                hit: dict[JobId, list[Gpu]] = {}
                for index in range(self._node_gpus.get(incident.node, 0)):
                    gpu = Gpu(incident.node, index)
                    job = self._on.pop(gpu, None)
                    if job is not None:
                        job.present.discard(gpu)
                        hit.setdefault(job.job.id, []).append(gpu)
                for job_id, gpus in hit.items():
                    self._lose(self._jobs[job_id], gpus)
            case _:
                pass

    def _kill(self, name: JobId) -> None:
        job = self._jobs.get(name)
        if job is None or job.finishing:
            return
        if job.allocation is None or job.pending is not None or job.allocation.n_gpus < 2:
            self._at(self.now + KILL_RETRY, job, _ALWAYS, lambda job: self._kill(job.job.id))
            return
        gpu = job.allocation.gpus[-1]
        del self._on[gpu]
        job.present.discard(gpu)
        self._say(ev.WorkerLost(self.now, name, job.generation, gpu, "killed"))
        self._lose(job, [gpu])

    def _lose(self, job: Trainee, gpus: list[Gpu]) -> None:
        """Some workers are gone at once. Survivors re-form; without any, the checkpoint remains."""
        job.settle(self.now)
        pending = job.pending
        kind = pending.kind if pending else ""
        if kind == "stop" and job.present:
            return  # the others leave as they were told
        job.order += 1
        job.pending = None
        if kind == "start":
            return  # the core stops those who are left
        held = job.held
        survivors = held.without(g for g in held.gpus if g not in job.present) if held else None
        if survivors is None:
            self._halt(job)
            job.held = None
            job.fall_back()
            return
        if pending is not None and kind == "rescale":
            self._say(ev.RescaleFailed(self.now, job.job.id, pending.generation, "a worker died"))
            newcomers = [g for g in sorted(job.present) if g not in survivors.gpus]
            self._leave(job, newcomers, pending.generation)
        if held is not None and any(gpu in held.gpus for gpu in gpus):
            self._halt(job)
            job.held = survivors
            if not self._elastic:  # who re-scales by checkpoint recovers by checkpoint
                job.fall_back()
            self._at(self.now + self._regroup_seconds(job), job, -job.order, self._regroup)
        elif job.allocation is None:
            self._train(job, survivors)

    def _regroup_seconds(self, job: Trainee) -> float:
        times = job.physics.switch
        if not self._elastic:
            return times.restart
        return times.regroup if times.recover is None else times.recover

    def _regroup(self, job: Trainee) -> None:
        assert job.held is not None
        plan, incarnation = job.generation
        job.generation = Generation(plan, incarnation + 1)
        pause = self._regroup_seconds(job)
        self._say(ev.Rescaled(self.now, job.job.id, job.generation, pause))
        self._train(job, job.held)
