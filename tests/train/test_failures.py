"""Workers die, hang, or run out of memory, at any moment: the job goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from ones.core.events import Event, MemoryLimitLearned
from ones.core.plan import Plan
from ones.lab.scripted_policy import JOB
from ones.train.store_process import StoreAddress
from tests.train.elastic import Elastic, elastic

SAMPLES, EPOCHS, BATCH = 203, 4, 16
HANG_SECONDS = 10  # more than a busy machine keeps a healthy worker from saying a word
EXPECTED = [(epoch + 1, SAMPLES) for epoch in range(EPOCHS)]


def nothing_is_lost(job: Elastic, repeated: int) -> None:
    """Every sample of every epoch was seen, and no more than the steps in flight came again."""
    again = 0
    for epoch in range(EPOCHS):
        seen = Counter(i for t in job.traces if t["epoch"] == epoch for i in t["indices"])
        assert set(seen) == set(range(SAMPLES)), f"epoch {epoch}"
        again += sum(seen.values()) - SAMPLES
    assert again <= repeated


def all_is_well(job: Elastic, repeated: int = BATCH) -> None:
    epochs = sorted({(e.epoch, e.samples) for e in job.run.outcome.epochs})
    assert epochs == EXPECTED
    nothing_is_lost(job, repeated)
    assert job.final()["steps"] == EPOCHS * 13
    job.nothing_is_left()


def generations(job: Elastic) -> list[tuple[int, int, int]]:
    """(plan, incarnation, workers) of each group that trained. Plans that took effect are numbered
    from 1: on a busy machine a start may be given up and tried again."""
    switches = job.run.outcome.switches
    number = {plan: n for n, plan in enumerate(sorted({m.plan for m, _ in switches}), 1)}
    return [(number[m.plan], m.incarnation, len(s.members)) for m, s in switches]


@pytest.mark.parametrize("victim", ["local-0", "local-1"])
@pytest.mark.parametrize("moment", ["forward", "step"])
def test_a_worker_dies_in_a_step(zygote: str, tmp_path: Path, victim: str, moment: str) -> None:
    crash = f"{victim}:{moment}:SIGKILL:20"
    job = elastic(zygote, tmp_path, "0:3", CRASH=crash, EPOCHS=EPOCHS)
    job.play()
    assert job.listeners
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    all_is_well(job)


def test_a_worker_dies_that_reads_shards_of_a_stream(zygote: str, tmp_path: Path) -> None:
    crash = "local-1:step:SIGKILL:20"
    job = elastic(zygote, tmp_path, "0:3", CRASH=crash, STREAM=5, EPOCHS=EPOCHS)
    job.play()
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    all_is_well(job)


@pytest.mark.parametrize("moment", ["forward", "step"])
def test_a_worker_dies_beside_layers_that_are_synchronised(
    zygote: str, tmp_path: Path, moment: str
) -> None:
    """The script's forward and backward do not notice; the step does not count."""
    crash = f"local-1:{moment}:SIGKILL:20"
    job = elastic(zygote, tmp_path, "0:3", CRASH=crash, NORM="together", EPOCHS=EPOCHS)
    job.play()
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    all_is_well(job)


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("local-2", "connect"),  # a joining worker that does not connect
        ("local-2", "repeat"),  # ... that has its state in part
        ("local-2", "digest"),
        ("local-0", "send"),  # the one that sends it the state
        ("local-1", "switch"),
    ],
)
def test_a_worker_dies_in_a_switch(zygote: str, tmp_path: Path, victim: str, moment: str) -> None:
    job = elastic(
        zygote, tmp_path, "0:2,20:4", exact=False, CRASH=f"{victim}:{moment}:SIGKILL",
        HOLD=f"20:crashed-{victim}", EPOCHS=EPOCHS,
    )  # fmt: skip
    job.play()
    assert (job.out / f"crashed-{victim}").exists()
    all_is_well(job, repeated=2 * BATCH)


def test_a_worker_that_hangs_is_killed_and_the_others_go_on(zygote: str, tmp_path: Path) -> None:
    job = elastic(
        zygote, tmp_path, "0:3", CRASH="local-1:step:SIGSTOP:20", ONES_HANG_SECONDS=HANG_SECONDS,
        EPOCHS=EPOCHS,
    )  # fmt: skip
    job.play()
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    assert sorted(e.signal or 0 for e in job.run.outcome.exits.values()) == [0, 0, signal.SIGKILL]
    all_is_well(job)


@pytest.mark.parametrize("shards", ["", 5])
def test_after_the_last_one_a_checkpoint_is_left(
    zygote: str, tmp_path: Path, shards: object
) -> None:
    job = elastic(
        zygote, tmp_path, "0:1", CRASH="local-0:forward:SIGKILL:30", ONES_CHECKPOINT_SECONDS=0,
        HOLD="10:../checkpoints/run/*.pt,40:../checkpoints/run/0000000002-*.pt", EPOCHS=EPOCHS,
        STREAM=shards,
    )  # fmt: skip
    job.play()
    assert [m.plan for m, _ in job.run.outcome.switches] == [1, 2]
    resumed = job.run.outcome.switches[1][1].step
    assert 0 < resumed <= 30
    all_is_well(job, repeated=(31 - resumed) * BATCH)
    assert len(list((tmp_path / "checkpoints" / "run").glob("*.pt"))) == 2


def test_a_worker_dies_while_it_writes_a_checkpoint(zygote: str, tmp_path: Path) -> None:
    job = elastic(
        zygote, tmp_path, "0:2", CRASH="local-0:save:SIGKILL:12", ONES_CHECKPOINT_SECONDS=0.1,
        NAP=0.02, EPOCHS=EPOCHS,
    )  # fmt: skip
    job.play()
    assert generations(job) == [(1, 0, 2), (1, 1, 1)]
    all_is_well(job)


def when(job: Elastic, condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Do it once the job has come so far; then `done` is there, for HOLD."""

    def watch() -> None:
        while not condition():
            time.sleep(0.01)
        act()
        (job.out / "done").touch()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def steps_seen(job: Elastic) -> int:
    return max((t["step"] for t in job.traces), default=0)


def test_the_store_dies_and_is_replaced(zygote: str, tmp_path: Path) -> None:
    """Then a worker dies, too: the others find one another at the new store."""
    job = elastic(
        zygote, tmp_path, "0:3", CRASH="local-1:step:SIGKILL:40", HOLD="10:done", NAP=0.05,
        EPOCHS=EPOCHS,
    )  # fmt: skip
    stores: list[StoreAddress] = []

    def kill_store() -> None:
        address = StoreAddress.read(str(job.launcher.job_dir))
        assert address is not None
        stores.append(address)
        (pid,) = [
            p.pid
            for p in psutil.process_iter()
            if any(
                c.laddr.port == address.membership_port and c.status == "LISTEN"
                for c in connections(p)
            )
        ]
        os.kill(pid, signal.SIGKILL)

    thread = when(job, lambda: steps_seen(job) >= 10, kill_store)
    job.play()
    thread.join()
    assert len(stores) == 1
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    all_is_well(job)


def connections(process: psutil.Process) -> list[Any]:
    try:
        return list(process.net_connections())
    except psutil.Error:
        return []


def test_a_worker_that_is_terminated_saves_first(zygote: str, tmp_path: Path) -> None:
    """SIGTERM to the only one: a checkpoint, and the job resumes where it was."""
    job = elastic(zygote, tmp_path, "0:1", HOLD="15:done", NAP=0.02, EPOCHS=EPOCHS)

    def terminate() -> None:
        os.kill(job.worker_pid("local/0"), signal.SIGTERM)

    when(job, lambda: steps_seen(job) >= 15, terminate)
    job.play()
    assert sorted(e.code or 0 for e in job.run.outcome.exits.values()) == [0, 143]
    assert job.run.outcome.switches[1][1].step >= 15
    all_is_well(job, repeated=0)


def test_one_of_several_workers_is_terminated(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:3", HOLD="15:done", NAP=0.02, EPOCHS=EPOCHS)

    def terminate() -> None:
        os.kill(job.worker_pid("local/0"), signal.SIGTERM)

    when(job, lambda: steps_seen(job) >= 15, terminate)
    job.play()
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    # one at the end of the first epoch and one at SIGTERM
    assert len(list((tmp_path / "checkpoints" / "run").glob("*.pt"))) == 2
    all_is_well(job)


def test_out_of_memory_makes_micro_batches_smaller(zygote: str, tmp_path: Path) -> None:
    """Both workers die of 8 samples at once; the next ones take 4."""
    job = elastic(zygote, tmp_path, "0:2", exact=False, TOO_MANY=5, EPOCHS=EPOCHS)
    job.play()
    assert [e.code for e in job.run.outcome.exits.values()] == [1, 1, 0, 0]
    first, *rest = [len(t["indices"]) for t in sorted(job.traces, key=lambda t: -len(t["indices"]))]
    assert first == 8
    assert set(rest) <= {8, 1, 2, 3, 4}
    assert rest.count(8) == 1  # the other one
    all_is_well(job, repeated=BATCH)


@pytest.mark.parametrize("strict", [{}, {"STRICT": 1}])
@pytest.mark.parametrize("workers", [1, 3])
def test_out_of_memory_in_backward_ends_no_worker(
    zygote: str, tmp_path: Path, workers: int, strict: dict[str, Any]
) -> None:
    """The step is made again in smaller parts: shares of 16, or of 6, 5 and 5 samples. Policies
    see the limit from then on."""
    job = elastic(
        zygote, tmp_path, f"0:{workers}", exact=False, TOO_MANY_BACK=5, EPOCHS=EPOCHS, **strict
    )
    limits = limits_of_policies(job)
    job.play()
    assert limits == ([8, 4] if workers == 1 else [3])
    assert [e.code for e in job.run.outcome.exits.values()] == [0] * workers
    tried = [len(t["indices"]) for t in job.traces if len(t["indices"]) > 5]
    assert tried == ([16, 8] if workers == 1 else [6])
    all_is_well(job, repeated=2 * BATCH)


def limits_of_policies(job: Elastic) -> list[int | None]:
    """The samples that fit one GPU, as policies see them after each limit that was learned."""
    run, found = job.run, list[int | None]()
    inner = run._recorder._on_entry

    def read() -> None:
        found.append(run._scheduler.state.records[JOB].local_limit())

    def on_entry(entry: Event | Plan) -> None:
        inner(entry)
        if isinstance(entry, MemoryLimitLearned):
            run.engine.live.post(read)  # after the event was applied

    run._recorder._on_entry = on_entry
    return found


def test_others_learn_the_memory_limit_of_one_that_died(zygote: str, tmp_path: Path) -> None:
    """Shares of 6, 5 and 5: the first dies of 6, and what is left to two goes in fives."""
    job = elastic(zygote, tmp_path, "0:3", exact=False, TOO_MANY=5, EPOCHS=EPOCHS)
    job.play()
    assert generations(job) == [(1, 0, 3), (1, 1, 2)]
    assert [len(t["indices"]) for t in job.traces if len(t["indices"]) > 5] == [6]
    all_is_well(job, repeated=BATCH)


def test_survivors_need_no_controller(zygote: str, tmp_path: Path) -> None:
    """It is gone for good; then a worker dies: the other two end the job as if it were there."""
    job = elastic(
        zygote, tmp_path, "0:3", HOLD="10:done", CRASH="local-1:step:SIGKILL:30", EPOCHS=EPOCHS
    )
    thread = when(job, lambda: steps_seen(job) >= 10, job.run.server.close)
    outcome = job.run.run()
    thread.join()
    assert generations(job) == [(1, 0, 3)]  # the rest was not reported
    assert sorted(e.signal or 0 for e in outcome.exits.values()) == [0, 0, signal.SIGKILL]
    nothing_is_lost(job, repeated=BATCH)
    assert job.final()["steps"] == EPOCHS * 13
    job.nothing_is_left()
