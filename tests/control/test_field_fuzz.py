"""Every field of every report, and of the message around it, with nonsense in it: the border
refuses it in one line, or the engine, the state and the policy take it without an exception."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ones.core.job import JobId
from ones.wire import CodecError, Reports, unpack
from ones.wire import messages as wire
from tests.control.by_hand import JOINED, ByHand

NONSENSE: tuple[Any, ...] = (
    None, True, "", "x", "nan", "inf", "-inf", "\ud800", "\x00", [], {}, [[]], 0, -1, 1, 2, 0.0,
    -0.5, 1e-300, 1e300, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 10**400, "n" * 5000,
)  # fmt: skip

HONEST: dict[str, dict[str, Any]] = {
    "Joined": {
        "dataset_size": 100, "base_batch": 8, "optimizer": "sgd", "parameter_bytes": 4,
        "max_local_batch": 16,
    },
    "Ready": {},
    "Steps": {"epoch": 1, "steps": 2, "samples": 16, "gradient_noise": 3.0},
    "Epoch": {
        "epoch": 1, "steps": 12, "samples": 100, "loss": 1.0, "accuracy": 0.5, "first_loss": 2.0,
        "step_seconds": 0.1, "gradient_noise": 3.0, "planned_epochs": 9,
    },
    "Speed": {
        "gpus": 1, "nodes": 1, "batch": 8, "micro_steps": 1, "step_seconds": 0.1, "steps": 10,
    },
    "MemoryLimit": {"max_local_batch": 8},
    "Memory": {"peak_bytes": 100, "micro_batch": 8},
    "Switched": {"pause_seconds": 0.5, "members": ["n0/0"], "parts": {"connect": 0.1}, "step": 5},
    "SwitchFailed": {"reason": "no", "plan": 1},
    "TrackerLink": {"url": "https://runs.example/1"},
    "StoreStarted": {"address": "127.0.0.1:1:2"},
    "Hung": {"worker": "n0/1"},
    "Leaving": {"done": False},
}  # fmt: skip


def changed() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """(report, field, value, the report with that value)"""
    for kind, fields in HONEST.items():
        for field in (*fields, "type", "unknown"):
            for value in NONSENSE:
                yield kind, field, value, {"type": kind, **fields, field: value}


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    made = ByHand(tmp_path)
    yield made
    made.close()


def understood(body: dict[str, Any]) -> Reports | str:
    """The message, or the line with which it is refused."""
    try:
        message = unpack(json.dumps(body).encode())
    except CodecError as problem:
        return str(problem)
    assert isinstance(message, Reports)
    return message


def replaced(world: ByHand, before: JobId, number: int) -> JobId:
    """A new job that trains, after the last report has ended the one before."""
    while before in world.engine.live.jobs and world.engine.live.jobs[before].workers:
        world.exit(before)
    job = JobId(f"job-{number}")
    world.submit(job)
    world.say(job, JOINED, wire.Ready())
    return job


def test_every_report_is_covered() -> None:
    assert set(HONEST) == {kind.__name__ for kind in wire.Report.__args__}


def test_no_field_of_any_report_stops_the_engine_or_the_scheduler(by_hand: ByHand) -> None:
    taken = refused = 0
    job = JobId("")
    for number, (kind, field, value, report) in enumerate(changed()):
        if job not in by_hand.scheduler.state.records or not by_hand.engine.live.jobs[job].workers:
            job = replaced(by_hand, job, number)
        (worker, *_) = by_hand.engine.live.jobs[job].workers.values()
        body = {
            "type": "Reports", "job": job, "worker": worker.name, "plan": worker.plan,
            "first": worker.heard + 1, "reports": [report],
        }  # fmt: skip
        case = f"{kind}.{field} = {str(value)[:40]}"
        message = understood(body)
        if isinstance(message, str):
            assert "\n" not in message, case
            assert len(message) < 500, case
            refused += 1
            continue
        taken += 1
        by_hand.engine.reports.handle(message, lambda problem: None)
        by_hand.turn()  # raises what the scheduler raises
        assert by_hand.engine.live.contained == 0, case
    assert taken > 100, "honest variants pass"
    assert refused > 800, "nonsense does not"


def test_no_field_of_the_message_itself_stops_the_engine(by_hand: ByHand) -> None:
    job = replaced(by_hand, JobId(""), 0)
    honest = {
        "type": "Reports", "job": job, "worker": "n0/0", "plan": by_hand.plan(job),
        "incarnation": 0, "first": 3, "reports": [{"type": "Ready"}], "seen": 0, "protocol": 1,
    }  # fmt: skip
    for field in (*honest, "unknown"):
        for value in NONSENSE:
            case = f"{field} = {str(value)[:40]}"
            message = understood({**honest, field: value})
            if isinstance(message, str):
                assert "\n" not in message, case
                continue
            by_hand.engine.reports.handle(message, lambda problem: None)
            by_hand.turn()
            assert by_hand.engine.live.contained == 0, case
