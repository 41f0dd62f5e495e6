"""How long a job is left alone after a change."""

from __future__ import annotations

import json

from ones.core import Gpu, JobId, NodeId
from ones.core.job import SwitchCost
from ones.policies.ones.stays import MOST_STAY, Stays

A = JobId("a")
COST = SwitchCost(rescale_seconds=10.0, restart_seconds=20.0)
ONE, OTHER = (Gpu(NodeId("n0"), 0),), (Gpu(NodeId("n0"), 1),)


def test_who_was_never_changed_may_do_anything() -> None:
    stays = Stays()
    assert stays.may_grow(A, COST, 0.0)
    assert stays.may_shrink(A, COST, 0.0, least=60.0)
    assert stays.may_stop(A, COST, 0.0, least=20.0)


def test_a_first_start_is_no_move_and_another_batch_neither() -> None:
    stays = Stays()
    assert not stays.started(A, ONE, 100.0)
    assert stays.may_grow(A, COST, 100.0)
    assert not stays.may_shrink(A, COST, 199.0, least=60.0)
    assert stays.changed(A, ONE, 150.0), "it keeps its GPUs"
    assert stays.may_grow(A, COST, 150.0)
    assert not stays.may_shrink(A, COST, 249.0, least=60.0)
    assert stays.may_shrink(A, COST, 250.0, least=60.0)


def test_after_a_move_it_rests_for_four_times_what_that_cost() -> None:
    stays = Stays()
    stays.started(A, ONE, 0.0)
    assert not stays.changed(A, OTHER, 100.0)
    assert not stays.may_grow(A, COST, 139.0)
    assert stays.may_grow(A, COST, 140.0)
    stays.started(A, ONE, 200.0)  # elsewhere, after a stop
    assert not stays.may_grow(A, COST, 201.0)


def test_a_change_that_is_announced_counts_for_what_it_may_lose() -> None:
    stays = Stays()
    stays.announced(A, 100.0)
    assert not stays.may_shrink(A, COST, 159.0, least=0.0)
    assert stays.may_grow(A, COST, 159.0)


def test_no_cost_makes_a_job_immovable() -> None:
    stays = Stays()
    stays.changed(A, ONE, 0.0)
    dear = SwitchCost(rescale_seconds=1e6)
    assert stays.may_shrink(A, dear, MOST_STAY, least=60.0)


def test_it_runs_for_a_while_before_it_is_sent_away() -> None:
    stays = Stays()
    stays.started(A, ONE, 100.0)
    stays.changed(A, OTHER, 300.0)  # no start
    assert not stays.may_stop(A, COST, 499.0, least=20.0)
    assert stays.may_stop(A, COST, 500.0, least=20.0)


def test_it_remembers_and_forgets() -> None:
    stays, other = Stays(), Stays()
    stays.started(A, ONE, 0.0)
    stays.changed(A, OTHER, 100.0)
    other.load(json.loads(json.dumps(stays.save())))
    assert other.save() == stays.save()
    assert not other.may_grow(A, COST, 110.0)
    other.forget(A)
    assert other.save() == Stays().save()
