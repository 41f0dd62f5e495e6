"""The state of the scheduler: jobs, GPUs, queue and schedule, and the indexes over them.

Events change it through `transitions.apply`, plans through `actions.adopt`. The methods here keep
the indexes consistent; each costs the job that it touches, never the whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec import field

from ones.core.cluster import Cluster, Gpu, Node, NodeId, NodeState
from ones.core.fair_share import FairShare, OwnerUse
from ones.core.free_gpus import FreeGpus
from ones.core.gates import Gates
from ones.core.job import JobId, Progress, SwitchCost
from ones.core.lifecycle import Phase, Trigger, transition
from ones.core.record import JobRecord, Outcome, phase_of
from ones.core.schedule import Allocation, Schedule
from ones.core.view import JobView, View
from ones.core.waiting_jobs import WaitingJobs
from ones.errors import StaleViewError
from ones.wire.bounds import Tagged


class Occupant(NamedTuple):
    """The job that may have a process on a GPU, and the plan that put it there."""

    job: JobId
    plan: int


class State:
    """All mutable state of a scheduler except the policy's."""

    def __init__(self, cluster: Cluster, switch_cost: SwitchCost = SwitchCost()) -> None:
        self.now = 0.0
        self.version = 0  # a view of another version is stale
        self.plan_number = 0
        self.cluster = cluster
        self.switch_cost = switch_cost  # prior
        self.in_place = True  # staying workers continue while their job gets other GPUs
        self.schedule = Schedule()
        self.records: dict[JobId, JobRecord] = {}  # unfinished, in order of submission
        self.ended: dict[JobId, Outcome] = {}
        self.submitted = 0
        self.assigned: dict[Gpu, JobId] = {}  # by the schedule
        self.occupants: dict[Gpu, Occupant] = {}  # jobs that may have a process on the GPU
        self.busy_devices = 0  # GPUs with a process; a shared one counts once
        self.waiting = WaitingJobs()
        self.gates = Gates()
        self.fair_share = FairShare()
        self.blocked: set[JobId] = set()  # waiting jobs that may not start
        self.released: list[JobId] = []  # unblocked by the end of another job, in the last event
        self.free = FreeGpus(cluster)
        for node in cluster.nodes.values():
            self.free.open_node(node)
        self.due: dict[JobId, None] = {}  # jobs for which the last event made an action possible
        self.reordered: list[JobId] = []  # jobs with another penalty since the last event
        self.requeued = False  # whether the last event brought a job into the queue
        self.dropped: dict[str, int] = {}  # number of ignored reports, by cause
        self.busy_gpu_seconds = 0.0
        self.capacity_gpu_seconds = 0.0
        self.booked_at = 0.0  # GPU time is booked up to here
        self._views: dict[JobId, JobView] = {}
        self._by_number: dict[int, JobId] = {}

    # jobs

    def add(self, record: JobRecord) -> None:
        self.records[record.id] = record
        self._by_number[record.number] = record.id
        self.gates.add(record)
        self.fair_share.jobs.setdefault(record.job.owner, {})[record.id] = None
        self.submitted = max(self.submitted, record.number + 1)

    def advance(self, record: JobRecord, trigger: Trigger) -> None:
        """Change the phase of a job by the table of `lifecycle`."""
        next_state = transition(record.id, record.phase, trigger)
        record.phase = next_state.phase
        if next_state.due:
            self.due[record.id] = None
        self.conform(record)
        if record.phase is Phase.WAITING:
            self.enqueue(record)

    def conform(self, record: JobRecord) -> None:
        """Take GPUs from a job that may not have them: it is blocked, or its limits changed.

        A job that is changing is left alone until it has changed. A fixed-size job keeps its GPUs.
        """
        goal = record.goal
        if goal is None or record.ending is not None:
            return
        allowed = record.allowed(goal)
        if allowed == goal:
            return
        if record.phase is Phase.WAITING:  # GPUs were promised only
            self.set_goal(record, None)
            record.withdraw_due = True
            self.due[record.id] = None
        elif record.phase is Phase.RUNNING and record.job.elastic:
            self.set_goal(record, allowed)
            trigger = Trigger.MUST_WAIT if allowed is None else Trigger.MUST_SHRINK
            self.advance(record, trigger)

    def touch(self, job: JobId) -> JobRecord:
        """The job's record, to be changed; discards the cached view of it."""
        self._views.pop(job, None)
        return self.records[job]

    def close(self, record: JobRecord, outcome: Outcome) -> None:
        self.set_goal(record, None)
        self.waiting.discard(record.id)
        self.blocked.discard(record.id)
        self._forget_use(record)
        del self.records[record.id]
        del self._by_number[record.number]
        self._views.pop(record.id, None)
        self.due.pop(record.id, None)
        self.ended[record.id] = outcome

    def enqueue(self, record: JobRecord) -> None:
        """Put a waiting job into the queue, unless GPUs are promised to it or it is blocked."""
        waits = record.phase is Phase.WAITING and record.goal is None
        if waits and record.blocked:
            self.waiting.discard(record.id)
            self.blocked.add(record.id)
        elif waits and record.id not in self.waiting:
            self.blocked.discard(record.id)
            self.waiting.add(record.id, record.job.owner, record.key)
            self.requeued = True

    def reorder(self, record: JobRecord, *, priority: float, penalty: float) -> None:
        """Give a job another place in the queue."""
        waits = record.id in self.waiting
        self.waiting.discard(record.id)
        record.priority, record.penalty = priority, penalty
        if waits:
            self.waiting.add(record.id, record.job.owner, record.key)

    def drop(self, cause: str) -> bool:
        self.dropped[cause] = self.dropped.get(cause, 0) + 1
        return False

    # GPUs

    def set_goal(self, record: JobRecord, goal: Allocation | None) -> None:
        before = record.goal
        if before == goal:
            return
        record.goal = goal
        had = {w.gpu for w in before.workers} if before else set()
        gets = {w.gpu for w in goal.workers} if goal else set()
        for gpu in sorted(gets - had):
            self.assigned[gpu] = record.id
            self.free.take(gpu, self.node(gpu.node))
        for gpu in sorted(had - gets):
            if self.assigned.get(gpu) == record.id:  # else another job has it already
                del self.assigned[gpu]
                self.free.give(gpu, self.node(gpu.node))
        owner = record.job.owner
        self.waiting.use[owner] = self.waiting.use.get(owner, 0) + len(gets) - len(had)
        if goal is not None:
            self.waiting.discard(record.id)
        edit = self.schedule.edit()
        edit.set(record.id, goal)
        self.schedule = edit.done().rooted()

    def occupy(self, record: JobRecord, gpu: Gpu, plan: int) -> None:
        self.book()
        self.busy_devices += gpu not in self.occupants and not self._shares(gpu)
        self.occupants[gpu] = Occupant(record.id, plan)
        before = len(record.occupied)
        record.occupy(gpu, self.now)
        self.fair_share.occupy(record.job.owner, len(record.occupied) - before, self.now)

    def vacate(self, gpu: Gpu) -> None:
        """Free a GPU after the exit of its process. A job that waits for the GPU becomes due."""
        self.book()
        occupant = self.occupants.pop(gpu)
        self.busy_devices -= not self._shares(gpu)
        if occupant.job in self.records:
            record = self.touch(occupant.job)
            before = len(record.occupied)
            record.vacate(gpu, self.now)
            self.fair_share.occupy(record.job.owner, len(record.occupied) - before, self.now)
        claimant = self.assigned.get(gpu)
        if claimant is not None:
            self.due[claimant] = None

    def set_fair_share(self, half_life: float, used: Mapping[str, float]) -> None:
        """Count past use with this half-life from now on; 0: not any more."""
        self.fair_share.set(self.now, half_life, used)
        for record in self.records.values():
            self.fair_share.occupy(record.job.owner, len(record.occupied), self.now)
        if not self.fair_share:
            self._set_penalties(self.records)

    def review_fair_share(self) -> None:
        """Reorder the jobs of owners with another penalty. A review costs the owners, and the jobs
        of those with another penalty; at other times this costs nothing."""
        shares = self.fair_share
        if shares and self.now >= shares.next_review:
            for owner in shares.review(self.now, self.cluster.n_gpus):
                self._set_penalties(shares.jobs.get(owner, {}))

    def _set_penalties(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            record = self.records[job]
            penalty = self.fair_share.penalty(record.job.owner)
            if penalty != record.penalty:
                self.touch(job)
                self.reorder(record, priority=record.priority, penalty=penalty)
                self.reordered.append(job)
                self.requeued = self.requeued or job in self.waiting

    def _forget_use(self, record: JobRecord) -> None:
        """The job ends: GPUs that it still occupies count no more."""
        owner = record.job.owner
        self.fair_share.occupy(owner, -len(record.occupied), self.now)
        jobs = self.fair_share.jobs[owner]
        del jobs[record.id]
        if not jobs:
            del self.fair_share.jobs[owner]

    def _shares(self, gpu: Gpu) -> bool:
        """Whether another slot of the same GPU is occupied."""
        node = self.cluster.nodes.get(gpu.node)
        if node is None or node.slots == 1:
            return False
        same = range(gpu.index % node.devices, node.gpus, node.devices)
        return any(i != gpu.index and Gpu(gpu.node, i) in self.occupants for i in same)

    def node(self, node: NodeId) -> Node:
        return self.cluster.nodes[node]

    def set_node(self, node: Node) -> None:
        """Add or replace a node. GPUs that are assigned to jobs stay assigned."""
        self.book()
        known = self.cluster.nodes.get(node.id)
        if known is not None:
            self.free.close_node(known)
        self.cluster = self.cluster.with_node(node)
        self.free.resize(self.cluster)
        placed = self.node(node.id)
        if placed.state is NodeState.UP:
            taken = (i for i in range(placed.gpus) if Gpu(node.id, i) in self.assigned)
            self.free.open_node(placed, except_for=frozenset(taken))

    def book(self) -> None:
        """Book GPU time up to now; call before occupants or the cluster change."""
        elapsed = self.now - self.booked_at
        if elapsed:
            self.busy_gpu_seconds += elapsed * self.busy_devices
            self.capacity_gpu_seconds += elapsed * self.cluster.n_devices
            self.booked_at = self.now

    # views

    def view(self) -> View:
        return View(self)

    @property
    def unfinished(self) -> Mapping[JobId, JobRecord]:
        return self.records

    def job_view(self, job: JobId) -> JobView:
        shown = self._views.get(job)
        if shown is None:
            shown = self._views[job] = self._show(self.records[job])
        return shown

    def waiting_views(self, version: int) -> Iterator[JobView]:
        """Views of the queue, made as they are read; raises once the state has changed."""
        for _, number in self.waiting.visible():
            if self.version != version:
                raise StaleViewError("the queue of a view was read after a later event")
            yield self.job_view(self._by_number[number])

    def _show(self, record: JobRecord) -> JobView:
        prior = self.switch_cost
        return JobView(
            job=record.job,
            number=record.number,
            priority=record.effective_priority,
            penalty=record.penalty,
            phase=record.phase,
            pinned=not record.settled
            or record.blocked
            or (record.held is not None and not record.job.elastic),
            blocked=record.blocked,
            wanted=record.goal,
            held=record.held,
            description=record.description,
            progress=Progress(
                samples=record.samples + record.epoch_samples,
                epochs=record.epochs,
                steps=record.steps + record.epoch_steps,
                first_loss=record.first_loss,
                loss=record.loss,
                accuracy=record.accuracy,
                step_seconds=record.step_seconds,
                gradient_noise=record.gradient_noise,
                effective_samples=record.effective_samples,
            ),
            profile=record.profile,
            local_limit=record.local_limit(),
            # the prior counts as one measured pause; changes of the batch alone are not counted
            switch_cost=prior._replace(
                rescale_seconds=(prior.rescale_seconds + record.moved_seconds) / (1 + record.moves)
            ),
            booked_at=record.since,
            queue_seconds=record.queue_seconds,
            run_seconds=record.run_seconds,
            gpu_seconds=record.gpu_seconds,
            occupied=len(record.occupied),
            started_at=record.started_at,
            rescales=record.rescales,
            preemptions=record.preemptions,
            failures=record.failures,
            note=record.note,
            forecast=record.forecast,
        )

    # snapshots

    def snapshot(self, *, ended_before: int = 0) -> Snapshot:
        """The state as values, without the first `ended_before` ended jobs.

        Those are in an earlier snapshot already.
        """
        return Snapshot(
            now=self.now,
            booked_at=self.booked_at,
            plan_number=self.plan_number,
            submitted=self.submitted,
            switch_cost=self.switch_cost,
            nodes=tuple(self.cluster.nodes.values()),
            records=tuple(self.records.values()),
            occupants=tuple(self.occupants.items()),
            limits=dict(self.waiting.limits),
            due=tuple(self.due),
            dropped=dict(self.dropped),
            busy_gpu_seconds=self.busy_gpu_seconds,
            capacity_gpu_seconds=self.capacity_gpu_seconds,
            ended=tuple(islice(self.ended.values(), ended_before, None)),
            half_life=self.fair_share.half_life,
            next_review=self.fair_share.next_review,
            use=dict(self.fair_share.owners),
        )

    @classmethod
    def restored(cls, saved: Snapshot, ended_earlier: Iterable[Outcome] = ()) -> State:
        """The state of a snapshot, with its indexes built again."""
        state = cls(Cluster(list(saved.nodes)), saved.switch_cost)
        state.now = saved.now
        state.booked_at = saved.booked_at
        state.busy_gpu_seconds = saved.busy_gpu_seconds
        state.capacity_gpu_seconds = saved.capacity_gpu_seconds
        state.plan_number = saved.plan_number
        for owner, limit in saved.limits.items():
            state.waiting.set_limit(owner, limit)
        for outcome in (*ended_earlier, *saved.ended):
            state.ended[outcome.id] = outcome
        state.fair_share.half_life = saved.half_life
        state.fair_share.next_review = saved.next_review
        state.fair_share.owners = dict(saved.use)
        for record in saved.records:
            goal, record.goal = record.goal, None
            record.phase = phase_of(record, goal)
            state.add(record)
            state.set_goal(record, goal)
            state.enqueue(record)
        state.submitted = saved.submitted
        for gpu, occupant in saved.occupants:
            state.busy_devices += not state._shares(gpu)
            state.occupants[gpu] = occupant
        state.due = dict.fromkeys(saved.due)
        state.dropped = dict(saved.dropped)
        state.requeued = False
        return state


class Snapshot(Tagged, frozen=True, kw_only=True):
    """The state as plain values. It holds the live records: encode it before the next event."""

    now: float
    booked_at: float
    plan_number: int
    submitted: int
    switch_cost: SwitchCost
    nodes: tuple[Node, ...]
    records: tuple[JobRecord, ...]
    occupants: tuple[tuple[Gpu, Occupant], ...]
    limits: dict[str, int]
    due: tuple[JobId, ...]
    dropped: dict[str, int]
    busy_gpu_seconds: float
    capacity_gpu_seconds: float
    ended: tuple[Outcome, ...]
    half_life: float = 0.0  # of fair share
    next_review: float = 0.0
    use: dict[str, OwnerUse] = field(default_factory=dict)  # by owner
