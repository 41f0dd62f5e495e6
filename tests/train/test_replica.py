"""State gets from one worker to another whole, and into a checkpoint and back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from ones.train.checkpoint import Checkpoints, copied
from ones.train.group import Group, wait_all
from ones.train.learning_rate import LearningRate
from ones.train.progress import Progress
from ones.train.replica import Replica, share_buffers
from tests.train.test_buckets import CPU, SEEDED, backward, together
from tests.train.test_equivalence import equal


def replica(seed: int, steps: int, *, wide: int = 8) -> Replica:
    """`wide` enough and its tensors travel alone."""
    with SEEDED:
        return _replica(seed, steps, wide)


def _replica(seed: int, steps: int, wide: int) -> Replica:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, wide), nn.BatchNorm1d(wide), nn.Linear(wide, wide))
    opt = torch.optim.AdamW(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10)
    scaler = torch.amp.GradScaler("cpu", init_scale=float(2 ** (seed + 1)))
    rate = LearningRate(lambda ratio: ratio, 10, 5)
    made = Replica(
        net, opt, scheduler=schedule, scaler=scaler, rate=rate, progress=Progress(seed=seed)
    )
    for _ in range(steps):
        opt.zero_grad()
        backward(scaler.scale(net(torch.randn(4, 4)).square().mean()))
        scaler.step(opt)
        scaler.update()
        schedule.step()
        made.progress.step += 1
        rate.batch_is(10 * made.progress.step, made.progress.step)
    made.has_state = steps > 0
    return made


@pytest.mark.parametrize("wide", [8, 600])
def test_newcomers_become_equal_to_those_who_are_ahead(wide: int) -> None:
    marks = (3, -1, 3, 2)

    def work(group: Group, rank: int) -> dict[str, Any]:
        ahead = marks[rank] == 3
        mine = replica(9 if ahead else rank, max(0, marks[rank]), wide=wide)
        received = mine.share(group, marks[rank])
        assert received is not ahead
        assert mine.has_state
        state: dict[str, Any] = copied(mine.state())
        return state

    states = together(4, work)
    for state in states[1:]:
        assert equal(states[0], state)
    assert states[0]["progress"]["step"] == 3
    assert len(states[1]["optimizer"]["state"]) == 6


def test_when_nobody_has_trained_the_first_one_counts() -> None:
    def work(group: Group, rank: int) -> dict[str, Any]:
        mine = replica(rank, 0)
        mine.share(group, -1)
        return copied(mine.state())["model"]  # type: ignore[no-any-return]

    first, second = together(2, work)
    assert equal(first, second)


def test_another_model_is_refused_by_name() -> None:
    def work(group: Group, rank: int) -> str:
        mine = replica(0, 1, wide=8 + rank)
        try:
            mine.share(group, 1 - rank)
        except Exception as problem:
            group.close()  # as a script that ends: the other one must not wait for ever
            return str(problem)
        return ""

    assert "the model of this worker has other shapes" in together(2, work)[1]


def test_buffers_follow_the_first() -> None:
    def work(group: Group, rank: int) -> float:
        net = nn.BatchNorm1d(3)
        net.running_mean.fill_(float(rank + 1))  # type: ignore[union-attr]
        share_buffers(group, net)
        return float(net.running_mean[0])  # type: ignore[index]

    assert together(3, work) == [1.0, 1.0, 1.0]


def test_a_checkpoint_gives_everything_back(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path / "deep" / "er"))
    assert checkpoints.load() is None
    before = replica(1, 3)
    checkpoints.save(before.state(), (2, 0), 3)
    after = replica(5, 0)
    state = checkpoints.load()
    assert state is not None
    after.load(state)
    assert equal(copied(before.state()), copied(after.state()))


def test_two_are_kept_and_a_stale_worker_is_never_preferred(tmp_path: Path) -> None:
    checkpoints = Checkpoints(str(tmp_path))
    for step in (10, 20, 30):
        checkpoints.save({"step": step}, (4, 0), step)
    assert len(list(tmp_path.glob("*.pt"))) == 2
    checkpoints.save({"step": 5}, (5, 1), 5)  # the present generation went back to a checkpoint
    Checkpoints(str(tmp_path)).save({"step": 99}, (4, 0), 99)  # one that was given up still writes
    assert checkpoints.load() == {"step": 5}


def test_a_broken_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoints = Checkpoints(f"file://{tmp_path}")
    checkpoints.save({"step": 1}, (1, 0), 1)
    (tmp_path / "0000000001-000000-000000000002.pt").write_bytes(b"half")
    (tmp_path / ".0000000001-000000-000000000003.pt.7").write_bytes(b"unfinished")
    assert checkpoints.load() == {"step": 1}
    assert "cannot be read" in caplog.text


def test_nothing_is_executed_when_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:  # noqa: ANN401
            return (Path.touch, (tmp_path / "executed",))

    checkpoints = Checkpoints(str(tmp_path))
    checkpoints.save({"evil": Evil()}, (1, 0), 1)
    assert checkpoints.load() is None
    assert not (tmp_path / "executed").exists()


def test_a_message_may_take_longer_than_connecting() -> None:
    """A newcomer waits for as long as a step takes."""
    c10d: Any = torch.distributed
    store, arrived = c10d.HashStore(), []

    def run(rank: int) -> None:
        group = Group.connect(
            store, "late", rank=rank, size=2, host="127.0.0.1", device=CPU, timeout=4.0
        )
        if rank == 0:
            time.sleep(5.0)
            wait_all([group.send(torch.ones(1), 1)])
        else:
            word = torch.zeros(1)
            wait_all([group.receive(word, 0)])
            arrived.append(float(word))
        group.of_all(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == [1.0]
