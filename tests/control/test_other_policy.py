"""After a restart another policy decides, or the same in a version that cannot read what the
last one had learned: it learns anew, and the service starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ones.control.recorder import begin, recover
from ones.control.run_log_export import write_run_log
from ones.control.store import Store
from ones.core import Generation, Job, JobId, Policy
from ones.core import events as ev
from ones.core.cluster import NodeId
from ones.core.job import SwitchCost
from ones.policies import create
from ones.runlog import VERSION, Header
from tests.control.world import World

A = JobId("a")


def header(policy: str) -> Header:
    return Header(
        version=VERSION, software="0", policy=policy, seed=0, settings={}, nodes=(),
        switch_cost=SwitchCost(),
    )  # fmt: skip


def epoch(number: int) -> ev.Event:
    return ev.EpochFinished(
        at=2.0 + number, job=A, generation=Generation(1), epoch=number, samples=640, steps=10,
        loss=1 / number, accuracy=0.5, step_seconds=0.1,
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """With a job, and a snapshot by `equi` after almost every event."""
    store = Store(f"sqlite:///{tmp_path / 'ones.db'}")
    begin(store, header("equi"))
    scheduler, record = recover(store, header("equi"), create("equi"), lambda jobs, workers: 1)
    described = ev.JobDescribed(
        at=2.0, job=A, generation=Generation(1), dataset_size=640, base_batch=64
    )
    for event in (
        ev.NodeUp(0.0, NodeId("n"), 1),
        ev.JobSubmitted(1.0, Job(id=A, submitted_at=1.0, max_gpus=1)),
        described,
        epoch(1),
        epoch(2),
        epoch(3),
    ):
        record(event)
        plan = scheduler.handle(event)
        if not plan.says_nothing:
            record(plan)
        for action in plan.actions:
            ready = ev.WorkerReady(event.at, A, Generation(1), action.allocation.gpus[0])  # type: ignore[union-attr]
            record(ready)
            scheduler.handle(ready)
    store.flush()
    yield store
    store.close()


@pytest.mark.parametrize("policy", ["equi", "ones", "pollux", "sia", "drl", "optimus", "fifo"])
def test_another_policy_goes_on_with_the_jobs_that_are_there(store: Store, policy: str) -> None:
    scheduler, record = recover(
        store, header(policy), create(policy), lambda jobs, workers: 1, before=header("equi")
    )
    assert scheduler.state.records[A].epochs == 3
    if policy == "equi":
        assert scheduler.policy.save()["epoch_batch"] == {A: 64}
    for event in (epoch(4), epoch(5)):
        record(event)
        assert scheduler.handle(event).actions == ()
    store.flush()
    # its own snapshot names its policy, whatever the header was
    again, _ = recover(store, header(policy), create(policy), before=header("equi"))
    assert again.policy.save() == scheduler.policy.save()
    recover(store, header("equi"), create("equi"), before=header("equi"))


def test_what_another_version_has_learned_is_let_go(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Newer(type(create("equi"))):  # type: ignore[misc]
        def load(self, saved: Mapping[str, Any]) -> None:
            raise KeyError("paces")

    def fresh() -> Policy:
        return create("equi")

    with pytest.raises(KeyError):
        recover(store, header("equi"), Newer())
    scheduler, _ = recover(store, header("equi"), Newer(), fresh=fresh)
    assert scheduler.state.records[A].epochs == 3
    assert type(scheduler.policy) is type(fresh())
    assert [vars(record)["error"] for record in caplog.records] == ["KeyError: 'paces'"]


def test_a_log_that_two_policies_have_made_is_not_replayed_as_that_of_one(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.wait_end(world.run(["true"]))
    path = world.root / "run.jsonl"
    said = []
    for policy in ("fifo", "equi", "equi"):
        world.stop()
        world.settings["policy"] = policy
        world.up()
        write_run_log(world.dir.database, path)
        said.append(
            subprocess.run(
                [sys.executable, "-m", "ones", "replay", path], capture_output=True, text=True,
                check=False,
            )
        )  # fmt: skip
    assert [found.returncode for found in said] == [0, 2, 2]
    assert "cannot be replayed: the policy (equi now), its settings" in said[1].stderr
    assert said[1].stderr == said[2].stderr
