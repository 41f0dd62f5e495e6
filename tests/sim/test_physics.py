"""Is it physics? The simulator against the numbers it was made from."""

from __future__ import annotations

import pytest

from ones.core import Allocation, Cluster, Gpu, NodeId
from ones.policies import create
from ones.sim import Physics, Simulator
from ones.workload import Trace, TraceJob, Training, generate, paper_numbers

PHYSICS = Physics()
NUMBERS = paper_numbers()


def training(kind: str) -> Training:
    found = NUMBERS.kind(kind)
    return Training(kind=kind, dataset_size=found.sizes[0], base_batch=int(found.base_batch))


def gpus(count: int, per_node: int = 4) -> list[Gpu]:
    return list(Cluster.of(count, per_node).gpus())


def rate(kind: str, n_gpus: int, batch: int, per_node: int = 4) -> float:
    """Samples per second."""
    job = training(kind)
    allocation = Allocation.even(gpus(n_gpus, per_node), batch, PHYSICS.max_local_batch(job))
    return batch / PHYSICS.step_seconds(job, allocation)


@pytest.mark.parametrize("kind", NUMBERS.kinds)
def test_more_workers_and_a_batch_that_grows_with_them_are_faster(kind: str) -> None:
    base = int(NUMBERS.kind(kind).base_batch)
    rates = [rate(kind, n, base * n) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert rates == sorted(rates)
    assert rates[-1] <= 64 * rates[0]  # but never more than proportionally


@pytest.mark.parametrize("kind", NUMBERS.kinds)
def test_a_fixed_batch_on_ever_more_workers_stops_paying(kind: str) -> None:
    base = max(64, int(NUMBERS.kind(kind).base_batch))
    rates = [rate(kind, n, base) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert rates[-1] < 2 * max(rates[:4])
    assert rates[-1] < rate(kind, 64, 64 * int(NUMBERS.kind(kind).base_batch)) / 4


def test_placement_matters() -> None:
    job = training("vgg16-imagenet")
    n0, n1 = NodeId("n0"), NodeId("n1")
    pair = Allocation.even([Gpu(n0, 0), Gpu(n0, 1)], 128)
    sockets = Allocation.even([Gpu(n0, 0), Gpu(n0, 2)], 128)
    nodes = Allocation.even([Gpu(n0, 0), Gpu(n1, 0)], 128)
    times = [PHYSICS.step_seconds(job, a) for a in (pair, sockets, nodes)]
    assert times[0] < times[1] < times[2]


def test_accumulation_takes_time_instead_of_memory() -> None:
    job = training("resnet50-imagenet")
    one = gpus(1)
    whole, parts = Allocation.even(one, 256, 256), Allocation.even(one, 256, 64)
    assert parts.workers[0].micro_steps == 4
    assert PHYSICS.step_seconds(job, parts) > PHYSICS.step_seconds(job, whole)


@pytest.mark.parametrize("kind", NUMBERS.kinds)
def test_large_batches_cost_epochs_and_the_noise_scale_grows(kind: str) -> None:
    job = training(kind)
    worth = [PHYSICS.efficiency(job, batch, 5.0) for batch in (64, 256, 1024, 4096)]
    assert worth == sorted(worth, reverse=True)
    assert worth[-1] < 0.75
    assert PHYSICS.noise_scale(job, 20.0) > PHYSICS.noise_scale(job, 2.0)
    assert PHYSICS.efficiency(job, 1024, 20.0) > PHYSICS.efficiency(job, 1024, 2.0)


def test_one_large_jump_costs_more_than_two_small_ones() -> None:
    assert PHYSICS.jump_loss(256, 4096) > 2 * PHYSICS.jump_loss(256, 1024) == 0.0


@pytest.mark.parametrize("kind", NUMBERS.kinds)
def test_a_job_on_one_gpu_lasts_as_long_as_its_kind_says(kind: str) -> None:
    """The data file's one_gpu_seconds, which the load of a workload is counted in."""
    lasted = []
    wanted = [e for e in generate(jobs=50, seed=2, gap=1.0, scatter=0.0).jobs if e.job.kind == kind]
    for seed in range(5):
        for entry in wanted:
            job = _alone(entry)
            run = Simulator(Trace("one", (job,)), Cluster.of(1), create("fifo"), seed=seed).run()
            lasted += [outcome.run_seconds for outcome in run.state.ended.values()]
    mean = sum(lasted) / len(lasted)
    assert mean == pytest.approx(NUMBERS.kind(kind).one_gpu_seconds, rel=0.1)


def _alone(entry: TraceJob) -> TraceJob:
    from dataclasses import replace

    return TraceJob(
        replace(entry.job, requested_gpus=1, requested_batch=entry.training.base_batch),
        entry.training,
    )
