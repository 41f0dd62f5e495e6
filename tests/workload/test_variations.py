"""Variations of a trace: which jobs they take, what they change, and what they leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ones.errors import InvalidSettingError, UnknownNameError
from ones.lab.runs import Run, RunSpec, trace_of
from ones.sim.lengths import epochs_needed
from ones.workload import Trace, Training, generate
from ones.workload.variations import JobShares, varied, without_kind

TRACE = generate(jobs=40, seed=4, gap=12.0)
RUN = RunSpec(policy="equi", jobs=10, gpus=16, seed=3, mechanism="elastic")


def changed(shares: JobShares, seed: int = 4) -> Trace:
    return varied(TRACE, shares, seed, epochs_needed)


def differing(trace: Trace) -> set[str]:
    return {
        a.job.id for a, b in zip(trace.jobs, TRACE.jobs, strict=True) if a != b
    }  # in the same order: arrivals stay


def test_a_share_of_zero_changes_nothing() -> None:
    assert changed(JobShares()) == TRACE
    assert trace_of(RUN) == trace_of(replace(RUN, shares=JobShares(rigid=0.0)))


@pytest.mark.parametrize("name", ["mislabelled", "killed", "rigid"])
def test_shares_are_drawn_by_the_seed_and_nested(name: str) -> None:
    some, more, all_ = (differing(changed(JobShares(**{name: s}))) for s in (0.2, 0.6, 1.0))
    assert 0 < len(some) < len(more) < len(all_) == len(TRACE.jobs)
    assert some < more
    assert differing(changed(JobShares(**{name: 0.2}))) == some
    assert differing(changed(JobShares(**{name: 0.2}), seed=5)) != some


def test_a_mislabelled_job_trains_as_before() -> None:
    for after, before in zip(changed(JobShares(mislabelled=1.0)).jobs, TRACE.jobs, strict=True):
        assert after.job.kind != before.job.kind
        assert after.training == before.training


def test_a_killed_job_ends_midway_as_failed_or_cancelled() -> None:
    killed = set()
    for entry in changed(JobShares(killed=1.0)).jobs:
        training = entry.training
        assert isinstance(training, Training)
        assert training.dies_after is not None
        needed = epochs_needed(training, training.base_batch)
        assert 0.1 <= training.dies_after / needed <= 0.9
        killed.add(training.killed)
    assert killed == {True, False}
    row = Run(replace(RUN, shares=JobShares(killed=0.5))).carry_out()
    assert row["finished"] + row["failed"] + row["cancelled"] == 10
    assert row["failed"] + row["cancelled"] > 0


def test_rigid_jobs_have_what_they_requested_under_every_policy() -> None:
    spec = replace(RUN, shares=JobShares(rigid=1.0))
    rows = [Run(replace(spec, policy=policy)).carry_out() for policy in ("equi", "sia", "fifo")]
    assert [row["rescales"] for row in rows] == [0, 0, 0]
    usual = [Run(replace(RUN, policy=policy)).carry_out() for policy in ("equi", "fifo")]
    assert usual[0]["rescales"] > 0
    # a policy of requested sizes starts the same jobs at the same times
    assert rows[2]["mean_jct"] == pytest.approx(usual[1]["mean_jct"])


def test_a_kind_can_be_left_out() -> None:
    kinds = {entry.job.kind for entry in without_kind(TRACE, "vgg16-imagenet").jobs}
    assert kinds == {entry.job.kind for entry in TRACE.jobs} - {"vgg16-imagenet"}
    few = generate(jobs=1, seed=4, gap=12.0)
    kind = few.jobs[0].job.kind
    assert without_kind(few, "bert-sst2" if kind != "bert-sst2" else "bert-cola") == few
    with pytest.raises(UnknownNameError, match="unknown kind 'vgg'"):
        without_kind(TRACE, "vgg")
    with pytest.raises(InvalidSettingError, match="no job is left without"):
        without_kind(few, kind)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_zero_and_one(share: float) -> None:
    with pytest.raises(InvalidSettingError, match=r"rigid: .* is not in 0\.\.1"):
        JobShares(rigid=share)
