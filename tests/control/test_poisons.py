"""Ten kinds of poisoned reports against a running service: each costs its own job at most."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ones.control.tokens import JobTokens
from ones.lab.kernel_warmup import warm_up
from tests.control.world import World
from tests.processes import wait_for

JOINED = {
    "type": "Joined", "dataset_size": 1000, "base_batch": 64, "optimizer": "sgd",
    "parameter_bytes": 4000, "max_local_batch": 512,
}  # fmt: skip
EPOCH = {"type": "Epoch", "epoch": 1, "steps": 16, "samples": 1000, "loss": 1.5, "accuracy": 0.5}
SPEED = {
    "type": "Speed", "gpus": 1, "nodes": 1, "batch": 64, "micro_steps": 1, "step_seconds": 0.1,
    "steps": 20,
}  # fmt: skip

#: name -> reports that an attacker sends, and the number of the first one (None: the right one)
POISONS: dict[str, tuple[list[dict[str, Any]], int | None]] = {
    "no steps": ([{**SPEED, "steps": 0}], None),
    "no planned epochs": ([{**EPOCH, "epoch": 2, "planned_epochs": 0}], None),
    "no base batch": ([{**JOINED, "base_batch": 0, "max_local_batch": 0}], None),
    "no data": ([{**JOINED, "dataset_size": 0}], None),
    "nan and inf": (
        [{**EPOCH, "epoch": 2, "loss": "nan", "accuracy": "inf", "step_seconds": "nan"},
         {**SPEED, "step_seconds": "inf"}],
        None,
    ),
    "negative numbers": ([{**SPEED, "step_seconds": -1.0}, {**EPOCH, "samples": -5}], None),
    "400 digits": ([{**EPOCH, "epoch": 2, "samples": 10**400}], None),
    "hung worker": ([{"type": "Hung", "worker": "x"}], None),
    "sequence number": ([SPEED, EPOCH, SPEED], 2**63 - 1),
    "3,000 configurations": ([{**SPEED, "batch": 64 + n} for n in range(3000)], None),
}  # fmt: skip


class Worker:
    """One worker of a job, played by the test."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.job = world.run(["sleep", "1000"], name=name, max_gpus=1)
        launch = wait_for(lambda: world.launches(self.job), f"{name} is not launched")[0]
        self.slot = launch["slots"][0]
        self.plan = int(launch["id"].split("~")[1])
        self.token = JobTokens.kept_in(world.dir.key).of(self.job)
        self.number = 1

    def post(self, reports: list[dict[str, Any]], first: int | None = None) -> httpx.Response:
        body = {
            "type": "Reports", "job": self.job, "worker": self.slot, "plan": self.plan,
            "first": self.number if first is None else first, "reports": reports,
        }  # fmt: skip
        answer = self.world.http.post(
            "/worker/reports",
            content=json.dumps(body),
            headers={"Authorization": f"Bearer {self.token}"},
        )
        if answer.status_code == 200 and first is None:
            self.number += len(reports)
        return answer

    def state(self) -> str:
        return str(self.world.job(self.job)["state"])


@pytest.fixture(params=["ones", "fifo", "pollux"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    warm_up(request.param)
    world = World(tmp_path, policy=request.param, slots=len(POISONS) + 1)
    world.up()
    yield world
    world.down()


def test_ten_poisons_are_survived(world: World) -> None:
    honest: list[dict[str, Any]] = [JOINED, {"type": "Ready"}, SPEED, EPOCH]
    victims = {name: Worker(world, f"victim{n}") for n, name in enumerate(POISONS)}
    bystander = Worker(world, "bystander")
    for worker in (*victims.values(), bystander):
        answer = worker.post(honest)
        assert answer.status_code == 200, answer.text
        assert answer.json()["acknowledged"] == len(honest)
    for name, (reports, first) in POISONS.items():
        victim = victims[name]
        answer = victim.post(reports, first)
        if name == "nan and inf":  # only the step time that is infinite is refused
            assert answer.status_code == 422, name
            assert victim.post(reports[:1]).status_code == 200, "a loss may well diverge"
        elif answer.status_code == 200:
            wait_for(lambda v=victim: v.state() == "failed", f"{name}: accepted, and goes on")  # type: ignore[misc]
        else:
            assert answer.status_code in (422, 429), (name, answer.status_code, answer.text)
            assert "\n" not in answer.json()["error"]
            assert len(answer.json()["error"]) < 1000
        health = world.http.get("/health")
        assert health.status_code == 200, (name, health.text)
        again = bystander.post([{**SPEED, "steps": 7}])
        assert again.status_code == 200, f"{name}: {again.text}"
        new = world.http.post("/api/jobs", json={"command": ["true"], "cwd": "/"})
        assert new.status_code == 201, f"{name}: {new.text}"
    assert bystander.state() in ("running", "changing", "starting")
    assert world.process is not None
    assert world.process.poll() is None, world.log()
    world.kill()
    world.up()
    assert world.http.get("/health").json()["problems"] == []
    assert bystander.post([{**SPEED, "steps": 9}]).status_code == 200
    refused = world.http.get("/metrics").text
    assert "ones_reports_refused" in refused
