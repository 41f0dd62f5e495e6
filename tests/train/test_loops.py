"""Loops that a script leaves end on all workers; workers that train differently are stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ones.core.events import Event, JobDescribed
from ones.core.plan import Plan
from tests.train.elastic import Elastic, elastic


def job_of(
    zygote: str, tmp_path: Path, shape: str, schedule: str = "0:1,6:2", **env: str
) -> Elastic:
    return elastic(zygote, tmp_path, schedule, exact=False, SCRIPT="loops.py", SHAPE=shape, **env)


def ends(job: Elastic) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(job.out.glob("end-*.json"))]


@pytest.mark.parametrize(
    ("shape", "env"),
    [
        *((shape, {}) for shape in ("break", "return", "stop", "return at end", "stop at end")),
        *((shape, {"STREAM": "1"}) for shape in ("break", "stop at end")),
    ],
)
def test_a_loop_that_one_worker_leaves_ends_on_all(
    zygote: str, tmp_path: Path, shape: str, env: dict[str, str]
) -> None:
    job = job_of(zygote, tmp_path, shape, "0:1,6:2", **env)
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2]
    first, second = ends(job)
    assert first == second
    assert [e.code for e in outcome.exits.values()] == [0, 0]
    assert "lost" not in job.output()
    job.nothing_is_left()


def test_state_of_the_script_reaches_joining_workers(zygote: str, tmp_path: Path) -> None:
    job = job_of(zygote, tmp_path, "average")
    job.play()
    first, second = ends(job)
    assert first == second
    assert first["state"] == {"steps": first["steps"]}


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("rate", "the learning rate is 0.0"),
        ("noise", "parameter 0.weight differs"),
    ],
)
def test_workers_that_train_differently_are_stopped(
    zygote: str, tmp_path: Path, shape: str, words: str
) -> None:
    job = job_of(zygote, tmp_path, shape)
    outcome = job.run.run()  # starts the workers again together: then they may train alike
    assert [e.code for e in outcome.exits.values()][:2] == [1, 1]
    assert "the workers of this job differ at step" in job.output()
    assert words in job.output()
    job.nothing_is_left()


def test_a_loop_over_steps_reports_parts_of_its_total_as_epochs(
    zygote: str, tmp_path: Path
) -> None:
    job = job_of(zygote, tmp_path, "steps", "0:1")
    described: list[JobDescribed] = []
    record = job.run._recorder._on_entry

    def on_entry(entry: Event | Plan) -> None:
        if isinstance(entry, JobDescribed):
            described.append(entry)
        record(entry)

    job.run._recorder._on_entry = on_entry
    outcome = job.play()
    assert [epoch.epoch for epoch in outcome.epochs] == list(range(1, 21))
    assert {epoch.planned_epochs for epoch in outcome.epochs} == {20}
    assert sum(epoch.samples for epoch in outcome.epochs) == 10 * 64
    assert ends(job)[0]["steps"] == 40
    assert [event.dataset_size for event in described] == [64, 32]
