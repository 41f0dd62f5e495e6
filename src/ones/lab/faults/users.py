"""Users and operators: they submit, cancel, change priorities and drain, with retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ones.control.api.access import COMMIT_SECONDS
from ones.control.controller import Controller
from ones.control.live.jobs import NOW
from ones.control.persistence import Done
from ones.control.submission import Submission
from ones.core.events import JobChanged
from ones.core.job import Job, JobId
from ones.errors import OnesError
from ones.lab.faults.context import FaultContext
from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.network import SimulatedNetwork

#: calls the controller; the `Done` is for the answer
Call = Callable[[Controller, Done], None]


@dataclass(slots=True)
class SimulatedUsers:
    context: FaultContext
    network: SimulatedNetwork
    specs: dict[int, JobSpec]
    acknowledged: dict[str, JobSpec] = field(default_factory=dict)  # jobs, by id
    submitted: set[str] = field(default_factory=set)  # ids that were assigned, acknowledged or not
    cancelled: set[str] = field(default_factory=set)  # jobs with at least one request to cancel
    pending: Counter[str] = field(default_factory=Counter)  # requests without an answer

    def submit(self, spec: JobSpec) -> None:
        id = ""

        def call(controller: Controller, done: Done) -> None:
            nonlocal id
            job, submission = _make_job(controller, spec)
            id = job.id
            self.submitted.add(id)
            controller.submit(job, submission, done)

        def answered() -> None:
            self.context.note(f"job {id} is acknowledged")
            self.acknowledged[id] = spec

        self._request(f"submission of {spec.number}", call, answered)

    def cancel_one(self) -> None:
        job = self._any_job()
        if job is None:
            return
        self.context.fault("cancel", job)
        self.cancel(job)

    def cancel(self, job: str) -> None:
        self.cancelled.add(job)
        self._request(f"cancellation of {job}", lambda c, done: c.cancel(job, "ann", done))

    def change_priority(self) -> None:
        job, priority = self._any_job(), float(self.context.rng.randint(-2, 3))
        if job is not None:
            self.context.fault("priority", f"{job}: {priority:g}")
            event = JobChanged(at=NOW, job=JobId(job), by="ann", priority=priority)
            self._request(f"priority of {job}", lambda c, done: c.change(event, None, done))

    def drain(self, place: str) -> None:
        self.context.fault("drain", place)
        self._request(f"drain of {place}", lambda c, done: c.drain(place, "operator", done))

    def undrain(self, place: str) -> None:
        self._request(f"undrain of {place}", lambda c, done: c.undrain(place, done), keep=True)

    def _answered(self, what: str) -> None:
        self.pending -= Counter({what: 1})

    def _any_job(self) -> str | None:
        jobs = sorted(self.acknowledged)
        return self.context.rng.choice(jobs) if jobs else None

    def _request(
        self,
        what: str,
        call: Call,
        answered: Callable[[], None] = lambda: None,
        *,
        keep: bool = False,
    ) -> None:
        """Repeats a request until it is answered; with `keep` also if it was refused."""
        self.pending[what] += 1
        context, over = self.context, False

        def retry() -> None:
            nonlocal over
            if not over:
                over = True
                self._answered(what)
                context.after(
                    context.rng.uniform(0.5, 5.0),
                    lambda: self._request(what, call, answered, keep=keep),
                )

        def finish(problem: Exception | None) -> None:
            nonlocal over
            if over:
                return
            if problem is not None:
                context.violation(f"{what} was refused: {problem}")
            over = True
            self._answered(what)
            answered()

        server = self.network.server
        if server is None:
            retry()
            return
        controller, instance = server.controller, context.instance
        context.after(COMMIT_SECONDS, retry)  # 503, or the connection broke
        try:
            call(
                controller, lambda problem: context.after(0.005, lambda: finish(problem), instance)
            )
        except OnesError as problem:
            context.note(f"{what}: {problem}")
            if keep:
                retry()
            else:
                finish(None)
            return


def _make_job(controller: Controller, spec: JobSpec) -> tuple[Job, Submission]:
    """Job and submission as the API makes them."""
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
