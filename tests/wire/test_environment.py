"""The environment of a training process."""

from __future__ import annotations

import pytest

from ones.errors import UserError
from ones.wire.environment import WorkerEnvironment

HERE = WorkerEnvironment(
    controller="http://127.0.0.1:1",
    token="secret",
    job="a",
    worker="n0/1",
    plan=3,
    incarnation=2,
    run_dir="/run/w",
    job_dir="/run/j",
    checkpoints="/run/c",
    host="10.0.0.1",
    steps_done=7,
)


def test_it_arrives_as_it_was_written() -> None:
    env = HERE.to_env()
    assert set(env) == {
        "ONES_CONTROLLER",
        "ONES_TOKEN",
        "ONES_JOB",
        "ONES_WORKER",
        "ONES_PLAN",
        "ONES_INCARNATION",
        "ONES_RUN_DIR",
        "ONES_JOB_DIR",
        "ONES_CHECKPOINTS",
        "ONES_HOST",
        "ONES_AUTHORITY",
        "ONES_STEPS_DONE",
    }
    assert WorkerEnvironment.from_env({**env, "PATH": "/bin"}) == HERE


def test_without_a_controller_a_script_is_alone() -> None:
    assert WorkerEnvironment.from_env({"PATH": "/bin", "ONES_JOB": "a"}) is None


def test_what_is_missing_or_wrong_is_named() -> None:
    env = HERE.to_env()
    with pytest.raises(UserError, match="ONES_JOB_DIR is not set, but ONES_CONTROLLER is"):
        WorkerEnvironment.from_env({k: v for k, v in env.items() if k != "ONES_JOB_DIR"})
    with pytest.raises(UserError, match="ONES_PLAN 'x' is not a whole number"):
        WorkerEnvironment.from_env({**env, "ONES_PLAN": "x"})


def test_the_token_is_not_printed() -> None:
    assert "secret" not in repr(HERE)
