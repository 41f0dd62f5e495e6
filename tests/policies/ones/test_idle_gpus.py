"""No GPU idles for longer than the policy's spacing while a job that could use it waits."""

from __future__ import annotations

import random

import pytest

from ones.core import Cluster, Event, Job, JobId, Plan, Scheduler
from ones.core import events as ev
from ones.core.actions import adopt
from ones.core.state import State
from ones.core.transitions import apply
from ones.policies import create
from ones.policies.ones.settings import OnesSettings
from ones.sim import Simulator
from ones.sim.kinds import KindPhysics
from ones.sim.physics import Noise
from ones.workload import Trace, TraceJob, Training

KIND = "resnet50-imagenet"
SPACING = OnesSettings().spacing


class NoisySteps(KindPhysics):
    """Reports step times and noise scales to within a factor of two: batches change often."""

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self.report_noise = Noise(step_seconds=0.7, gradient_noise=0.7)


def elastic_jobs(seed: int) -> list[TraceJob]:
    draw, at, jobs = random.Random(seed), 0.0, []
    for number in range(16):
        at += draw.expovariate(1 / 12)
        job = Job(
            id=JobId(f"j{number}"),
            submitted_at=at,
            requested_batch=64,
            epochs=draw.choice([5, 20, 60]),
        )
        size = draw.choice([2_000, 5_000, 10_000])
        jobs.append(TraceJob(job, Training(kind=KIND, dataset_size=size, base_batch=64)))
    return jobs


def longest_idle_wait(simulator: Simulator, cluster: Cluster, log: list[Event | Plan]) -> float:
    """The longest time in which one elastic job waited beside enough free GPUs."""
    state = State(cluster, simulator.scheduler.state.switch_cost)
    since: dict[JobId, float] = {}
    longest = 0.0
    for entry in log:
        for began in since.values():
            longest = max(longest, entry.at - began)
        if isinstance(entry, Plan):
            adopt(state, entry)
        else:
            apply(state, entry)
        view = state.view()
        could_start = [j.id for j in view.waiting if j.job.min_gpus <= len(view.free)]
        since = {job: since.get(job, entry.at) for job in could_start}
    return longest


@pytest.mark.parametrize(("seed", "gpus"), [(4, 4), (38, 4), (5, 8), (11, 8)])
def test_no_gpu_idles_while_an_elastic_job_waits(seed: int, gpus: int) -> None:
    log: list[Event | Plan] = []
    simulator = Simulator(
        Trace.of("idle", elastic_jobs(seed)),
        Cluster.of(gpus),
        create("ones", seed=1),
        physics=NoisySteps,  # type: ignore[arg-type]
        seed=1,
    )
    simulator.run(log.append)
    assert longest_idle_wait(simulator, Cluster.of(gpus), log) <= SPACING + 0.1


def test_a_fixed_job_does_not_take_the_gpu_that_an_earlier_elastic_job_waits_for() -> None:
    scheduler = Scheduler(Cluster.of(2), create("ones", seed=1))

    def submit(name: str, at: float, *, elastic: bool) -> None:
        job = Job(id=JobId(name), submitted_at=at, elastic=elastic)
        scheduler.handle(ev.JobSubmitted(at, job))

    submit("first", 0.0, elastic=True)
    submit("second", 1.0, elastic=True)  # waits for the next update, at 5 s
    submit("fixed", 2.0, elastic=False)
    scheduler.handle(ev.Woke(5.0))
    assert set(scheduler.state.schedule) == {"first", "second"}
