"""The memory of a policy does not grow with the number of reports or names of kinds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from msgspec import structs

from ones.core import Policy
from ones.core.job import Configuration
from ones.models.bounded_table import MAX_KINDS
from ones.models.oracle import RemainingWork
from ones.policies import create, names
from ones.policies.drl.kind_table import MAX_CONFIGURATIONS, KindTable
from ones.policies.ones.predict.effective_work import EffectiveWork
from ones.policies.ones.predict.kind_lengths import KindLengths
from tests.policies.ones.jobs import a_job, told
from tests.policies.scripted_jobs import ScriptedJobs


def measured(name: str, configurations: int) -> Policy:
    """A policy after reports of a job with this number of batches."""
    policy = create(name, seed=1, oracle=lambda job, gpus, batch: RemainingWork(9.0, 2.0))
    lives = ScriptedJobs(policy, lambda event: [event])
    lives.submit("a", kind="resnet", owner="ann")
    lives.submit("b", kind="resnet", owner="bob")
    lives.wait(60.0)
    lives.report("a")
    for batch in range(1, configurations + 1):
        lives.measure("a", Configuration(1, 1, batch), 0.1 + 0.001 * batch)
    lives.report("a")
    return policy


@pytest.mark.parametrize("name", names())
def test_a_policy_remembers_a_bounded_number_of_configurations(name: str) -> None:
    some, more = (len(json.dumps(measured(name, n).save())) for n in (250, 500))
    assert more < some + 1000  # numbers may have more digits


def test_the_table_of_kinds_remembers_the_configurations_measured_last() -> None:
    kinds = KindTable()
    for batch in (*range(1, 3 * MAX_CONFIGURATIONS), 1):
        kinds.learn_speed("resnet", Configuration(1, 1, batch), 0.1, 20)
    known = kinds.save()["resnet"]["profile"]
    assert len(known) == MAX_CONFIGURATIONS
    assert known[-1][:4] == [1, 1, 1, 1]


def test_kinds_without_recent_reports_are_forgotten() -> None:
    effective_work, lengths, one = EffectiveWork(), KindLengths(), told(a_job(), noise=77.0)
    for i in range(MAX_KINDS + 10):
        job = replace(one, job=structs.replace(one.job, kind=f"kind-{i}"))
        effective_work.joined(job)
        effective_work.learn(job)
        lengths.learn(job.job.kind, 30.0)
    saved = effective_work.save()
    assert len(saved["noise"]) == len(saved["shapes"]) == MAX_KINDS
    assert len(lengths.save()["whole"]) == MAX_KINDS
    assert lengths.knows(job.job.kind)
    assert not lengths.knows("kind-0")
