"""What a job may ask for: sizes, a batch for each, and what they are worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ones.core import (
    Allocation,
    Cluster,
    Generation,
    Gpu,
    Job,
    JobId,
    JobView,
    NodeId,
    Scheduler,
    View,
)
from ones.core import events as ev
from ones.core.job import Configuration, StepTime, SwitchCost
from ones.policies import create
from ones.policies.ones.place.deploy import allocate
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.score.choices import Choices, choices_of
from ones.policies.ones.score.limits import MAX_PARTS
from ones.policies.ones.score.problem import optimum
from ones.policies.ones.score.problem_builder import (
    LEAST_RUN,
    MOST_LEAST_RUN,
    PosedProblem,
    build_problem,
)
from ones.policies.ones.settings import OnesSettings
from tests.policies.ones.jobs import seen

RESTED = JobStatus(smallest_batch=0)


def choices(
    view: View,
    job: JobView,
    *,
    most: int,
    held: int = 1,
    limit: int | None = None,
    status: JobStatus = RESTED,
    settings: OnesSettings | None = None,
) -> Choices:
    settings = settings or OnesSettings()
    if limit is not None:
        job = replace(job, job=structs.replace(job.job, max_batch=limit))
    return choices_of(view, job, most, held, Knowledge.none(), status, settings)


def built(
    view: View,
    job: JobView,
    work: float = 1e6,
    status: JobStatus = RESTED,
    known: Knowledge | None = None,
    **chosen: Any,
) -> PosedProblem:
    settings = OnesSettings(**chosen)
    known = known or Knowledge.none()
    found = build_problem(view, [job], {job.id: status}, np.full((4, 1), work), known, settings)
    assert found is not None
    return found


def held_by(job: JobView, gpus: int) -> JobView:
    places = [Gpu(NodeId(f"n{i // 4}"), i % 4) for i in range(gpus)]
    allocation = Allocation.even(places, 64 * gpus)
    return replace(job, held=allocation, wanted=allocation)


def test_sizes_are_the_usual_ones_and_the_present_one() -> None:
    view, job = seen(gpus=16)
    assert choices(view, job, most=16).sizes.tolist() == [1, 2, 4, 8, 12, 16]
    assert choices(view, job, most=6).sizes.tolist() == [1, 2, 4]
    assert choices(view, job, most=8, held=5).sizes.tolist() == [1, 2, 4, 5, 8]


def test_the_minimum_of_a_job_is_a_size() -> None:
    view, job = seen(gpus=16, least=3)
    assert 3 in choices(view, job, most=16, held=3).sizes


@given(st.integers(1, 5_000), st.integers(1, 512), st.integers(1, 512), st.integers(0, 600))
def test_no_batch_is_beyond_the_limit_or_sudden_growth(
    limit: int, local: int, base: int, last: int
) -> None:
    view, job = seen(gpus=16, base=base, limit=local, size=100_000)
    status = replace(RESTED, smallest_batch=last)
    for settings in (OnesSettings(), OnesSettings(epoch_growth=2.0)):
        found = choices(view, job, most=16, limit=limit, status=status, settings=settings)
        sizes, batches = found.sizes, found.batches
        assert (batches >= sizes).all()  # a sample for each worker
        assert (batches <= np.maximum(limit, sizes)).all()
        assert (batches <= MAX_PARTS * sizes * local).all()
        if last:
            growth = np.maximum(int(settings.epoch_growth * last), sizes)
            assert (batches <= growth).all()


def test_a_batch_beyond_memory_is_chosen_where_synchronisation_is_slow() -> None:
    """Two GPUs with 8 samples each are slower than one; with 32 each, in parts, they are not."""
    view, job = seen(gpus=2, base=16, limit=8, size=100_000)
    profile = {
        Configuration(1, 1, 8, 1): StepTime(0.10, 50),
        Configuration(1, 1, 16, 2): StepTime(0.20, 50),
        Configuration(1, 1, 4, 1): StepTime(0.06, 50),
        Configuration(2, 1, 16, 1): StepTime(0.40, 50),
    }
    job = replace(job, profile=profile, progress=replace(job.progress, gradient_noise=10_000.0))
    found = choices(view, job, most=2, held=1, limit=512)
    assert found.batches[-1] > 2 * 8
    assert found.rates[-1] > 1.2 * found.rates[0]


def test_the_user_s_largest_batch_limits_batches_and_gpus() -> None:
    view, job = seen(gpus=16, base=4, limit=4, size=100_000, max_batch=6)
    assert choices(view, job, most=4).batches.max() == 6
    assert built(view, job).problem.most[0] == 6


def test_within_an_epoch_a_batch_grows_to_four_times_by_default() -> None:
    view, job = seen(gpus=16, size=1_000_000)
    status = replace(RESTED, smallest_batch=64)
    for growth, most in ((4.0, 256), (2.0, 128)):
        settings = OnesSettings(epoch_growth=growth)
        found = choices(view, job, most=16, limit=4096, status=status, settings=settings)
        assert found.batches[-1] == most


def test_a_small_noise_scale_keeps_batches_small() -> None:
    """Goodput: samples beyond the noise scale teach little."""
    view, job = seen(gpus=16, size=1_000_000)
    last = {}
    for noise in (1.0, 1e6):
        one = replace(job, progress=replace(job.progress, gradient_noise=noise))
        last[noise] = int(choices(view, one, most=16, limit=4096).batches[-1])
    assert last[1.0] == 64
    assert last[1e6] == OnesSettings().most_base_batches * 64


SLOW_ON_EIGHT = {
    Configuration(1, 1, 64): StepTime(1.0, 20),
    Configuration(4, 1, 256): StepTime(1.0, 20),
    Configuration(8, 2, 512): StepTime(8.0, 20),
}


def test_a_size_measured_to_be_slower_than_a_smaller_one_is_not_offered() -> None:
    """Eight GPUs are slower than four; only a job that holds eight has them as a choice."""
    view, job = seen(gpus=16, size=1_000_000)
    slow = replace(job, profile=SLOW_ON_EIGHT)
    found = choices(view, slow, most=8, limit=512)
    assert found.sizes.tolist() == [1, 2, 4]
    there = choices(view, slow, most=8, held=8, limit=512)
    assert there.sizes.tolist() == [1, 2, 4, 8]
    assert there.rates[-1] < 0.5 * there.rates[-2]
    assert there.rates[-1] <= 512 / 8.0


def test_more_gpus_are_not_slower_unless_measured() -> None:
    """Only the model says that twelve GPUs on three nodes are slower than four."""
    view, job = seen(gpus=16, size=1_000_000)
    slow = replace(job, profile=SLOW_ON_EIGHT)
    found = choices(view, slow, most=12, limit=512)
    assert found.sizes.tolist() == [1, 2, 4, 12]
    assert (np.diff(found.rates) >= 0).all()


def test_the_minimum_of_a_job_is_offered_even_if_fewer_gpus_are_faster() -> None:
    view, job = seen(gpus=16, least=3, size=1_000_000)
    slow = replace(job, profile={Configuration(1, 1, 64): StepTime(1.0, 20),
                                 Configuration(3, 1, 64): StepTime(9.0, 20)})  # fmt: skip
    found = choices(view, slow, most=16, held=0, limit=64)
    assert 3 in found.sizes


def test_counts_are_rounded_down_to_useful_sizes() -> None:
    view, job = seen(gpus=16)
    posed = built(view, job)
    assert posed.choices[0].sizes.tolist() == [1, 2, 4, 8]  # eight times what was tried
    rounded = [int(posed.round_counts(np.array([n], np.int32))[0]) for n in range(9)]
    assert rounded == [0, 1, 2, 2, 4, 4, 4, 4, 8]


def test_the_gpu_limit_is_a_multiple_of_the_largest_size_tried() -> None:
    view, job = seen(gpus=64)
    tried = replace(job, profile={Configuration(2, 1, 64): StepTime(1.0, 20)})
    assert built(view, job).problem.most[0] == 8  # it runs on one
    assert built(view, tried).problem.most[0] == 16
    assert built(view, tried, exploration=2.0).problem.most[0] == 4
    assert built(view, tried, most_gpus=3).problem.most[0] == 3


def test_flow_only_the_present_size_has_its_full_value() -> None:
    """T/(T + delta) with T = min(0.4 of 400 s, what is left), to grow 100 s, and delta twice
    the pause; a job that shrinks will grow later, with another pause."""
    view, job = seen(gpus=16)
    job = held_by(job, 4)
    pause, restart = 2 * job.switch_cost.rescale_seconds, 2 * job.switch_cost.restart_seconds
    assert pause > 0
    assert restart > 0
    posed = built(view, job, work=1e12)
    rates = posed.choices[0].rates
    cost = posed.problem.cost[0]
    assert cost[4] == pytest.approx(-rates[2] / rates[0])
    assert cost[8] == pytest.approx(-rates[3] / rates[0] * 100 / (100 + pause))
    assert cost[0] == pytest.approx(rates[2] / rates[0] * restart / (160 + restart))
    back = rates[2] / rates[0] * pause / (160 + pause)
    assert cost[1] == pytest.approx(-160 / (160 + pause) + back)
    assert cost[3] == cost[2]  # no use for a third
    free = built(view, job, work=1e12, change_worth=0.0).problem.cost[0]
    assert free[8] == pytest.approx(-rates[3] / rates[0])
    assert free[0] == 0


def test_flow_growth_is_charged_for_gpus_that_wait_for_joining_workers() -> None:
    """The job keeps its speed meanwhile; a job that shrinks is charged for growing back."""
    view, job = seen(gpus=16)
    job = held_by(job, 4)
    pause = 2 * job.switch_cost.rescale_seconds
    known = Knowledge.none()
    known.join_times.load({"seconds": 10.0, "since": {}})
    posed = built(view, job, work=1e12, known=known)
    rates = posed.choices[0].rates
    cost = posed.problem.cost[0]
    four, eight = rates[2] / rates[0], rates[3] / rates[0]
    assert cost[4] == pytest.approx(-four)
    assert cost[8] == pytest.approx(-(eight * 100 + four * 10) / (100 + pause + 10))
    back = (four * pause + (four - 1) * 10) / (160 + pause + 10)
    assert cost[1] == pytest.approx(-160 / (160 + pause) + back)


def test_flow_a_start_is_never_charged() -> None:
    view, job = seen(gpus=16)
    waiting = replace(job, held=None, wanted=None)
    posed = built(view, waiting, work=1.0)  # thought to end at once
    rates = posed.choices[0].rates
    assert posed.problem.cost[0, 0] == 0
    assert posed.problem.cost[0, 1] == -1
    assert posed.problem.cost[0, 8] == pytest.approx(-rates[-1] / rates[0])


def test_flow_priority_doubles_a_weight() -> None:
    view, job = seen(gpus=16)
    plain = built(view, job).problem.work[0, 0]
    assert built(view, replace(job, priority=1.0)).problem.work[0, 0] == pytest.approx(2 * plain)
    assert built(view, replace(job, priority=-1.0)).problem.work[0, 0] == pytest.approx(plain / 2)


@given(
    st.integers(1, 4_096),
    st.integers(1, 512),
    st.integers(1, 512),
    st.integers(0, 600),
    st.sampled_from([1.0, 1e3, 1e6]),
)
def test_no_batch_is_below_the_user_s_smallest_one(
    least: int, local: int, base: int, last: int, noise: float
) -> None:
    """Whatever goodput, memory, data and the growth within an epoch would have."""
    view, job = seen(gpus=16, base=base, limit=local, size=10_000)
    job = replace(
        job,
        job=structs.replace(job.job, min_batch=least),
        progress=replace(job.progress, gradient_noise=noise),
    )
    status = replace(RESTED, smallest_batch=last)
    found = choices(view, job, most=16, status=status)
    assert (found.batches >= least).all()
    exact = replace(job, job=structs.replace(job.job, max_batch=max(least, 16)))
    found = choices(view, exact, most=16, status=status)
    assert (found.batches >= least).all()
    assert (found.batches <= max(least, 16)).all()


def test_a_job_below_its_smallest_batch_gets_it_even_if_slower() -> None:
    """It has started with its script's batch. Samples beyond its noise scale teach it little."""
    view, job = seen(gpus=16, size=1_000_000)
    job = replace(held_by(job, 1), progress=replace(job.progress, gradient_noise=1.0))
    assert job.wanted is not None
    batches = {}
    for least in (None, 64, 256):
        one = replace(job, job=structs.replace(job.job, min_batch=least))
        found = choices(view, one, most=1)
        chosen = allocate(one, found, 1e6, job.wanted.gpus, horizon=100.0, cost=1.0)
        batches[least] = chosen.batch
    assert batches == {None: 64, 64: 64, 256: 256}


B = JobId("b")


def who_runs(
    *, since_start: float, restart: float = 25.0, priority: float = 0.0, work: float = 1e6
) -> str:
    """Of two jobs of one kind on one GPU: `a`, which has it, or `b`, which waits with this work."""
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    for name in ("a", "b"):
        scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId(name), submitted_at=0.0, kind="kind")))
    a = JobId("a")
    scheduler.handle(ev.WorkerReady(1.0, a, Generation(1), Gpu(NodeId("n0"), 0)))
    described = ev.JobDescribed(
        at=1.0, job=a, generation=Generation(1), dataset_size=10_000, base_batch=64
    )
    scheduler.handle(described)
    view = scheduler.state.view()
    running = replace(view.job(a), switch_cost=SwitchCost(1.0, restart))
    waiting = replace(view.job(B), priority=priority)
    statuses = {a: replace(RESTED, since_start=since_start), B: RESTED}
    works = np.tile([1e6, work], (4, 1))
    posed = build_problem(
        view, [running, waiting], statuses, works, Knowledge.none(), OnesSettings()
    )
    assert posed is not None
    return "ab"[int(np.argmax(optimum(posed.problem)))]


def test_a_job_that_has_just_started_is_preempted_neither_for_an_equal_nor_for_a_short_one() -> (
    None
):
    assert who_runs(since_start=0.0) == "a"
    assert who_runs(since_start=0.0, work=1e4) == "a"


@pytest.mark.parametrize("priority", [3.0, 20.0])
def test_a_job_that_has_just_started_is_preempted_for_one_of_a_higher_priority(
    priority: float,
) -> None:
    assert who_runs(since_start=0.0, priority=priority, restart=1.0) == "b"
    assert who_runs(since_start=0.0, priority=-priority, work=1e4, restart=1.0) == "a"


def test_after_its_minimum_run_a_job_is_preempted_for_a_shorter_one() -> None:
    for restart in (5.0, 10.0):
        least_run = LEAST_RUN * restart
        assert who_runs(since_start=least_run - 1, restart=restart, work=1e4) == "a"
        assert who_runs(since_start=least_run, restart=restart, work=1e4) == "b"
        assert who_runs(since_start=least_run, restart=restart) == "a"  # no gain: they are equal


def test_the_minimum_run_of_a_job_that_starts_slowly_has_a_maximum() -> None:
    restart = 2 * MOST_LEAST_RUN / LEAST_RUN
    assert who_runs(since_start=MOST_LEAST_RUN - 1, restart=restart, work=1e4) == "a"
    assert who_runs(since_start=MOST_LEAST_RUN, restart=restart, work=1e4) == "b"


def test_without_a_gpu_there_is_no_problem() -> None:
    view, job = seen(gpus=1)
    stranger = replace(job, wanted=None, held=None)
    settings = OnesSettings()
    known = Knowledge.none()
    assert not len(view.free)
    assert (
        build_problem(view, [stranger], {job.id: RESTED}, np.ones((1, 1)), known, settings) is None
    )
