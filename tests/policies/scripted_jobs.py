"""Jobs from submission to end, as a policy sees them when honest workers report.

Every order is carried out at once. The events of one job, the odd one, pass through a function
that may change or repeat them before the scheduler gets them: so a test can put one odd value into
an otherwise honest life and see whether the policy and the other jobs go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import NamedTuple

from ones.core import Cluster, EndReason, Event, Generation, Job, JobId, Plan, Policy, Scheduler
from ones.core import events as ev
from ones.core.job import Configuration, SwitchCost
from ones.core.plan import Finish, Rescale, Start, Stop
from ones.core.schedule import Allocation

#: prefix of the names of jobs with odd reports
ODD = "odd"
#: seconds between two rounds of reports
ROUND = 60.0
#: events of one life; more of them are a circle of orders and answers
MOST_EVENTS = 2000

#: an event of the odd job -> the events that the scheduler gets instead
Alter = Callable[[Event], Iterable[Event]]


class Asked(NamedTuple):
    """What the odd job's user asks for, what its script plans, and what a change costs."""

    batch: int | None = 64
    min_gpus: int = 1
    planned_epochs: int | None = None
    switch_cost: SwitchCost = SwitchCost()


PLAIN = Asked()
#: different enough that policies take different ways
USUAL = (
    PLAIN,
    Asked(planned_epochs=12, switch_cost=SwitchCost(25.0, 25.0)),
    Asked(batch=None, min_gpus=2),
    Asked(batch=7, min_gpus=3, planned_epochs=1),
)


class ScriptedJobs:
    """The scheduler with its policy, and workers that carry out every order at once."""

    def __init__(
        self, policy: Policy, alter: Alter, switch_cost: SwitchCost = SwitchCost()
    ) -> None:
        self.scheduler = Scheduler(Cluster.of(8, 4), policy, switch_cost=switch_cost)
        self._alter = alter
        self._now = 0.0
        self._todo: deque[Event] = deque()
        self._epochs: dict[JobId, int] = {}
        self.told = 0

    # events and their answers

    def tell(self, *events: Event) -> None:
        self._todo.extend(events)
        while self._todo:
            event = self._todo.popleft()
            job = event.job.id if isinstance(event, ev.JobSubmitted) else getattr(event, "job", "")
            for altered in self._alter(event) if job.startswith(ODD) else (event,):
                self.told += 1
                assert self.told < MOST_EVENTS, "orders and their answers go round in a circle"
                self._answer(self.scheduler.handle(altered))

    def _answer(self, plan: Plan) -> None:
        generation = Generation(plan.number)
        for forecast in plan.forecasts.values():
            assert -inf < forecast.low <= forecast.eta <= forecast.high < inf
        assert all(len(note) < 300 for note in plan.notes.values()), plan.notes
        for action in plan.actions:
            job, record = action.job, self.scheduler.state.records[action.job]
            match action:
                case Start():
                    for gpu in action.allocation.gpus:
                        self._todo.append(ev.WorkerReady(self._now, job, generation, gpu))
                case Rescale():
                    self._todo.append(ev.Rescaled(self._now, job, generation, 1.0))
                    for gpu in sorted(record.occupied - set(action.allocation.gpus)):
                        self._todo.append(ev.WorkerLeft(self._now, job, generation, gpu))
                case Stop():
                    for gpu in sorted(record.occupied):
                        self._todo.append(ev.WorkerLeft(self._now, job, generation, gpu))
                case Finish():
                    self._todo.extend(self._ended(job, action.reason))
                case _:
                    pass

    def wait(self, seconds: float) -> None:
        """Time passes; the policy is woken once if it had asked for that."""
        self._now += seconds
        if self.scheduler.wake_at <= self._now:
            self.tell(ev.Woke(self._now))

    # what users do

    def submit(
        self,
        name: str,
        *,
        kind: str,
        owner: str,
        epochs: int | None = None,
        asked: Asked = PLAIN,
    ) -> None:
        job = Job(
            id=JobId(name),
            submitted_at=self._now,
            kind=kind,
            owner=owner,
            min_gpus=asked.min_gpus,
            requested_gpus=2,
            requested_batch=asked.batch,
            epochs=epochs,
            retries=2,
        )
        self.tell(ev.JobSubmitted(self._now, job))

    def end(self, name: str, reason: EndReason = EndReason.FINISHED) -> None:
        job = JobId(name)
        if job not in self.scheduler.state.records:
            return
        self.tell(*self._ended(job, reason))

    def _ended(self, job: JobId, reason: EndReason) -> Iterator[Event]:
        yield ev.JobEnded(self._now, job, reason)
        for gpu in sorted(self.scheduler.state.records[job].occupied):
            yield ev.WorkerLeft(self._now, job, Generation(10**6), gpu)

    # what workers report

    def report(self, name: str, *, planned: int | None = None) -> None:
        """What an honest job tells in a round; nothing while it has no GPUs."""
        for make in (self._described, self._measured, self._trained):
            for event in make(JobId(name), planned):
                self.tell(event)

    def _held(self, job: JobId) -> Allocation | None:
        record = self.scheduler.state.records.get(job)
        return record.held if record is not None else None

    def _generation(self, job: JobId) -> Generation:
        return self.scheduler.state.records[job].generation

    def _described(self, job: JobId, planned: int | None) -> Iterator[Event]:
        record = self.scheduler.state.records.get(job)
        if record is not None and record.held is not None and record.description is None:
            yield ev.JobDescribed(
                at=self._now,
                job=job,
                generation=record.generation,
                dataset_size=10_000,
                base_batch=64,
                optimizer="sgd",
                parameter_bytes=10**8,
                max_local_batch=256,
            )
            yield ev.TrackerLinked(self._now, job, record.generation, "https://runs.example/1")

    def _measured(self, job: JobId, planned: int | None) -> Iterator[Event]:
        """In the configuration that it has, and in two that it has had, as it may claim."""
        for had in (None, Configuration(1, 1, 64), Configuration(4, 1, 256)):
            held = self._held(job)
            if held is None or not held.batch:
                return
            has = Configuration(held.n_gpus, held.n_nodes, held.batch, held.micro_steps)
            seconds = 0.1 + 0.001 * has.batch / has.gpus + 0.02 * (has.gpus > 1)
            yield self._speed(job, had or has, seconds)

    def _speed(self, job: JobId, configuration: Configuration, seconds: float) -> Event:
        return ev.ThroughputMeasured(
            at=self._now,
            job=job,
            generation=self._generation(job),
            configuration=configuration,
            step_seconds=seconds,
            steps=20,
        )

    def measure(self, name: str, configuration: Configuration, seconds: float) -> None:
        self.tell(self._speed(JobId(name), configuration, seconds))

    def _trained(self, job: JobId, planned: int | None) -> Iterator[Event]:
        """An epoch, and a part of the next one."""
        if self._held(job) is None:
            return
        epoch = self._epochs[job] = self._epochs.get(job, 0) + 1
        yield ev.EpochFinished(
            at=self._now,
            job=job,
            generation=self._generation(job),
            epoch=epoch,
            samples=10_000,
            steps=157,
            loss=1.0 + 1.0 / epoch,
            accuracy=1.0 - 1.0 / (1 + epoch),
            first_loss=2.5 if epoch == 1 else None,
            step_seconds=0.15,
            gradient_noise=500.0,
            planned_epochs=planned,
        )
        if self._held(job) is not None:
            yield ev.StepsDone(
                at=self._now,
                job=job,
                generation=self._generation(job),
                epoch=epoch + 1,
                steps=20,
                samples=1280,
            )

    def learn_memory_limit(self, name: str) -> None:
        if self._held(JobId(name)) is not None:
            self.tell(
                ev.MemoryLimitLearned(
                    at=self._now,
                    job=JobId(name),
                    generation=self._generation(JobId(name)),
                    max_local_batch=128,
                )
            )

    def fail_to_rescale(self, name: str) -> None:
        """Of an order that is not there any more, unless the report is odd."""
        if JobId(name) in self.scheduler.state.records:
            generation = self._generation(JobId(name))
            self.tell(ev.RescaleFailed(self._now, JobId(name), generation, "no such device"))

    def found_fixed(self, name: str) -> None:
        """Its script is slow to join."""
        if JobId(name) in self.scheduler.state.records:
            self.tell(ev.JobFoundFixed(self._now, JobId(name), self._generation(JobId(name))))

    def lose(self, name: str) -> None:
        """All its workers die: it goes back into the queue."""
        record = self.scheduler.state.records.get(JobId(name))
        if record is not None:
            plan = Generation(record.generation.plan)
            lost = sorted(record.occupied)
            self.tell(*(ev.WorkerLost(self._now, record.id, plan, gpu, "died") for gpu in lost))

    def begin_again(self, name: str) -> None:
        """Its workers have found no checkpoint after a loss of all."""
        job = JobId(name)
        if self._held(job) is not None:
            lost = self._epochs.pop(job, 0)
            self.tell(ev.TrainingRestarted(self._now, job, self._generation(job), lost))

    def reform(self, name: str) -> None:
        """Its workers have found one another again after a loss."""
        held = self._held(JobId(name))
        if held is not None:
            plan, incarnation = self._generation(JobId(name))
            self.tell(
                ev.Rescaled(
                    self._now, JobId(name), Generation(plan, incarnation + 1), 1.0, held.gpus
                )
            )


def live(policy: Policy, alter: Alter, *, asked: Asked = PLAIN, times: int = 1) -> ScriptedJobs:
    """The odd job beside two others, until all have ended; two more come later; `times` times.

    One of the others is of the odd job's kind, so that policies use for it what they learn from
    the odd one.
    """
    lives = ScriptedJobs(policy, alter, asked.switch_cost)
    for time in range(times):
        lives.told = 0
        _live_once(lives, asked, f"-{time}")
    return lives


def _live_once(lives: ScriptedJobs, asked: Asked, number: str) -> None:
    twin, odd, other, late, last = (
        f"{name}{number}" for name in ("twin", ODD, "other", "late", "last")
    )
    lives.submit(twin, kind="resnet", owner="ann", epochs=12)
    lives.submit(odd, kind="resnet", owner="bob", asked=asked)
    lives.submit(other, kind="", owner="cem")
    here = [twin, odd, other]
    for turn in range(3):
        lives.wait(ROUND)
        if turn == 0:
            lives.found_fixed(odd)
        for name in here:
            lives.report(name, planned=asked.planned_epochs if name == odd else None)
        if turn == 1:
            lives.reform(odd)
            lives.begin_again(odd)
            lives.learn_memory_limit(odd)
            lives.fail_to_rescale(odd)
            lives.lose(odd)
            lives.submit(late, kind="resnet", owner="ann")
            here.append(late)
    lives.end(odd)
    lives.submit(last, kind="resnet", owner="dan", epochs=3)
    here = [twin, late, other, last]
    for _ in range(2):
        lives.wait(ROUND)
        for name in here:
            lives.report(name)
    lives.wait(1000.0)
    for name in here:
        lives.end(name)
        lives.wait(ROUND)
    assert not lives.scheduler.state.records
