"""`ones.join` under plain python: an ordinary loop on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_module
from torch.utils.data import DataLoader, TensorDataset

import ones
from ones.errors import UserError
from ones.stopping import StopRule
from ones.train import ElasticJob, joining
from ones.train.sampler import permutation
from ones.wire.environment import WorkerEnvironment

torch.set_num_threads(1)
N = 50


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, (x[:, 0] * 2 - x[:, 1]).unsqueeze(1))


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def train(job: ElasticJob, net: nn.Module, epochs: int = 2, **options: Any) -> None:
    for _ in job.epochs(epochs):
        for x, y in job.batches():
            job.step(nn.functional.mse_loss(net(x), y), **options)


def plain(
    make: Callable[[nn.Module], torch.optim.Optimizer], clip: float | None = None
) -> nn.Module:
    """The same loop in plain PyTorch, with the same order of samples."""
    net, (xs, ys) = model(), data().tensors
    opt = make(net)
    for epoch in range(2):
        order = permutation(N, seed=0, epoch=epoch)
        for at in range(0, N, 16):
            x, y = xs[order[at : at + 16]], ys[order[at : at + 16]]
            opt.zero_grad()
            torch.autograd.backward(nn.functional.mse_loss(net(x), y))
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            opt.step()
    return net


def apart(a: nn.Module, b: nn.Module) -> float:
    return max(
        float((p - q).detach().abs().max())
        for p, q in zip(a.parameters(), b.parameters(), strict=True)
    )


OPTIMIZERS: list[Callable[[nn.Module], torch.optim.Optimizer]] = [
    lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
    lambda net: torch.optim.AdamW(net.parameters(), lr=0.01),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_it_trains_as_the_plain_loop_does(
    make: Callable[[nn.Module], torch.optim.Optimizer], limit: int | None, clip: float | None
) -> None:
    net = model()
    job = ones.join(net, make(net), data(), batch_size=16, max_local_batch=limit)
    train(job, net, clip=clip)
    assert job.steps == 8
    assert apart(net, plain(make, clip)) < (1e-15 if limit is None else 1e-12)


def test_ignored_targets_do_not_count() -> None:
    """Micro-batches with few valid targets weigh little: the step is the whole batch's."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (24,), generator=generator)
    y[torch.rand(24, generator=generator) < 0.5] = -100
    y[:8] = -100  # one micro-batch with none at all

    def run(limit: int | None) -> nn.Module:
        torch.manual_seed(3)
        net = nn.Linear(6, 3).double()
        opt = torch.optim.SGD(net.parameters(), lr=0.5)
        job = ones.join(net, opt, TensorDataset(x, y), 24, max_local_batch=limit, shuffle=False)
        for _ in job.epochs(2):
            for a, b in job.batches():
                loss = nn.functional.cross_entropy(net(a), b)
                job.step(loss, weight=int((b != -100).sum()))
        return net

    assert apart(run(None), run(8)) < 1e-14


def test_the_loss_is_known_without_being_told() -> None:
    net = model()
    job = ones.join(net, OPTIMIZERS[0](net), data(), batch_size=16, max_local_batch=5)
    first = None
    for _ in job.epochs(1):
        for at, (x, y) in enumerate(job.batches()):
            loss = nn.functional.mse_loss(net(x), y)
            first = first if at else loss.item()
            job.step(loss)
    last = job._progress.last
    assert (last.steps, last.samples) == (4, N)
    assert last.mean_loss is not None
    assert job._progress.first_loss is not None
    assert last.mean_loss < job._progress.first_loss


@pytest.mark.parametrize(("when", "count"), [("epoch", 2), ("step", 8)])
def test_a_schedule_is_stepped_for_the_script(when: Literal["epoch", "step"], count: int) -> None:
    net = model()
    opt = OPTIMIZERS[0](net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    job = ones.join(net, opt, data(), 16, scheduler=schedule, scheduler_step=when)
    train(job, net)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.05 * 0.5**count)


def test_loader_workers_see_the_same_samples() -> None:
    def run(workers: int) -> nn.Module:
        net = model()
        train(ones.join(net, OPTIMIZERS[0](net), data(), batch_size=16, num_workers=workers), net)
        return net

    assert apart(run(0), run(1)) == 0.0


def test_a_scaler_is_used() -> None:
    net = model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    job = ones.join(net, OPTIMIZERS[0](net), data(), batch_size=16, scaler=scaler)
    train(job, net, clip=0.1)
    assert apart(net, plain(OPTIMIZERS[0], 0.1)) < 1e-7  # the inverse scale is float32


def test_a_stop_rule_ends_the_loop_early() -> None:
    net = model()
    rule = StopRule(target_accuracy=0.5, target_epochs=2)
    job = ones.join(net, OPTIMIZERS[0](net), data(), batch_size=16, stop=rule)
    seen = []
    for epoch in job.epochs(10):
        for x, y in job.batches():
            job.step(nn.functional.mse_loss(net(x), y))
        seen.append(epoch)
        job.report(accuracy=0.3 * epoch)
    assert seen == [0, 1, 2, 3]


def test_a_batch_may_be_skipped() -> None:
    net = model()
    job = ones.join(net, OPTIMIZERS[0](net), data(), batch_size=16)
    trained = 0
    for _ in job.epochs(1):
        for at, (x, y) in enumerate(job.batches()):
            if at == 1:
                job.skip()
            else:
                trained += job.step(nn.functional.mse_loss(net(x), y))
    assert trained == 3
    assert job.steps == 4


def test_a_sharded_model_is_refused() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        net = model()
        distribute_module(net, init_device_mesh("cpu", (1,)))
        with pytest.raises(UserError, match=r"model is sharded \(FSDP or DTensor\)"):
            ones.join(net, OPTIMIZERS[0](net), data(), 4)
    finally:
        dist.destroy_process_group()


class FullyShardedDataParallel(nn.Module):
    """As torch's wrapper, by its name."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_model_in_fsdp_is_refused() -> None:
    net = FullyShardedDataParallel(model())
    with pytest.raises(UserError, match=r"model is sharded \(FSDP or DTensor\)") as caught:
        ones.join(net, OPTIMIZERS[0](net), data(), 4)
    assert "\n" not in str(caught.value)


def test_a_worker_joins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = WorkerEnvironment(
        controller="http://127.0.0.1:9", token="t", job="j", worker="n0/0", plan=1,
        run_dir="/", job_dir="/", checkpoints="/",
    )  # fmt: skip
    for name, value in environment.to_env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(joining, "_joined", True)
    net = model()
    with pytest.raises(UserError, match=r"ones\.join was called twice"):
        ones.join(net, OPTIMIZERS[0](net), data(), 4)


def refusals() -> list[tuple[Callable[[], object], str]]:
    net = model()
    opt = OPTIMIZERS[0](net)
    return [
        (lambda: ones.join(net, opt, 7, 4), "dataset int has no __len__ and __getitem__, and is"),
        (
            lambda: ones.join(net, opt, iter(()), 4, num_workers=2),
            "num_workers is not possible with a stream",
        ),
        (
            lambda: ones.join(net, opt, iter(()), 4, sampler=range(4)),
            "sampler is not possible with a stream",
        ),
        (
            lambda: ones.join(net, opt, DataLoader(data()), 4),
            "batch_size is 4, and 1 in the DataLoader",
        ),
        (lambda: ones.join(net, opt, [], 4), "dataset list is empty"),
        (lambda: ones.join(net, [opt, opt], data(), 4), "two optimizers have the same parameter"),
        (lambda: ones.join(net, opt, data(), 0), "batch_size 0 is not at least 1"),
        (lambda: ones.join(nn.DataParallel(net), opt, data(), 4), "wrapped in DataParallel"),
        (lambda: ones.join(model(), opt, data(), 4), "parameters that are not the model's"),
        (
            lambda: ones.join(net, opt, data(), 4).step(torch.zeros(1)),
            "call job.step once for each batch, in `for ... in job.batches",
        ),
    ]


@pytest.mark.parametrize(("attempt", "words"), refusals())
def test_what_cannot_work_is_refused_in_one_line(attempt: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words.replace("(", r"\(")) as caught:
        attempt()
    assert "\n" not in str(caught.value)
