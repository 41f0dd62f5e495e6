"""How fast a job would be: one question or many at once, the answer is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from ones.core.job import Configuration, JobId, StepTime
from ones.models.bounded_table import MAX_CONFIGURATIONS, MAX_KINDS
from ones.models.speed import SpeedModel, fit_speed
from ones.policies.ones.predict.speeds import MOST_OF_A_KIND, Speeds
from tests.policies.ones.jobs import a_job

PROFILES = st.dictionaries(
    st.builds(
        Configuration,
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([1, 2]),
        st.sampled_from([64, 256, 1000]),
        st.sampled_from([1, 2]),
    ),
    st.builds(StepTime, st.floats(0.01, 10.0), st.integers(1, 50)),
    max_size=6,
)
#: the least-squares fit blames all of it on synchronising: a step on one GPU seemed to take 0 s
ALL_SYNC = {
    Configuration(1, 1, 64, 1): StepTime(3.0, 1),
    Configuration(2, 1, 64, 1): StepTime(1.0, 1),
    Configuration(2, 1, 256, 2): StepTime(0.5, 1),
}


@pytest.mark.parametrize("rule", ["model", "per-gpu"])
@given(
    profile=PROFILES,
    gpus=st.sampled_from([1, 2, 3, 4, 8]),
    batch=st.sampled_from([0, 64, 256, 1000]),
)
@example(profile=ALL_SYNC, gpus=1, batch=256)
def test_one_rate_equals_the_same_rate_among_many(
    rule: str, profile: dict[Configuration, StepTime], gpus: int, batch: int
) -> None:
    job = replace(a_job(), profile=profile)
    speeds = Speeds()
    speeds.learn(job)
    many = speeds.samples_per_second(job, np.array([gpus]), np.array([batch]), 4)
    assert speeds.rate(job, gpus, batch, 4) == many[0]


def test_measured_rates_are_not_modelled() -> None:
    profile = {Configuration(2, 1, 256, 1): StepTime(0.5, 20)}
    job = replace(a_job(), profile=profile)
    speeds = Speeds()
    assert speeds.rate(job, 2, 256, 4) == 512.0
    assert speeds.epoch_seconds(job) is not None


def test_sizes_tried_are_its_own_and_its_kinds() -> None:
    one = replace(a_job(), profile={Configuration(2, 1, 256, 1): StepTime(0.5, 20)})
    other = replace(a_job(), profile={Configuration(8, 2, 256, 1): StepTime(0.2, 20)})
    speeds = Speeds()
    speeds.learn(one)
    assert speeds.tried(other, np.array([1, 2, 4, 8])).tolist() == [False, True, False, True]


def test_a_job_that_reports_ever_more_configurations_costs_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fit is made when it is asked for, to a bounded number of configurations."""
    fitted: list[int] = []

    def counted(profile: Mapping[Configuration, StepTime]) -> SpeedModel | None:
        fitted.append(len(profile))
        return fit_speed(profile)

    monkeypatch.setattr("ones.policies.ones.predict.speeds.fit_speed", counted)
    speeds, job = Speeds(), a_job()
    profile: dict[Configuration, StepTime] = {}
    for batch in range(1, 501):
        profile = {**profile, Configuration(1, 1, batch): StepTime(0.1 + batch / 1000, 20)}
        job = replace(job, profile=profile)
        speeds.learn(job)
    assert not fitted
    for _ in range(3):
        assert speeds.rate(job, 2, 64, 4) > 0
    assert len(fitted) == 1
    assert fitted[0] <= MOST_OF_A_KIND + MAX_CONFIGURATIONS
    assert len(speeds.save()["kinds"]["kind"]) <= MOST_OF_A_KIND


def test_the_oldest_kinds_are_forgotten() -> None:
    speeds, one = Speeds(), a_job()
    profile = {Configuration(2, 1, 256, 1): StepTime(0.5, 20)}
    for i in range(MAX_KINDS + 10):
        job = replace(one, job=structs.replace(one.job, kind=f"kind-{i}"), profile=profile)
        speeds.learn(job)
    assert len(speeds.save()["kinds"]) == MAX_KINDS
    assert speeds.largest_tried(replace(job, profile={})) == 2
    oldest = replace(one, job=structs.replace(one.job, kind="kind-0"))
    assert speeds.largest_tried(oldest) == 0


def test_jobs_without_a_kind_share_no_measurements() -> None:
    """Their step times have nothing in common: in one pool they spoil each other's fit."""
    speeds = Speeds()
    own = replace(a_job(), profile={Configuration(2, 1, 256, 1): StepTime(0.5, 20)})
    one = replace(own, job=structs.replace(own.job, kind=""))
    other = replace(one, job=structs.replace(one.job, id=JobId("b")), profile={})
    speeds.learn(one)
    assert speeds.largest_tried(replace(one, profile={})) == 2
    assert speeds.largest_tried(other) == 0
    assert not speeds.is_measured(other)
    speeds.forget(one.id)
    assert not speeds.save()["kinds"], "what was learned of one job only goes with the job"
