"""Jobs with groups that keep to the rules of NCCL (`scripts/strict_group.py`): they do not hang.

A job that hangs is ended after PATIENCE_SECONDS, and its test fails.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.train.elastic import Elastic, elastic
from tests.train.test_equivalence import (
    BASE,
    EPOCHS,
    SAMPLES,
    SCHEDULE,
    every_sample_exactly_once,
    reference,
    replicas_are_equal,
)
from tests.train.test_failures import HANG_SECONDS, generations

PATIENCE_SECONDS = 300.0
EXACT: dict[str, Any] = dict(EPOCHS=EPOCHS, SAMPLES=SAMPLES, BATCH=BASE)


def equals_one_process(job: Elastic, optimizer: str, schedule: str, epochs: int = EPOCHS) -> None:
    """A step in which a worker was lost is repeated: not even then may the result differ."""
    net, batches = reference(optimizer, schedule=schedule, epochs=epochs)
    final = job.final()
    assert final["steps"] == len(batches)
    apart = [
        float((value - net.state_dict()[name]).abs().max()) for name, value in final["net"].items()
    ]
    assert max(apart) < 1e-10
    job.nothing_is_left()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_rescaled_job_equals_one_process(zygote: str, tmp_path: Path, optimizer: str) -> None:
    job = elastic(zygote, tmp_path, SCHEDULE, OPTIMIZER=optimizer, STRICT=1, **EXACT)
    job.play(PATIENCE_SECONDS)
    assert replicas_are_equal(job) == 5
    every_sample_exactly_once(job, EPOCHS, SAMPLES)
    equals_one_process(job, optimizer, SCHEDULE)


@pytest.mark.parametrize("undrained", ["", "1"])
def test_a_group_that_is_not_drained_is_found(zygote: str, tmp_path: Path, undrained: str) -> None:
    """A fault planted in the library: a worker uses the next group before it has waited for the
    present one."""
    job = elastic(zygote, tmp_path, "0:2x16,6:3x16", STRICT=1, UNDRAINED=undrained, **EXACT)
    job.play(PATIENCE_SECONDS)
    is_found = "used before the group before it was drained" in job.output()
    assert is_found is bool(undrained), job.output()
    assert generations(job)[-1] == (2, int(is_found), 3)


@pytest.mark.parametrize("seed", range(2))
def test_a_job_grows_while_it_trains(zygote: str, tmp_path: Path, seed: int) -> None:
    """Members connect the next group at different moments, while their current one is in use."""
    job = elastic(
        zygote, tmp_path, "0:2x16,5:3x16,15:4x16", exact=False, STRICT=1 + seed, SKEW=0.004,
        HOLD="5:replica-*-3-*.pt,15:replica-*-4-*.pt", **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    assert [len(s.members) for _, s in job.run.outcome.switches] == [2, 3, 4]
    assert replicas_are_equal(job) == 3
    every_sample_exactly_once(job, EPOCHS, SAMPLES)
    equals_one_process(job, "sgd", "0:1x16")


@pytest.mark.parametrize("victim", ["local-0", "local-1"])
def test_a_worker_dies(zygote: str, tmp_path: Path, victim: str) -> None:
    """The group does not tell the others, which would wait for it for ever."""
    job = elastic(
        zygote, tmp_path, "0:3x16", OPTIMIZER="adamw", CRASH=f"{victim}:step:SIGKILL:20", STRICT=1,
        **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    assert replicas_are_equal(job) == 2
    equals_one_process(job, "adamw", "0:1x16")


def test_what_an_aborted_operation_leaves_is_not_used(zygote: str, tmp_path: Path) -> None:
    """A worker hangs: the others' reductions are aborted and end without an error."""
    job = elastic(
        zygote, tmp_path, "0:3x16", CRASH="local-1:step:SIGSTOP:20", STRICT=1,
        ONES_HANG_SECONDS=HANG_SECONDS, **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    assert sorted(e.signal or 0 for e in job.run.outcome.exits.values()) == [0, 0, signal.SIGKILL]
    assert replicas_are_equal(job) == 2
    equals_one_process(job, "sgd", "0:1x16")


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("local-2", "device"),  # its messages are connected, its device is not
        ("local-2", "allocate"),
        ("local-0", "broadcast"),
    ],
)
def test_a_worker_dies_in_a_switch(zygote: str, tmp_path: Path, victim: str, moment: str) -> None:
    job = elastic(
        zygote, tmp_path, "0:2x16,20:4x16", exact=False, OPTIMIZER="adamw", STRICT=1,
        CRASH=f"{victim}:{moment}:SIGKILL:{0 if victim == 'local-2' else 1}",
        HOLD=f"20:crashed-{victim}", **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    equals_one_process(job, "adamw", "0:1x16")


def test_a_worker_dies_while_the_group_is_formed_again(zygote: str, tmp_path: Path) -> None:
    """In the device's connection, which is guarded as that of messages."""
    job = elastic(
        zygote, tmp_path, "0:3x16", STRICT=1,
        CRASH="local-1:step:SIGKILL:20,local-2:device:SIGKILL:20", **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    assert generations(job) == [(1, 0, 3), (1, 2, 1)]
    equals_one_process(job, "sgd", "0:1x16")


@pytest.mark.parametrize("moment", ["send", "settings", "switch", "connect", "device", "broadcast"])
def test_an_unexpected_error_fails_the_plan_and_not_the_job(
    zygote: str, tmp_path: Path, moment: str
) -> None:
    """In the only worker that has trained. At most, a step is made again."""
    strict = {"STRICT": 1} if moment in ("device", "broadcast") else {}
    job = elastic(
        zygote, tmp_path, "0:1x16,10:2x16", exact=False, OPTIMIZER="adamw",
        CRASH=f"local-0:{moment}:error:1", HOLD="10:crashed-local-0", **strict, **EXACT,
    )  # fmt: skip
    said: list[str] = []
    job.run.on_event = said.append
    job.play(PATIENCE_SECONDS)
    equals_one_process(job, "adamw", "0:1x16")
    if moment in ("switch", "broadcast"):  # the plan was adopted, and the group formed again
        assert not [text for text in said if "failed" in text]
        assert generations(job) == [(1, 0, 1), (2, 1, 2)]


def test_an_error_while_a_worker_leaves_does_not_keep_it(zygote: str, tmp_path: Path) -> None:
    """It would wait for ever for members of a group that is not its own."""
    job = elastic(
        zygote, tmp_path, "0:2x16,20:1x16", CRASH="local-1:leave:error:1", STRICT=1, **EXACT
    )
    job.play(PATIENCE_SECONDS)
    assert (job.out / "crashed-local-1").exists()
    found = generations(job)
    assert (found[0], found[-1]) == ((1, 0, 2), (2, 0, 1))
    # it may be gone before the other has read what they agreed on
    assert found[1:-1] in ([], [(1, 1, 1)])
    equals_one_process(job, "sgd", "0:1x16")


def test_a_state_that_cannot_be_sent_keeps_the_worker_that_has_it(
    zygote: str, tmp_path: Path
) -> None:
    job = elastic(
        zygote, tmp_path, "0:1x16,10:2x16", exact=False, OPTIMIZER="adamw", STRICT=1,
        CRASH="local-0:broadcast:errors:1", HOLD="10:crashed-local-0", **EXACT,
    )  # fmt: skip
    job.play(PATIENCE_SECONDS)
    equals_one_process(job, "adamw", "0:1x16")
