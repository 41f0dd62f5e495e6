"""Nodes that are drained, GPUs that fail or that strangers use: shown, and not given away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ones.control.live import nodes
from ones.control.live.suspicion import Suspicion
from ones.control.store import Waiting
from ones.core.cluster import Gpu, NodeId, NodeState
from tests.control.test_clock import Wall, running
from tests.control.world import World
from tests.processes import PATIENCE, wait_for

A, B, C = (Gpu(NodeId("n0"), i) for i in range(3))


@pytest.mark.parametrize(
    ("deaths", "verdict"),
    [
        ([(A, "x"), (A, "y")], False),
        ([(A, "x"), (A, "x"), (A, "x"), (A, "x")], False),  # it may be its script
        ([(A, "x"), (A, "x"), (A, "y")], True),
        ([(A, "x"), (A, "y"), (A, "z")], True),
        ([(B, "x"), (A, "x"), (A, "y"), (A, "z")], False),  # x dies anywhere
        ([(B, "x"), (A, "x"), (A, "y"), (A, "z"), (A, "w")], True),
        ([(A, "x"), (B, "x"), (A, "y"), (B, "y"), (A, "z"), (B, "z")], False),
    ],
)
def test_who_dies_only_there_speaks_against_a_gpu(
    deaths: list[tuple[Gpu, str]], verdict: bool
) -> None:
    suspicion = Suspicion()
    assert [suspicion.died(gpu, job) for gpu, job in deaths][-1] is verdict


def test_one_who_does_well_there_speaks_for_it() -> None:
    suspicion = Suspicion()
    suspicion.died(A, "x")
    suspicion.died(A, "y")
    suspicion.did_well(A, "z")
    assert not suspicion.died(A, "v")
    assert not suspicion.died(A, "w")
    assert suspicion.died(A, "u")


def test_a_gpu_stays_aside_when_its_node_was_gone_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path / "state", Wall()) as service:
        node, gpu = NodeId("local"), Gpu(NodeId("local"), 1)
        state, engine = service.brain.state, service.engine
        safe = Waiting()
        service.drain("local/1", "me", safe)
        safe.wait(PATIENCE)
        engine.post(lambda: nodes.gone(engine, node))
        wait_for(lambda: state.cluster.state_of(gpu) is NodeState.DOWN)
        engine.post(lambda: nodes.came(engine, node))
        wait_for(lambda: state.cluster.state_of(gpu) is NodeState.DRAINING)
        assert state.cluster.state_of(Gpu(node, 0)) is NodeState.UP


def slot(world: World, place: str) -> Any:  # noqa: ANN401
    return next(s for s in world.get("/api/cluster")["slots"] if s["id"] == place)


def drain(world: World, place: str, *, back: bool = False) -> Any:  # noqa: ANN401
    return world.post(f"/api/cluster/{'undrain' if back else 'drain'}", {"place": place})


def test_a_drained_node_keeps_its_jobs_and_gets_no_new_ones_even_after_a_restart(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    there = world.run(["sleep", "1000"], gpus=1)
    wait_for(lambda: world.job(there)["state"] == "running")
    assert drain(world, "local")["nodes"] == [{"name": "local", "gpus": 4, "state": "draining"}]
    new = world.run(["true"], gpus=1)
    world.restart()
    assert world.get("/api/cluster")["nodes"][0]["state"] == "draining"
    assert (world.job(there)["state"], world.job(new)["state"]) == ("running", "waiting")
    assert drain(world, "local", back=True)["nodes"][0]["state"] == "up"
    assert world.wait_end(new)["state"] == "finished"
    world.post(f"/api/jobs/{there}/cancel")


def test_one_gpu_is_set_aside_and_taken_back(make_world: Callable[..., World]) -> None:
    world = make_world()
    for place in ("local/0", "local/2"):
        drain(world, place)
    assert [s["state"] for s in world.get("/api/cluster")["slots"]] == ["draining", "up"] * 2
    assert "set aside by" in slot(world, "local/0")["aside"]
    jobs = [world.run(["sleep", "1000"], gpus=1) for _ in range(3)]
    wait_for(lambda: [world.job(j)["state"] for j in jobs] == ["running", "running", "waiting"])
    assert {world.job(j)["workers"][0]["gpu"] for j in jobs[:2]} == {"local/1", "local/3"}
    world.restart()
    assert slot(world, "local/2")["state"] == "draining"
    assert world.job(jobs[2])["state"] == "waiting"
    drain(world, "local/2", back=True)
    wait_for(lambda: world.job(jobs[2])["state"] == "running")
    assert world.job(jobs[2])["workers"][0]["gpu"] == "local/2"
    for job in jobs:
        world.post(f"/api/jobs/{job}/cancel")
    answer = world.http.post("/api/cluster/drain", json={"place": "local/9"})
    assert answer.status_code == 404
    assert "unknown node or GPU 'local/9'; did you mean" in answer.json()["error"]


def test_a_gpu_on_which_workers_die_is_set_aside_and_jobs_go_on_elsewhere(
    make_world: Callable[..., World],
) -> None:
    """The broken one is an impostor: scripts die wherever ONES_RUN_DIR ends with slot 0."""
    world = make_world(slots=2)
    keep = world.run(["sleep", "1000"], gpus=1)  # on slot 0
    wait_for(lambda: world.job(keep)["state"] == "running")
    world.post(f"/api/jobs/{keep}/cancel")
    world.wait_end(keep)
    dies = "import os, sys; sys.exit(9 * os.environ['ONES_RUN_DIR'].endswith('local.0'))"
    for number in range(3):
        job = world.run([sys.executable, "-c", dies], gpus=1)
        assert world.wait_end(job)["state"] == "failed", number
    wait_for(lambda: slot(world, "local/0")["state"] == "draining")
    assert "the last workers there died" in slot(world, "local/0")["aside"]
    assert "ones_slots_aside 1.0" in world.http.get("/metrics").text
    well = world.run([sys.executable, "-c", dies], gpus=1)
    assert world.wait_end(well)["state"] == "finished"
    drain(world, "local/0", back=True)
    assert slot(world, "local/0")["state"] == "up"
