"""Generated traces: the paper's jobs, from a seed, at a load."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ones.errors import InvalidSettingError, UnknownNameError
from ones.workload import (
    RecordedTraining,
    Trace,
    TraceJob,
    Training,
    gap_for_load,
    generate,
    mean_one_gpu_seconds,
    paper_numbers,
)
from ones.workload.summary import summary_of

seeds = st.integers(0, 2**64)
SIZES = Counter((kind.name, size) for kind in paper_numbers().kinds.values() for size in kind.sizes)


def training(entry: TraceJob) -> Training:
    assert isinstance(entry.training, Training)
    return entry.training


def one_gpu_seconds(truth: Training | RecordedTraining) -> float:
    """By the data file, as `gap_for_load` has it; tests of the simulator hold it to that."""
    assert isinstance(truth, Training)
    return paper_numbers().kinds[truth.kind].one_gpu_seconds * truth.length


def sizes_of(trace: Trace) -> list[tuple[str, int]]:
    return [(training(entry).kind, entry.training.dataset_size) for entry in trace.jobs]


def made(**changes: Any) -> Trace:
    return generate(**{"jobs": 50, "seed": 1, "gap": 12.0, **changes})


def test_the_paper_has_fifty_sizes_of_ten_kinds() -> None:
    assert SIZES.total() == 50
    assert len(paper_numbers().kinds) == 10


@settings(max_examples=20)
@given(seeds, st.integers(1, 120))
def test_the_same_seed_gives_the_same_trace(seed: int, jobs: int) -> None:
    assert made(seed=seed, jobs=jobs) == made(seed=seed, jobs=jobs)


@settings(max_examples=20)
@given(seeds, seeds)
def test_another_seed_gives_another_trace(one: int, other: int) -> None:
    assert (made(seed=one).jobs == made(seed=other).jobs) == (one == other)


@settings(max_examples=20)
@given(seeds, st.integers(1, 170))
def test_each_size_comes_once_before_any_comes_again(seed: int, jobs: int) -> None:
    sizes = sizes_of(made(seed=seed, jobs=jobs))
    for start in range(0, jobs, 50):
        assert Counter(sizes[start : start + 50]) <= SIZES
    assert jobs < 50 or Counter(sizes[:50]) == SIZES


@settings(max_examples=20)
@given(seeds, st.integers(1, 200))
def test_jobs_have_names_of_their_own_and_arrive_in_order(seed: int, jobs: int) -> None:
    trace = made(seed=seed, jobs=jobs)
    names = [entry.job.id for entry in trace.jobs]
    times = [entry.job.submitted_at for entry in trace.jobs]
    assert len(set(names)) == jobs
    assert names == sorted(names)
    assert times == sorted(times)
    assert times[0] >= 0


def test_what_a_job_asks_for_goes_with_what_it_is() -> None:
    for entry in made(jobs=100).jobs:
        job, kind = entry.job, paper_numbers().kinds[training(entry).kind]
        assert job.kind == kind.name
        assert job.requested_batch == kind.base_batch * job.requested_gpus
        assert job.stop.target_accuracy == kind.target_accuracy < kind.accuracy_limit
        assert entry.training.base_batch <= entry.training.dataset_size
        assert (
            training(entry).classes == kind.classes[kind.sizes.index(entry.training.dataset_size)]
        )


@pytest.mark.parametrize(("load", "gpus"), [(0.5, 64), (0.8, 16), (1.5, 1024)])
def test_the_load_is_the_work_that_arrives_per_gpu_second(load: float, gpus: int) -> None:
    """Whole rounds of the fifty sizes, so that only arrivals are left to chance. The lengths of
    the data file have the noise of the stop rule in them, those that are expected have not."""
    trace = made(jobs=20_000, seed=3, gap=gap_for_load(load, gpus), scatter=0.0)
    assert summary_of(trace, gpus, one_gpu_seconds)["load"] == pytest.approx(load, rel=0.07)


def test_scatter_changes_lengths_but_hardly_the_load() -> None:
    gap = gap_for_load(0.8, 64)
    scattered = summary_of(made(jobs=20_000, gap=gap, scatter=0.3), 64, one_gpu_seconds)
    # the mean of a lognormal factor is exp(sigma**2 / 2)
    assert scattered["load"] == pytest.approx(0.8 * np.exp(0.3**2 / 2), rel=0.1)
    assert {training(entry).length for entry in made(scatter=0.0).jobs} == {1.0}
    assert len({training(entry).length for entry in made(scatter=0.3).jobs}) > 40


def test_arrivals_are_as_far_apart_as_asked_and_as_random_as_poisson() -> None:
    found = summary_of(made(jobs=20_000, gap=12.0), 64, one_gpu_seconds)
    assert found["mean_gap_seconds"] == pytest.approx(12.0, rel=0.03)
    assert found["gap_variation"] == pytest.approx(1.0, abs=0.05)


def test_without_a_gap_all_come_at_once() -> None:
    trace = made(gap=0.0)
    assert {entry.job.submitted_at for entry in trace.jobs} == {0.0}
    assert summary_of(trace, 64, one_gpu_seconds)["load"] is None


def test_jobs_of_a_kind_ask_for_gpus_in_the_shares_of_the_data_file() -> None:
    numbers = paper_numbers()
    asked: dict[str, Counter[int]] = {mix: Counter() for mix in numbers.requests}
    for entry in made(jobs=20_000).jobs:
        asked[numbers.kinds[training(entry).kind].requests][entry.job.requested_gpus] += 1
    for mix, found in asked.items():
        if found:
            for gpus, share in numbers.requests[mix].items():
                assert found[gpus] / found.total() == pytest.approx(share, abs=0.02)
            assert set(found) == set(numbers.requests[mix])


@pytest.mark.parametrize("mix", sorted(paper_numbers().requests))
def test_one_mix_of_requests_may_hold_for_all(mix: str) -> None:
    found = Counter(entry.job.requested_gpus for entry in made(jobs=20_000, requests=mix).jobs)
    for gpus, share in paper_numbers().requests[mix].items():
        assert found[gpus] / 20_000 == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"jobs": 0}, "jobs: 0 is not at least 1"),
        ({"jobs": -5}, "jobs: -5 is not at least 1"),
        ({"seed": -1}, "seed: -1 is negative"),
        ({"gap": -1.0}, r"gap: -1\.0 is not a number of seconds"),
        ({"gap": float("nan")}, "gap: nan is not a number of seconds"),
        ({"gap": float("inf")}, "gap: inf is not a number of seconds"),
        ({"scatter": -0.1}, r"scatter: -0\.1 is not in 0\.\.2"),
        ({"scatter": 2.1}, r"scatter: 2\.1 is not in 0\.\.2"),
        ({"scatter": float("nan")}, r"scatter: nan is not in 0\.\.2"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_name_and_value(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidSettingError, match=f"^{message}$"):
        made(**wrong)


def test_an_unknown_mix_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown mix of requested GPUs 'shrt'.*'short'"):
        made(requests="shrt")


@pytest.mark.parametrize(
    ("load", "gpus", "message"),
    [
        (0.0, 64, "load: 0.0 is not a number above 0"),
        (-1.0, 64, "load: -1.0 is not a number above 0"),
        (float("nan"), 64, "load: nan is not a number above 0"),
        (float("inf"), 64, "load: inf is not a number above 0"),
        (1.0, 0, "gpus: 0 is not at least 1"),
    ],
)
def test_an_impossible_load_is_refused(load: float, gpus: int, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"^{message}$"):
        gap_for_load(load, gpus)


def test_a_load_of_one_brings_a_job_whenever_the_cluster_has_done_one() -> None:
    assert gap_for_load(1.0, 1) == mean_one_gpu_seconds()
    assert gap_for_load(2.0, 8) == pytest.approx(mean_one_gpu_seconds() / 16)
