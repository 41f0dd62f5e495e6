"""Users and operators: they submit, cancel, change priorities and drain, and try again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ones.control.api.access import COMMIT_SECONDS
from ones.control.controller import Controller
from ones.control.store import Done
from ones.control.submission import Submission
from ones.core.job import Job
from ones.errors import OnesError
from ones.lab.faults.network import SimulatedNetwork
from ones.lab.faults.spec import JobSpec
from ones.lab.faults.world import World

#: calls the controller; the `Done` is for the answer
Call = Callable[[Controller, Done], None]


@dataclass(slots=True)
class Users:
    world: World
    network: SimulatedNetwork
    specs: dict[int, JobSpec]
    acknowledged: dict[str, JobSpec] = field(default_factory=dict)  # jobs, by id
    asked: set[str] = field(default_factory=set)  # ids that were given, acknowledged or not
    cancelled: set[str] = field(default_factory=set)  # a cancellation was at least sent
    pending: Counter[str] = field(default_factory=Counter)  # requests without an answer

    def submit(self, spec: JobSpec) -> None:
        id = ""

        def call(controller: Controller, done: Done) -> None:
            nonlocal id
            job, submission = _job(controller, spec)
            id = job.id
            self.asked.add(id)
            controller.submit(job, submission, done)

        def answered() -> None:
            self.world.note(f"job {id} is acknowledged")
            self.acknowledged[id] = spec

        self._ask(f"submission of {spec.number}", call, answered)

    def cancel_one(self) -> None:
        job = self._any_job()
        if job is None:
            return
        self.world.fault("cancel", job)
        self.cancel(job)

    def cancel(self, job: str) -> None:
        self.cancelled.add(job)
        self._ask(f"cancellation of {job}", lambda c, done: c.cancel(job, "ann", done))

    def change_priority(self) -> None:
        job, priority = self._any_job(), float(self.world.dice.randint(-2, 3))
        if job is not None:
            self.world.fault("priority", f"{job}: {priority:g}")
            self._ask(f"priority of {job}", lambda c, done: c.set_priority(job, priority, done))

    def limit(self, max_gpus: int | None) -> None:
        self._ask("limit of ann", lambda c, done: c.set_limit("ann", max_gpus, done))

    def drain(self, place: str) -> None:
        self.world.fault("drain", place)
        self._ask(f"drain of {place}", lambda c, done: c.drain(place, "operator", done))

    def undrain(self, place: str) -> None:
        self._ask(f"undrain of {place}", lambda c, done: c.undrain(place, done), keep=True)

    def _answered(self, what: str) -> None:
        self.pending -= Counter({what: 1})

    def _any_job(self) -> str | None:
        jobs = sorted(self.acknowledged)
        return self.world.dice.choice(jobs) if jobs else None

    def _ask(
        self,
        what: str,
        call: Call,
        answered: Callable[[], None] = lambda: None,
        *,
        keep: bool = False,
    ) -> None:
        """Until there is an answer. `keep`: also when the controller does not know the place."""
        self.pending[what] += 1
        world, over = self.world, False

        def again() -> None:
            nonlocal over
            if not over:
                over = True
                self._answered(what)
                world.after(
                    world.dice.uniform(0.5, 5.0), lambda: self._ask(what, call, answered, keep=keep)
                )

        def finish(problem: Exception | None) -> None:
            nonlocal over
            if over:
                return
            if problem is not None:
                world.violation(f"{what} was refused: {problem}")
            over = True
            self._answered(what)
            answered()

        server = self.network.server
        if server is None:
            again()
            return
        controller, life = server.controller, world.life
        world.after(COMMIT_SECONDS, again)  # 503, or the connection broke
        try:
            call(controller, lambda problem: world.after(0.005, lambda: finish(problem), life))
        except OnesError as problem:
            world.note(f"{what}: {problem}")
            if keep:
                again()
            else:
                finish(None)
            return


def _job(controller: Controller, spec: JobSpec) -> tuple[Job, Submission]:
    """As the API makes them of a submission."""
    fixed = spec.elastic is False
    job = Job(
        id=controller.new_id(f"job{spec.number}"),
        submitted_at=0.0,
        kind=f"kind{spec.number % 3}",
        owner="ann" if spec.number % 2 else "bob",
        min_gpus=spec.requested_gpus if fixed else spec.min_gpus,
        max_gpus=spec.requested_gpus if fixed else None,
        requested_gpus=spec.requested_gpus,
        retries=spec.retries,
        elastic=not fixed,
    )
    argv = ("python", "train.py", str(spec.number))
    return job, Submission(name=f"job{spec.number}", argv=argv, cwd="/", elastic=spec.elastic)
