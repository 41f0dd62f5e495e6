"""Rounds, marginal gains, and what is known of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from ones.core import Cluster, Event, Generation, Gpu, JobView, Plan, State
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import Configuration, JobId
from ones.core.plan import Rescale, Start, Stop
from ones.errors import InvalidSettingError
from ones.models.even_placement import EvenPlacement
from ones.models.oracle import RemainingWork
from ones.policies import create
from ones.sim import Simulator
from ones.sim.oracle import oracle_of
from ones.workload import generate
from tests.policies.immediate_engine import ImmediateEngine


def plans_of(policy_settings: dict[str, Any], seed: int = 2, jobs: int = 20) -> list[Plan]:
    trace = generate(jobs=jobs, seed=seed, gap=20.0)
    policy = create("optimus", oracle=oracle_of(trace, seed=0), **policy_settings)
    plans: list[Plan] = []

    def look(entry: Event | Plan) -> None:
        if isinstance(entry, Plan):
            plans.append(entry)

    result = Simulator(trace, Cluster.of(16), policy).run(look)
    assert len(result.state.ended) == jobs
    return plans


@pytest.mark.parametrize("knowledge", ["fitted", "oracle"])
def test_strict_rounds_do_nothing_between_ticks(knowledge: str) -> None:
    plans = plans_of({"idle_start": "off", "interval": 300.0, "knowledge": knowledge})
    deeds = [p.at for p in plans if any(isinstance(a, Start | Rescale | Stop) for a in p.actions)]
    assert len(deeds) > 2
    # a job waits some seconds for GPUs that another job still has to leave
    assert all(at % 300.0 < 60.0 for at in deeds)
    assert sum(at % 300.0 == 0.0 for at in deeds) >= 2


def test_a_job_that_comes_between_rounds_waits_with_a_note() -> None:
    world = ImmediateEngine(create("optimus", idle_start="off"), 4)
    world.submit("a", at=10.0)
    assert world.running == []
    assert world.note("a") == "Waiting: GPUs are assigned in the next round ⟨time:600⟩. ⟨queue:1⟩"
    world.until(600.0)
    assert world.running == ["a"]
    world.submit("b", at=601.0)
    world.end("a")
    world.until(1199.0)
    assert world.running == []  # GPUs that became free start no job
    world.until(1200.0)
    assert world.running == ["b"]


def test_rounds_stay_on_the_grid_after_an_idle_time() -> None:
    world = ImmediateEngine(create("optimus", idle_start="off"), 4)
    world.submit("a", at=10.0)
    world.until(600.0)
    world.end("a", at=700.0)
    world.submit("b", at=5000.0)
    assert world.running == []
    world.until(5400.0)
    assert world.running == ["b"]


def test_between_rounds_idle_gpus_are_used() -> None:
    for how, size in (("one", 1), ("requested", 3)):
        world = ImmediateEngine(create("optimus", idle_start=how), 8)
        world.submit("first", at=10.0, gpus=3)
        assert world.sizes() == {"first": size}


def test_a_long_job_gets_the_spare_gpus() -> None:
    """The worked case: 100 and 10,000 steps, the same speed."""

    def lengths(job: JobView, gpus: int, batch: int) -> RemainingWork:
        return RemainingWork({"short": 1.0, "long": 100.0}[job.id], 60.0 / gpus)

    world = ImmediateEngine(
        create("optimus", knowledge="oracle", oracle=lengths, idle_start="off"), 8
    )
    world.submit("short", at=1.0)
    world.submit("long", at=2.0)
    world.until(600.0)
    assert world.sizes() == {"short": 1, "long": 7}
    why = "each GPU goes where it saves the most time, here about 86 min compared with 1 GPU."
    assert world.note("long") == f"Started on 7 GPUs, batch 64: {why}"
    assert world.note("short").startswith("Started on 1 GPU, batch 64: its minimum;")


def test_a_job_without_measurements_has_no_made_up_saving() -> None:
    world = ImmediateEngine(create("optimus", idle_start="off"), 8)
    world.submit("a", at=1.0, gpus=3)
    world.until(600.0)
    assert world.note("a") == "Started on 3 GPUs, batch 64: its speed is not measured yet."


def test_with_pause_all_every_job_goes_through_a_checkpoint_at_a_round() -> None:
    world = ImmediateEngine(create("optimus", pause_all=True), 4)
    world.submit("a", at=10.0)
    world.submit("b", at=20.0)
    assert world.running == ["a", "b"]
    world.until(600.0)
    assert sorted(world.preempted) == ["a", "b"]
    assert world.running == ["a", "b"]
    world.until(1200.0)
    assert sorted(world.preempted) == ["a", "a", "b", "b"]


def test_more_jobs_than_gpus_the_first_have_one_each() -> None:
    world = ImmediateEngine(create("optimus", idle_start="off"), 2)
    for i in range(4):
        world.submit(f"j{i}", at=1.0 + i)
    world.until(600.0)
    assert world.sizes() == {"j0": 1, "j1": 1}


def test_a_job_preempted_in_a_round_does_not_cause_another_round() -> None:
    policy = create("optimus", idle_start="off")
    world = ImmediateEngine(policy, 2)
    for i in range(2):
        world.submit(f"j{i}", at=1.0 + i)
    world.until(600.0)
    world.submit("vip", at=700.0, priority=1.0)
    world.until(1200.0)
    assert world.sizes() == {"j0": 1, "vip": 1}
    assert world.preempted == ["j1"]  # its GPU was seen to be free, and it is back in the queue
    assert policy.save()["stage"] == ""
    assert "in the next round ⟨time:1800⟩" in world.note("j1")


def test_speeds_of_a_kind_teach_about_its_next_job() -> None:
    """A kind that does not scale gets one GPU; before that was known, what was asked for."""
    policy = create("optimus", idle_start="greedy")
    world = ImmediateEngine(policy, 8)
    world.submit("a", gpus=4)  # each is a kind of its own: "" is no kind
    assert world.sizes() == {"a": 4}
    generation = Generation(1)
    world.tell(
        ev.JobDescribed(
            at=0.0, job=JobId("a"), generation=generation, dataset_size=6400, base_batch=64
        )
    )
    for gpus, seconds in ((1, 1.0), (2, 1.0), (4, 1.0)):
        world.tell(
            ev.ThroughputMeasured(
                at=0.0,
                job=JobId("a"),
                generation=generation,
                configuration=Configuration(gpus, 1, 64),
                step_seconds=seconds,
                steps=20,
            )
        )
    world.until(600.0)
    assert world.sizes() == {"a": 1}


def test_it_saves_and_loads_its_rounds_losses_and_speeds() -> None:
    policy = create("optimus")
    world = ImmediateEngine(policy, 8)
    world.submit("a", gpus=4)
    for epoch, loss in enumerate((2.0, 1.5, 1.2), 1):
        world.tell(
            ev.EpochFinished(
                at=float(epoch), job=JobId("a"), generation=Generation(1), epoch=epoch,
                samples=64, steps=1, loss=loss,
            )
        )  # fmt: skip
    again = create("optimus")
    again.load(policy.save())
    assert again.save() == policy.save()
    assert policy.save()["losses"] == {"a": [2.0, 1.5, 1.2]}


def test_an_oracle_variant_without_an_oracle_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidSettingError, match="policy optimus: knowledge=oracle needs an"):
        create("optimus", knowledge="oracle")


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidSettingError, match=r"policy optimus: interval 0\.0"):
        create("optimus", interval=0.0)
    with pytest.raises(InvalidSettingError, match="placement 'far' is not one of even, stay"):
        create("optimus", placement="far")


def test_a_job_is_spread_evenly_over_the_fewest_nodes_that_allow_it() -> None:
    view = State(Cluster.of(12, 4)).view()
    nodes = EvenPlacement(view, [])
    six = nodes.place(6)
    assert sorted(sum(g.node == n for g in six) for n in {g.node for g in six}) == [3, 3]
    assert {g.node for g in nodes.place(4)} == {"n2"}  # the most room first
    assert nodes.place(2) == (Gpu(NodeId("n0"), 3), Gpu(NodeId("n1"), 3))


@pytest.mark.parametrize("placement", ["even", "stay"])
@pytest.mark.parametrize("lookahead", [False, True])
def test_every_variant_finishes(placement: str, lookahead: bool) -> None:
    plans_of({"placement": placement, "lookahead": lookahead, "interval": 60.0})
