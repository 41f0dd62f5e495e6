"""Nodes that are drained, GPUs that fail or that strangers use: shown, and not given away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.control.live.cordons import Cause
from ones.control.live.gpu_health import GpuHealth
from ones.control.live.jobs import NOW
from ones.control.store import Waiting
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.wire import messages as wire
from tests.control.by_hand import JOINED, ByHand
from tests.control.test_clock import Wall, running
from tests.control.world import World
from tests.processes import PATIENCE, wait_for

A, B, C = (Gpu(NodeId("n0"), i) for i in range(3))


@pytest.mark.parametrize(
    ("trained", "deaths", "verdict"),
    [
        # no job has ever worked elsewhere: it may be their scripts
        ([], [(A, "x"), (A, "y"), (A, "z"), (A, "x"), (A, "y")], False),
        ([(A, "x"), (A, "y")], [(A, "x"), (A, "x"), (A, "y"), (A, "y")], False),
        # jobs that train on another GPU die on this one only
        ([(B, "x"), (B, "y")], [(A, "x"), (A, "y")], False),
        ([(B, "x")], [(A, "x"), (A, "x"), (A, "x"), (A, "x")], False),  # one job only
        ([(B, "x"), (C, "y")], [(A, "x"), (A, "x"), (A, "y")], True),
        ([(B, "x"), (B, "y"), (B, "z")], [(A, "x"), (A, "y"), (A, "z")], True),
        ([(B, "x"), (B, "y")], [(A, "x"), (A, "y"), (A, "z")], False),  # z never worked
        # a job that dies elsewhere, too, dies of itself
        ([(C, j) for j in "xyz"], [(B, "x"), (A, "x"), (A, "y"), (A, "z")], False),
        ([(C, j) for j in "wxyz"], [(B, "x"), (A, "x"), (A, "y"), (A, "z"), (A, "w")], True),
        ([(C, j) for j in "xy"], [(A, "x"), (B, "x"), (A, "y"), (B, "y"), (A, "x")], False),
    ],
)
def test_jobs_that_work_elsewhere_speak_against_a_gpu(
    trained: list[tuple[Gpu, str]], deaths: list[tuple[Gpu, str]], verdict: bool
) -> None:
    health = GpuHealth()
    for gpu, job in trained:
        health.trains(gpu, job)
    assert bool([health.died(gpu, job) for gpu, job in deaths][-1]) is verdict


@pytest.mark.parametrize(
    ("number", "verdict"),
    [(signal.SIGBUS, True), (signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False),
     (signal.SIGTERM, False), (None, False)],
)  # fmt: skip
def test_signals_of_a_device_fault_speak_against_a_gpu_by_themselves(
    number: int | None, verdict: bool
) -> None:
    health = GpuHealth()
    told = [health.died(A, job, signal=number) for job in "xyx"]
    assert told[:2] == ["", ""]
    assert bool(told[2]) is verdict


def test_a_successful_worker_clears_the_failures_of_its_gpu() -> None:
    health = GpuHealth()
    for job in "uvwxy":
        health.trains(B, job)
    health.died(A, "x")
    health.died(A, "y")
    health.did_well(A, "z")
    assert not health.died(A, "v")
    assert not health.died(A, "w")
    assert health.died(A, "u") == "3 workers of 3 jobs that train on other GPUs died there"


# the engine, turned by hand


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ByHand]:
    bench = ByHand(tmp_path, slots=4)
    yield bench
    bench.close()


def test_scripts_that_fail_before_they_join_cost_no_gpu(bench: ByHand) -> None:
    """Two typos took a slot out of service; here are six."""
    for number in range(6):
        job = JobId(f"typo-{number}")
        bench.submit(job)
        assert bench.on(job) == ["n0/0"]
        bench.die(job, code=1)
        assert job in bench.scheduler.state.ended
    for number in range(6):  # nor do those that are killed before they join, or never would
        job = JobId(f"fixed-{number}")
        bench.submit(job, elastic=bool(number % 2))
        bench.die(job, signal=signal.SIGSEGV if number % 2 else None)
    assert all(bench.is_used(f"n0/{i}") for i in range(4))
    assert not bench.engine.cordons.gpus


def test_jobs_that_train_on_other_gpus_and_die_on_one_take_it_out_of_service(
    bench: ByHand,
) -> None:
    for number in range(3):
        job = JobId(f"good-{number}")
        bench.submit(job, gpus=2)
        assert bench.on(job) == ["n0/0", "n0/1"]
        bench.say(job, JOINED)
        bench.say(job, wire.Ready())
        bench.die(job, "n0/0", code=1)
        bench.engine.live.emit(ev.CancelRequested(NOW, job, "me"))
        bench.turn()
        bench.die(job, "n0/1", code=0)
        assert bench.is_used("n0/0") is (number < 2)
    (causes,) = bench.engine.cordons.gpus.values()
    assert causes == {"failing": "3 workers of 3 jobs that train on other GPUs died there"}
    next_one = JobId("next-1")
    bench.submit(next_one)
    assert bench.on(next_one) == ["n0/1"]


def test_a_job_that_waits_says_which_gpus_are_missing(bench: ByHand) -> None:
    bench.submit(JobId("big-1"), gpus=4)
    bench.submit(JobId("big-2"), gpus=4)
    state, board = bench.scheduler.state, bench.board
    board.update(state, state.records)
    assert "out of service" not in board.cards["big-2"].note
    bench.engine.cordons.cordon(Gpu(NodeId("n0"), 3), Cause.FAILING, "3 workers died there")
    bench.turn()
    board.update(state, [])
    told = "1 of 4 GPUs is out of service: n0/3 (3 workers died there); ones cluster undrain n0/3"
    assert board.cards["big-2"].note.endswith(told)
    assert told not in board.cards["big-1"].note, "it runs"
    bench.engine.cordons.uncordon(Gpu(NodeId("n0"), 3), Cause.OPERATOR)
    bench.turn()
    board.update(state, [])
    assert "out of service" not in board.cards["big-2"].note


def test_a_gpu_stays_aside_when_its_node_was_gone_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path / "state", Wall()) as service:
        node, gpu = NodeId("local"), Gpu(NodeId("local"), 1)
        state, engine = service.scheduler.state, service.engine
        safe = Waiting()
        service.drain("local/1", "me", safe)
        safe.wait(PATIENCE)
        engine.live.post(lambda: engine.nodes.node_lost(node))
        wait_for(lambda: state.cluster.state_of(gpu) is NodeState.DOWN)
        engine.live.post(lambda: engine.nodes.slot_up(node))
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
    me = world.get("/api/me")["name"]
    assert drain(world, "local")["nodes"] == [
        {"name": "local", "gpus": 4, "state": "draining", "reason": f"drained by {me}"}
    ]
    new = world.run(["true"], gpus=1)
    world.restart()
    node = world.get("/api/cluster")["nodes"][0]
    assert (node["state"], node["reason"]) == ("draining", f"drained by {me}")
    assert (world.job(there)["state"], world.job(new)["state"]) == ("running", "waiting")
    assert drain(world, "local", back=True)["nodes"][0]["state"] == "up"
    assert world.wait_end(new)["state"] == "finished"
    world.post(f"/api/jobs/{there}/cancel")


def test_one_gpu_is_set_aside_and_taken_back(make_world: Callable[..., World]) -> None:
    world = make_world()
    for place in ("local/0", "local/2"):
        drain(world, place)
    assert [s["state"] for s in world.get("/api/cluster")["slots"]] == ["draining", "up"] * 2
    assert "drained by" in slot(world, "local/0")["aside"]
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


def test_two_typos_take_no_gpu_away_and_a_gpu_out_of_service_is_told(
    make_world: Callable[..., World],
) -> None:
    world = make_world(slots=2)
    for number in range(4):
        job = world.run([sys.executable, "-c", "import no_such_module"])
        assert world.wait_end(job)["state"] == "failed", number
    assert [s["state"] for s in world.get("/api/cluster")["slots"]] == ["up", "up"]
    assert "ones_slots_aside 0.0" in world.http.get("/metrics").text
    drain(world, "local/1")
    assert "ones_slots_aside 1.0" in world.http.get("/metrics").text
    there = world.run(["sleep", "1000"], gpus=1)
    waits = world.run(["sleep", "1000"], gpus=1)
    wait_for(lambda: world.job(there)["state"] == "running")
    told = "1 of 2 GPUs is out of service: local/1 (drained by"
    wait_for(lambda: told in world.job(waits)["note"], world.job(waits)["note"])
    for command in (["ps"], ["top", "--once"]):
        shown = subprocess.run(
            [Path(sys.executable).with_name("ones"), *command, "--dir", str(world.dir.path)],
            capture_output=True, text=True, check=True,
            env={**os.environ, "COLUMNS": "200"},
        )  # fmt: skip
        assert told in shown.stdout + shown.stderr, command
    for job in (there, waits):
        world.post(f"/api/jobs/{job}/cancel")
