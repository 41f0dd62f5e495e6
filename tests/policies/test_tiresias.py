"""Least attained service: queues, seats, promotion, places."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ones.core import Cluster, Event, Plan
from ones.core.job import JobId
from ones.core.plan import Stop
from ones.core.record import JobRecord
from ones.errors import InvalidSettingError
from ones.policies import create
from ones.sim import Simulator
from ones.workload import generate
from tests.policies.immediate_engine import ImmediateEngine


def world(gpus: int, **settings: Any) -> ImmediateEngine:
    return ImmediateEngine(create("tiresias", **settings), gpus)


def test_with_one_queue_it_is_first_come_first_served_for_jobs_that_fit() -> None:
    jobs = world(4, thresholds="none")
    for name, size in (("a", 3), ("b", 2), ("c", 1)):
        jobs.submit(name, gpus=size)
    assert jobs.running == ["a", "c"]
    jobs.until(10_000.0)
    assert jobs.running == ["a", "c"]
    jobs.end("a")
    assert jobs.running == ["b", "c"]


def test_a_wide_job_sinks_after_threshold_by_gpus_and_yields_to_a_later_one() -> None:
    """The worked case: 8 GPUs, 3250/8 s."""
    jobs = world(8, thresholds="published")
    jobs.submit("wide", gpus=8)
    jobs.submit("early", at=3250 / 8 - 5)
    assert jobs.running == ["wide"]  # the same queue: no job is interrupted
    jobs.until(3250 / 8 + 0.001)
    assert jobs.running == ["early"]
    assert jobs.preempted == ["wide"]
    assert jobs.note("wide").startswith("Preempted: made room for ⟨job:early⟩. Its work is saved")


def test_it_does_not_sink_a_moment_too_early() -> None:
    jobs = world(8, thresholds="3250")
    jobs.submit("wide", gpus=8)
    jobs.submit("late", at=10.0)
    jobs.until(3250 / 8 - 0.01)
    assert jobs.running == ["wide"]


def test_a_demoted_job_is_behind_the_waiting_jobs_of_the_lower_queue() -> None:
    jobs = world(1, thresholds="100")
    jobs.submit("a")
    jobs.submit("b", at=10.0)
    jobs.until(100.5)
    assert jobs.running == ["b"]  # a has sunk
    jobs.until(201.0)
    assert jobs.running == ["a"]  # b has sunk too, behind a
    jobs.until(5_000.0)
    assert jobs.running == ["a"]  # within the last queue: by start, no job is interrupted


def test_no_job_interrupts_another_of_its_queue() -> None:
    jobs = world(2, thresholds="1000")
    for i in range(6):
        jobs.submit(f"j{i}", at=float(i))
    jobs.until(499.0)
    assert jobs.running == ["j0", "j1"]
    assert not jobs.preempted


def test_promotion_bounds_waiting_by_the_last_run() -> None:
    jobs = world(1, thresholds="100", promote_knob=1.0)
    jobs.submit("long")
    jobs.submit("other", at=50.0)
    jobs.until(150.0)
    assert jobs.running == ["other"]  # since 100 s; long had run for 100 s
    jobs.until(199.0)
    assert jobs.running == ["other"]
    jobs.until(202.0)  # other sinks at 200 s, and long is back in the first queue
    assert jobs.running == ["long"]
    forgiven = jobs.scheduler.policy.save()["seats"]["long"]
    assert forgiven["queue"] == 0
    assert forgiven["forgotten"] == pytest.approx(100.0)


def test_without_the_knob_no_job_is_promoted() -> None:
    jobs = world(1, thresholds="100")
    jobs.submit("long")
    for i in range(8):
        jobs.submit(f"s{i}", at=100.0 + 90 * i)
        if i:
            jobs.end(f"s{i - 1}")
        assert "long" not in jobs.running or i == 0


def test_a_higher_priority_comes_before_any_queue() -> None:
    jobs = world(1)
    jobs.submit("a")
    jobs.submit("vip", at=1.0, priority=1.0)
    assert jobs.running == ["vip"]


def test_gittins_prefers_the_job_that_is_likely_to_end() -> None:
    """Lengths of 50 and 1000 GPU-seconds: past 50, a job is a long one."""
    jobs = world(1, variant="gittins", thresholds="2000", gittins_quantum=60.0, gittins_cells=6)
    for i in range(4):
        jobs.submit(f"t{i}")
        jobs.end(f"t{i}", at=jobs.now + 50.0)
    jobs.submit("u")
    jobs.end("u", at=jobs.now + 1000.0)
    jobs.submit("long")
    jobs.submit("new", at=jobs.now + 70.0)
    assert jobs.running == ["new"]


def test_no_gpu_is_given_twice_and_the_cluster_is_never_overrun() -> None:
    """`check` would stop the first; the second is counted here, over a whole crowded run."""
    policy = create("tiresias", thresholds="100")
    sim = Simulator(generate(jobs=30, seed=2, gap=5.0), Cluster.of(8), policy)
    stops = 0

    def look(entry: Event | Plan) -> None:
        nonlocal stops
        if isinstance(entry, Plan):
            stops += sum(isinstance(action, Stop) for action in entry.actions)
        assert sum(a.n_gpus for _, a in sim.scheduler.state.schedule.items()) <= 8

    assert len(sim.run(look).state.ended) == 30
    assert stops > 0


@pytest.mark.parametrize("variant", ["las", "gittins"])
@pytest.mark.parametrize("placement", ["yarn", "step-time", "skew", "packed"])
def test_every_variant_finishes_a_crowded_trace(variant: str, placement: str) -> None:
    policy = create("tiresias", variant=variant, placement=placement, promote_knob=2.0)
    result = Simulator(generate(jobs=25, seed=3, gap=5.0), Cluster.of(16), policy).run()
    assert len(result.state.ended) == 25


def test_a_job_waits_for_one_node_while_a_narrower_one_goes_ahead() -> None:
    jobs = world(8)
    for name in "abcd":
        jobs.submit(name, gpus=2)
    jobs.end("a")
    jobs.end("c")  # two free on each of two nodes
    jobs.submit("wide", gpus=4)
    jobs.submit("narrow", gpus=2)
    assert jobs.running == ["b", "d", "narrow"]
    jobs.end("narrow")
    assert jobs.running == ["b", "d"]
    jobs.end("d")
    assert jobs.running == ["b", "wide"]
    assert jobs.scheduler.state.schedule[JobId("wide")].n_nodes == 1


def test_of_two_wide_jobs_the_one_that_finds_a_node_starts() -> None:
    jobs = world(12)
    for name, size in (("a", 2), ("b", 2), ("c", 4), ("d", 2)):
        jobs.submit(name, gpus=size)
    jobs.end("c")
    jobs.end("a")  # a whole node is free, and two GPUs on each of two others
    jobs.submit("big", gpus=12, priority=-1.0)
    jobs.submit("x", gpus=4)
    jobs.submit("y", gpus=4)
    assert jobs.running == ["b", "d", "x"]


def test_deciding_does_not_read_the_whole_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand wait; another arrival costs no more looks at jobs than with two hundred."""
    costs = []
    for waiting in (200, 2000):
        jobs = world(4)
        for i in range(4 + waiting):
            jobs.submit(f"j{i:04d}", gpus=1)
        tables = jobs.scheduler.state
        seen: list[JobId] = []
        show = tables._show

        def counting(record: JobRecord, show: Any = show, seen: list[JobId] = seen) -> Any:  # noqa: ANN401
            seen.append(record.id)
            return show(record)

        tables._views.clear()
        with monkeypatch.context() as patch:
            patch.setattr(tables, "_show", counting)
            jobs.submit("last")
        costs.append(len(seen))
    assert all(later <= earlier for earlier, later in pairwise(costs))


def test_thresholds_that_do_not_rise_are_refused() -> None:
    for wrong in ("5,3", "-1", "many", "0"):
        with pytest.raises(InvalidSettingError, match="policy tiresias: thresholds"):
            create("tiresias", thresholds=wrong)
    with pytest.raises(InvalidSettingError, match="variant 'fifo' is not one of las, gittins"):
        create("tiresias", variant="fifo")
