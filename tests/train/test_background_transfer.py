"""Joining workers get the state while training goes on, and are equal bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ones.train import background_transfer
from ones.train.background_transfer import StateReceiver, StateSender
from ones.train.buckets import Buckets
from ones.train.digest import DigestCheck
from ones.train.learning_rate import LearningRate
from ones.train.process_group import ProcessGroup, SingleWorkerGroup
from ones.train.progress import TrainingProgress
from ones.train.replica import Replica
from ones.train.tensor_messages import copy_to_cpu
from tests.train.elastic import Elastic, elastic
from tests.train.test_equivalence import equal, every_sample_exactly_once, replicas_are_equal
from tests.train.thread_groups import SEEDED, backward, run_in_group

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
}


class Net(nn.Module):
    """With a part that is frozen, and one that is used in some steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(9, 300), nn.Linear(300, 200)
        self.frozen, self.seldom = nn.Linear(200, 7), nn.Linear(200, 7)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor, seldom: bool) -> Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        out: Tensor = self.seldom(x) if seldom else self.frozen(x)
        return out


def replica(seed: int, optimizer: str) -> Replica:
    with SEEDED:
        torch.manual_seed(seed)
        net = Net()
    trained = [p for p in net.parameters() if p.requires_grad]
    opt = OPTIMIZERS[optimizer](trained)  # type: ignore[no-untyped-call]
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.9)
    rate = LearningRate(lambda ratio: ratio, 10, 5)
    progress = TrainingProgress(seed=seed)
    return Replica(net, opt, scheduler=schedule, scaler=None, rate=rate, progress=progress)


def train(mine: Replica, buckets: Buckets, step: int, sender: StateSender | None) -> None:
    """One step as `optimizer_step` makes it, clipped."""
    x = torch.randn(8, 9, generator=torch.Generator().manual_seed(step))
    if sender is not None:
        sender.wait_until_sent()
    buckets.arm(SingleWorkerGroup(), 1.0, {}, measure=False)
    backward(mine.model(x, step % 3 == 2).square().mean())
    buckets.finish()
    nn.utils.clip_grad_norm_(mine.model.parameters(), 0.05)
    if sender is not None:
        sender.pause()
        sender.send_step()
    mine.optimizer.step()
    if sender is not None:
        sender.resume()
    mine.optimizer.zero_grad(set_to_none=True)
    mine.scheduler.step()
    mine.progress.step += 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("piece", [1, 100_000, 1 << 30])
def test_a_joining_worker_is_equal_after_steps_made_meanwhile(
    optimizer: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`piece` bytes at once: from each parameter by itself to everything together."""
    monkeypatch.setattr(background_transfer, "_PIECE_BYTES", piece)

    def work(group: ProcessGroup, rank: int) -> Any:  # noqa: ANN401
        mine = replica(rank, optimizer)
        buckets = Buckets(list(mine.model.parameters()))
        if rank == 1:
            mine.warm_up()
            StateReceiver(mine, buckets, group, 0).receive()
            assert DigestCheck(mine, group, source=0).wait()
        else:
            for step in range(3):
                train(mine, buckets, step, None)
            sender, step = StateSender(mine, buckets, group, [1]), 3
            while not sender.is_complete or step < 8:
                assert not sender.problem
                train(mine, buckets, step, sender)
                step += 1
            sender.finish()
            sender.wait_until_sent()
            assert DigestCheck(mine, group, receivers=[1]).wait()
            group.all_gather(0)
            return copy_to_cpu(mine.state())
        group.all_gather(0)  # no member closes before the other has read
        return copy_to_cpu(mine.state())

    one, other = run_in_group(2, work)
    assert equal(one, other)
    assert one["progress"]["step"] >= 8


def test_a_state_that_differs_is_detected() -> None:
    def work(group: ProcessGroup, rank: int) -> bool | None:
        mine = replica(0, "sgd")
        if rank == 1:
            weight = mine.model.get_parameter("second.weight").data.view(torch.int32)
            weight[17, 3] ^= 1  # one bit
        check = DigestCheck(mine, group, **({"receivers": [1]} if rank == 0 else {"source": 0}))
        found = check.wait()
        group.all_gather(0)
        return found

    assert run_in_group(2, work) == [True, False]


def test_optimizers_that_cannot_be_repeated_are_known() -> None:
    assert replica(0, "adamw").is_repeatable
    mine = replica(0, "sgd")
    mine.optimizer = torch.optim.Adam(mine.model.parameters(), foreach=True)
    assert not mine.is_repeatable
    mine.optimizer = torch.optim.Adagrad(mine.model.parameters())
    assert not mine.is_repeatable


def test_training_goes_on_during_the_state_transfer(zygote: str, tmp_path: Path) -> None:
    job = elastic(
        zygote, tmp_path, "0:1,8:2,20:4", exact=False, NAP=0.02, EPOCHS=8,
        HOLD="8:replica-*-2-*,20:replica-*-4-*",
    )  # fmt: skip
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 4]
    for _, switched in outcome.switches[1:]:
        assert switched.parts["fed_in_background"] > 0.0
    assert replicas_are_equal(job) == 3
    every_sample_exactly_once(job, 8, 203)
    job.nothing_is_left()


def test_a_script_that_changes_parameters_by_itself(zygote: str, tmp_path: Path) -> None:
    """It clamps them, which is not repeated on joining workers: the first step together does not
    count, the state is sent as a whole, and the next ones get no background transfer."""
    job = elastic(
        zygote, tmp_path, "0:1,8:2,20:3", exact=False, NAP=0.02, CLAMP=1, EPOCHS=12,
        HOLD="8:replica-*-2-*,20:replica-*-3-*",
    )  # fmt: skip
    job.comes_after(2, steps=12)  # on a busy machine the second may come as late as the third
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 3]
    assert ["fed_in_background" in s.parts for _, s in outcome.switches] == [False, True, False]
    seen = [(t["epoch"], i) for t in job.traces for i in t["indices"]]
    assert set(seen) == {(epoch, i) for epoch in range(12) for i in range(203)}
    # one step, perhaps the last of an epoch; none if the switch was after the last
    assert len(seen) - 12 * 203 in (0, 16, 203 % 16)
    assert job.final()["steps"] == 12 * 13
    all_end_equal(job, 3)


def test_a_script_that_changes_parameters_by_itself_before_an_epoch_ends(
    zygote: str, tmp_path: Path
) -> None:
    """The switch comes after the last step of an epoch, where the workers compare parameters: the
    joining worker, which differs, receives the state before."""
    job = elastic(
        zygote, tmp_path, "0:1,13:2", CLAMP=1, EPOCHS=4, CRASH="local-0:repeat:nothing",
        HOLD="6:crashed-local-0",
    )  # fmt: skip
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2]
    assert "fed_in_background" in outcome.switches[1][1].parts
    assert job.final()["steps"] == 4 * 13
    every_sample_exactly_once(job, 4, 203)
    all_end_equal(job, 2)


def test_state_of_an_unknown_optimizer_is_sent_in_the_switch(zygote: str, tmp_path: Path) -> None:
    job = elastic(zygote, tmp_path, "0:1,9:2,15:3", EPOCHS=3, OPTIMIZER="adagrad")
    outcome = job.play()
    assert [len(s.members) for _, s in outcome.switches] == [1, 2, 3]
    assert not any("fed_in_background" in s.parts for _, s in outcome.switches)
    every_sample_exactly_once(job, 3, 203)
    assert replicas_are_equal(job) == 3
    all_end_equal(job, 3)


def all_end_equal(job: Elastic, workers: int) -> None:
    states = [torch.load(path, weights_only=True) for path in job.out.glob("end-*.pt")]
    assert len(states) == workers
    assert all(equal(states[0], state) for state in states[1:])
