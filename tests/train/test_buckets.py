"""Gradient buckets give the gradient of the global batch. Threads stand in for workers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from ones.errors import UserError
from ones.train import gradient_noise
from ones.train.buckets import Buckets, Notice
from ones.train.process_group import GroupLostError, ProcessGroup
from tests.train.thread_groups import SEEDED, backward, run_in_group

torch.set_num_threads(1)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    with SEEDED:
        torch.manual_seed(3)
        layers = [nn.Linear(9, 700), nn.Tanh(), nn.Linear(700, 500), nn.Tanh(), nn.Linear(500, 1)]
    return nn.Sequential(*layers).to(dtype)


def data(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 9, generator=torch.Generator().manual_seed(5)).to(dtype)


def gradients(net: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


@pytest.mark.parametrize("counts", [(11, 5), (7, 5, 1, 3), (4, 0, 4)])
def test_uneven_shares_give_the_gradient_of_the_whole_batch(counts: Sequence[int]) -> None:
    total = sum(counts)
    whole = network()
    backward(whole(data(total)).square().mean())

    def work(group: ProcessGroup, rank: int) -> list[Tensor | None]:
        net = network()
        buckets = Buckets(list(net.parameters()))
        x = data(total)[sum(counts[:rank]) : sum(counts[: rank + 1])]
        for _ in range(2):  # the buffers are used again
            net.zero_grad()
            buckets.arm(group, len(x) / total, {}, measure=False)
            if len(x):
                backward(net(x).square().mean())
            buckets.finish()
        return gradients(net)

    for mine in run_in_group(len(counts), work):
        for got, due in zip(mine, gradients(whole), strict=True):
            assert got is not None
            assert due is not None
            assert float((got - due).abs().max()) < 1e-14


def test_there_are_several_buckets() -> None:
    net = network()
    assert len(Buckets(list(net.parameters())).buckets) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_notices_add_up_and_are_not_scaled(dtype: torch.dtype) -> None:
    def work(group: ProcessGroup, rank: int) -> list[float]:
        net = network(dtype)
        buckets = Buckets(list(net.parameters()))
        notices: dict[Notice, float | Tensor] = {
            Notice.NOT_READY: float(rank == 1),
            Notice.LOSS: torch.tensor(0.25),
        }
        buckets.arm(group, 0.01, notices, measure=True)
        backward(net(data(3, dtype)).square().mean())
        return buckets.finish()

    for sums in run_in_group(3, work):
        assert sums[Notice.NOT_READY] == 1.0
        assert sums[Notice.LOSS] == 0.75
        assert sums[Notice.SQUARE] > 0.0


@pytest.mark.parametrize("counts", [(6, 2), (8, 0)])
def test_squares_of_own_gradients_and_of_their_mean(
    counts: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the gradient noise scale is made of; those without samples say nothing."""
    monkeypatch.setattr(gradient_noise, "_SAMPLED", 1 << 30)  # all values
    parts = [data(8)[: counts[0]], data(8)[counts[0] :]]
    squares = []
    for part in [*(part for part in parts if len(part)), data(8)]:
        net = network()
        backward(net(part).square().mean())
        squares.append(
            sum(float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None)
        )
    *own, mean = squares

    def work(group: ProcessGroup, rank: int) -> tuple[float, float]:
        net = network()
        buckets = Buckets(list(net.parameters()))
        buckets.arm(group, counts[rank] / 8, {}, measure=True)
        if counts[rank]:
            backward(net(parts[rank]).square().mean())
        sums = buckets.finish()
        return sums[Notice.SQUARE], buckets.squared_norm()

    for told, reduced in run_in_group(2, work):
        assert told == pytest.approx(sum(own), rel=1e-6)
        assert reduced == pytest.approx(mean, rel=1e-6)


def test_only_large_parameters_and_those_of_early_buckets_have_hooks() -> None:
    """Each call from a hook costs microseconds."""
    small = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    alone = Buckets(list(small.parameters()))
    assert alone.buckets
    assert alone._handles == []
    net = network()  # in float64: 50 kB, 6 kB | 2.8 MB, 4 kB | 4 kB, 8 bytes
    buckets = Buckets(list(net.parameters()))
    first, last = buckets.buckets
    assert len(buckets._handles) == len(first.parameters) + last.large
    assert last.large == 0


def test_unused_parameters_have_no_gradient_and_those_used_by_one_have_it_everywhere() -> None:
    """Else weight decay and Adam would move parameters that took no part."""

    def work(group: ProcessGroup, rank: int) -> list[bool]:
        torch.manual_seed(0)
        first, second, third = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 1)
        frozen = nn.Linear(4, 1).requires_grad_(False)
        net = nn.ModuleList([first, second, third, frozen])
        buckets = Buckets(list(net.parameters()))
        buckets.arm(group, 0.5, {}, measure=False)
        backward((first if rank else second)(torch.ones(2, 4)).mean())
        buckets.finish()
        return [p.grad is not None for p in net.parameters()]

    for has in run_in_group(2, work):
        assert has == [True, True, True, True, False, False, False, False]


def test_gradients_of_earlier_micro_batches_count() -> None:
    def work(group: ProcessGroup, rank: int) -> list[Tensor | None]:
        net = network()
        buckets = Buckets(list(net.parameters()))
        x = data(8)[4 * rank : 4 * rank + 4]
        backward(net(x[:3]).square().mean() * 0.75)
        buckets.arm(group, 0.5, {}, measure=False)
        backward(net(x[3:]).square().mean() * 0.25)
        buckets.finish()
        return gradients(net)

    whole = network()
    backward(whole(data(8)).square().mean())
    for mine in run_in_group(2, work):
        for got, due in zip(mine, gradients(whole), strict=True):
            assert got is not None
            assert due is not None
            assert float((got - due).abs().max()) < 1e-14


def test_channels_last_keeps_its_strides() -> None:
    def work(group: ProcessGroup, rank: int) -> bool:
        torch.manual_seed(0)
        net = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        buckets = Buckets(list(net.parameters()))
        buckets.arm(group, 0.5, {}, measure=False)
        backward(net(torch.randn(2, 3, 8, 8)).square().mean())
        buckets.finish()
        assert net.weight.grad is not None
        return bool(net.weight.grad.stride() == net.weight.stride())

    assert run_in_group(2, work) == [True, True]


def test_a_lost_member_is_an_error_of_finish_and_not_of_backward() -> None:
    def work(group: ProcessGroup, rank: int) -> str:
        net = network()
        buckets = Buckets(list(net.parameters()))
        if rank == 1:
            group.close()
            return "gone"
        buckets.arm(group, 0.5, {}, measure=False)
        backward(net(data(4)).square().mean())
        try:
            buckets.finish()
        except GroupLostError:
            return "lost"
        return "nothing"

    assert run_in_group(2, work) == ["lost", "gone"]


def test_two_gradients_in_one_backward_are_refused() -> None:
    def work(group: ProcessGroup, rank: int) -> str:
        net = network()
        buckets = Buckets(list(net.parameters()))
        buckets.arm(group, 1.0, {}, measure=False)
        backward(net(data(4)).sum())
        try:
            backward(net(data(4)).sum())
        except UserError as problem:
            group.close()
            return str(problem)
        return ""

    (words,) = run_in_group(1, work)
    assert "use_reentrant=False" in words


def test_a_model_without_anything_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="no parameter that requires a gradient"):
        Buckets(list(nn.Linear(2, 2).requires_grad_(False).parameters()))
