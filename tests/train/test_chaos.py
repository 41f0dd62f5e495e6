"""A worker is killed or stopped at any moment of a switch, a step or a checkpoint.

Each time the job ends with its epochs complete, and leaves no process, port or shared memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.elastic import elastic
from tests.train.test_failures import BATCH, EPOCHS, HANG_SECONDS, all_is_well

OLD, NEW = "local-1", "local-2"
MOMENTS = [
    (NEW, "connect"),  # a joining worker that does not connect
    (NEW, "receive"),  # ... that does not take its state
    (NEW, "repeat"),  # ... that has it in part
    (NEW, "switch"),  # ... that was already counted on
    (NEW, "digest"),
    (OLD, "connect"),
    (OLD, "send"),  # the one that sends it the state
    (OLD, "repeat"),
    (OLD, "switch"),
    (OLD, "digest"),
    ("local-0", "save"),
    ("local-0", "switch"),
]
QUICK = [(NEW, "receive"), (OLD, "send")]
#: found by the pings only, which takes seconds: the most different ones
STOPPED = [
    (NEW, "connect"),
    (NEW, "digest"),
    (OLD, "connect"),
    (OLD, "switch"),
    ("local-0", "save"),
]
CASES = [(*m, "SIGKILL") for m in MOMENTS] + [(*m, "SIGSTOP") for m in STOPPED]


def play(zygote: str, tmp_path: Path, victim: str, moment: str, signal: str) -> None:
    # from step 1 on: the first two have connected by then, and joining workers have a step of 0
    crash = f"{victim}:{moment}:{signal}:{0 if victim == NEW else 1}"
    job = elastic(
        zygote, tmp_path, "0:2,12:4", exact=False, NAP=0.02, CRASH=crash,
        HOLD=f"12:crashed-{victim}", EPOCHS=EPOCHS, LOADERS=1, ONES_HANG_SECONDS=HANG_SECONDS,
        ONES_CHECKPOINT_SECONDS=0.3,
    )  # fmt: skip
    job.play()
    assert (job.out / f"crashed-{victim}").exists()
    all_is_well(job, repeated=3 * BATCH)


@pytest.mark.parametrize(("victim", "moment"), QUICK)
def test_stopped_while_state_is_on_its_way(
    zygote: str, tmp_path: Path, victim: str, moment: str
) -> None:
    play(zygote, tmp_path, victim, moment, "SIGSTOP")


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "moment", "signal"), CASES)
def test_at_any_moment(zygote: str, tmp_path: Path, victim: str, moment: str, signal: str) -> None:
    play(zygote, tmp_path, victim, moment, signal)
