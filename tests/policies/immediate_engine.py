"""An engine that carries out orders at once: for tests of which jobs run when."""

from __future__ import annotations

from ones.core import Cluster, EndReason, Event, Generation, Job, JobId, Plan, Policy, Scheduler
from ones.core import events as ev
from ones.core.plan import Rescale, Start, Stop


class ImmediateEngine:
    """Jobs arrive and end when the test says so; timers fire by themselves."""

    def __init__(self, policy: Policy, gpus: int, *, gpus_per_node: int = 4) -> None:
        self.scheduler = Scheduler(Cluster.of(gpus, gpus_per_node), policy)
        self.now = 0.0
        self.preempted: list[str] = []

    def tell(self, event: Event) -> None:
        self._carry_out(self.scheduler.handle(event))

    def _carry_out(self, plan: Plan) -> None:
        generation = Generation(plan.number)
        for action in plan.actions:
            job = action.job
            if isinstance(action, Start):
                for gpu in action.allocation.gpus:
                    self.tell(ev.WorkerReady(self.now, job, generation, gpu))
            elif isinstance(action, Stop):
                self.preempted.append(job)
                for gpu in sorted(self.scheduler.state.records[job].occupied):
                    self.tell(ev.WorkerLeft(self.now, job, generation, gpu))
            elif isinstance(action, Rescale):
                before = self.scheduler.state.records[job].held
                stay = {w.gpu for w in action.allocation.workers}
                for gpu in before.gpus if before else ():
                    if gpu not in stay:
                        self.tell(ev.WorkerLeft(self.now, job, generation, gpu))
                self.tell(ev.Rescaled(self.now, job, generation, 1.0))

    def until(self, at: float) -> None:
        """Let time pass."""
        while self.scheduler.wake_at <= at:
            self.now = self.scheduler.wake_at
            self.tell(ev.Woke(self.now))
        self.now = at

    def submit(
        self, name: str, *, at: float | None = None, gpus: int = 1, priority: float = 0.0
    ) -> None:
        self.until(self.now if at is None else at)
        job = Job(
            id=JobId(name),
            submitted_at=self.now,
            requested_gpus=gpus,
            requested_batch=64,
            priority=priority,
        )
        self.tell(ev.JobSubmitted(self.now, job))

    def end(self, name: str, *, at: float | None = None) -> None:
        self.until(self.now if at is None else at)
        occupied = sorted(self.scheduler.state.records[JobId(name)].occupied)
        self.tell(ev.JobEnded(self.now, JobId(name), EndReason.FINISHED))
        for gpu in occupied:
            self.tell(ev.WorkerLeft(self.now, JobId(name), Generation(10**6), gpu))

    @property
    def running(self) -> list[str]:
        return list(self.scheduler.state.schedule)

    def sizes(self) -> dict[str, int]:
        return {job: a.n_gpus for job, a in self.scheduler.state.schedule.items()}

    def note(self, name: str) -> str:
        return self.scheduler.state.records[JobId(name)].note
