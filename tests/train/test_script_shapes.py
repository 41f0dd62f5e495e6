"""The small verbs of a job give what the plain script gives; what would go wrong is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import ones
from ones.errors import UserError
from ones.stopping import StopRule
from ones.train.elastic_job import ElasticJob
from tests.train.test_elastic_job import OPTIMIZERS, apart, data, model, plain, train


def joined(net: nn.Module, **options: Any) -> ElasticJob:
    return ones.join(net, OPTIMIZERS[0](net), data(), 16, **options)


def loss_of(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(net(x), y)


@pytest.mark.parametrize("limit", [None, 5])
def test_backward_and_update_are_step(limit: int | None) -> None:
    net = model()
    job = joined(net, max_local_batch=limit)
    for _ in job.epochs(2):
        for x, y in job.batches():
            if job.backward(loss_of(net, x, y)):
                nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            job.update()
    assert apart(net, plain(OPTIMIZERS[0], 0.1)) < 1e-12


def test_losses_of_one_batch_add_up() -> None:
    net = model()
    job = joined(net)
    for _ in job.epochs(2):
        for x, y in job.batches():
            job.backward(loss_of(net, x, y) * 0.25)
            job.backward(loss_of(net, x, y) * 0.75)
            job.update()
    assert apart(net, plain(OPTIMIZERS[0])) < 1e-12


def test_accumulation_of_a_script_becomes_a_memory_limit() -> None:
    net = model()
    job = joined(net, max_local_batch=4)
    rests = []
    for _ in job.epochs(2):
        for x, y in job.batches():
            job.backward(loss_of(net, x, y))
            rests.append(job.accumulate())
            if job.accumulate():
                continue
            job.update()
    assert rests[:4] == [True, True, True, False]
    assert apart(net, plain(OPTIMIZERS[0])) < 1e-12


def test_a_loop_over_steps_counts_as_the_plain_script_does() -> None:
    """50 samples in batches of 16 are 4 steps, the last with 2 samples."""
    net, sizes = model(), []
    job = joined(net)
    for x, y in job.steps(6):
        job.step(loss_of(net, x, y))
        sizes.append(len(x))
    assert sizes == [16, 16, 16, 2, 16, 16]
    assert (job.steps, job.samples) == (6, 82)


def test_every_counts_steps_of_the_scripts_own_batch_size() -> None:
    net = model()
    job = joined(net, max_local_batch=8)
    seen = []
    for x, y in job.steps(8):
        job.step(loss_of(net, x, y))
        if job.every(steps=3):
            seen.append(int(job.steps))
    assert seen == [3, 6]


def test_a_dataloader_brings_its_options() -> None:
    net = model()
    loader = DataLoader(data(), batch_size=16, shuffle=True, drop_last=True)
    job = ones.join(net, OPTIMIZERS[0](net), loader)
    batches = job.loader()
    assert len(batches) == len(loader) == 3
    for _ in job.epochs(2):
        assert [len(x) for x, y in batches if job.step(loss_of(net, x, y))] == [16, 16, 16]


def test_data_may_be_given_later() -> None:
    net = model()
    job = ones.join(net, OPTIMIZERS[0](net))
    with pytest.raises(UserError, match="the job has no training data"):
        next(iter(job.epochs(1)))
    batches = job.loader(data(), 16)
    for _ in job.epochs(2):
        for x, y in batches:
            job.step(loss_of(net, x, y))
    assert apart(net, plain(OPTIMIZERS[0])) < 1e-15
    with pytest.raises(UserError, match="the job has its training data"):
        job.loader(data(), 16)


def test_a_sampler_draws_the_same_order_again() -> None:
    """Every worker asks its own sampler: the global random state must not matter."""

    def seen() -> list[float]:
        torch.seed()
        net, values = model(), []
        job = joined(net, sampler=WeightedRandomSampler([1.0] * 25 + [0.0] * 25, 30))
        for _ in job.epochs(2):
            for x, y in job.batches():
                job.step(loss_of(net, x, y))
                values += x[:, 0].tolist()
        return values

    first = seen()
    assert len(first) == 60
    assert first == seen()
    assert first[:30] != first[30:]
    assert set(first) <= set(data().tensors[0][:25, 0].tolist())


def test_training_starts_at_a_later_epoch() -> None:
    net = model()
    job = joined(net, start_epoch=2)
    seen = []
    for epoch in job.epochs(4):
        seen.append(epoch)
        for x, y in job.batches():
            job.step(loss_of(net, x, y))
    assert seen == [2, 3]


def test_a_script_may_leave_its_loops() -> None:
    net = model()
    job = joined(net)
    epochs = []
    for epoch in job.epochs(5):
        for x, y in job.batches():
            job.step(loss_of(net, x, y))
            if job.steps % 4 == 2:
                break
        epochs.append(epoch)
        if epoch == 2:
            job.stop()
    assert (epochs, job.steps) == ([0, 1, 2], 10)


def test_a_plateau_schedule_gets_what_was_reported() -> None:
    net = model()
    opt = OPTIMIZERS[0](net)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
    job = ones.join(net, opt, data(), 16, scheduler=schedule)
    for epoch in job.epochs(3):
        for x, y in job.batches():
            job.step(loss_of(net, x, y))
        job.report(val_loss=float(epoch))  # rises, while the training loss falls
    assert opt.param_groups[0]["lr"] == pytest.approx(0.05 / 4)


def test_the_scripts_own_checkpoint_has_the_new_position_of_the_schedule(tmp_path: Path) -> None:
    net = model()
    opt = OPTIMIZERS[0](net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    job = ones.join(net, opt, data(), 16, scheduler=schedule)
    for _ in job.epochs(1):
        for x, y in job.batches():
            job.step(loss_of(net, x, y))
        assert schedule.state_dict()["last_epoch"] == 1
        job.save(tmp_path / "last.pt", best=0.5)
    other = model()
    other_opt = OPTIMIZERS[0](other)
    second = ones.join(other, other_opt, data(), 16)
    assert second.load(tmp_path / "last.pt")["best"] == 0.5
    assert apart(net, other) == 0.0
    assert other_opt.param_groups[0]["lr"] == 0.025


def test_files_of_a_compiled_model_have_plain_names(tmp_path: Path) -> None:
    net = model()
    compiled: Any = torch.compile(net, backend="eager")
    ones.join(compiled, OPTIMIZERS[0](compiled), data(), 16).save(tmp_path / "a.pt")
    state = torch.load(tmp_path / "a.pt", weights_only=True)
    model().load_state_dict(state["model"])
    assert not [name for name in state["model"] if "_orig_mod" in name]


class Average:
    """An average of a model outside of it."""

    def __init__(self, net: nn.Module) -> None:
        self.values = [p.detach().clone() for p in net.parameters()]

    def update(self, net: nn.Module) -> None:
        torch._foreach_lerp_(self.values, [p.detach() for p in net.parameters()], 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])


def test_state_of_the_script_is_kept() -> None:
    net = model()
    job = joined(net)
    ema = Average(net)
    job.also(ema=ema)
    job.state["best"] = 0.75
    state = job._replica.state()
    ema.update(net)
    other = model()
    second = joined(other)
    second._replica.load(state)
    late = Average(other)
    late.values = []
    second.also(ema=late)  # after its state has arrived
    assert second.state == {"best": 0.75}
    assert all(map(torch.equal, late.values, state["script"]["also"]["ema"]["values"]))


def test_a_disabled_scaler_is_none() -> None:
    net = model()
    job = joined(net, scaler=torch.amp.GradScaler("cpu", enabled=False))
    for _ in job.epochs(2):
        for x, y in job.batches():
            job.step(loss_of(net, x, y), clip=0.1)
    assert apart(net, plain(OPTIMIZERS[0], 0.1)) < 1e-15


def test_a_clip_of_the_scripts_own_after_unscaling() -> None:
    net = model()
    opt = OPTIMIZERS[0](net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    job = ones.join(net, opt, data(), 16, scaler=scaler)
    for _ in job.epochs(2):
        for x, y in job.batches():
            job.backward(loss_of(net, x, y))
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            job.update()
    assert apart(net, plain(OPTIMIZERS[0], 0.1)) < 1e-7


def test_an_evaluation_alone_is_that_of_all_data() -> None:
    net = model()
    job = joined(net)
    assert len(job.shard(data())) == len(data())
    loader = job.shard(DataLoader(data(), 8))
    assert isinstance(loader, DataLoader)
    assert sum(len(x) for x, _ in loader) == len(data())
    assert job.mean(torch.tensor(3.0), weight=7) == 3.0


Body = Callable[[ElasticJob, nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], object]


def own_backward(
    job: ElasticJob, net: nn.Module, _: object, x: torch.Tensor, y: torch.Tensor
) -> None:
    torch.autograd.backward(loss_of(net, x, y))


def own_step(
    job: ElasticJob, net: nn.Module, opt: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    job.backward(loss_of(net, x, y))
    opt.step()


def second_optimizer(
    job: ElasticJob, net: nn.Module, _: object, x: torch.Tensor, y: torch.Tensor
) -> None:
    job.step(loss_of(net, x, y))
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0).step()


def second_optimizer_of_the_model(job: ElasticJob, net: nn.Module, _: object, *__: Any) -> None:
    torch.optim.SGD(net.parameters(), lr=1.0).step()


def twice(job: ElasticJob, net: nn.Module, _: object, x: torch.Tensor, y: torch.Tensor) -> None:
    job.step(loss_of(net, x, y))
    job.step(loss_of(net, x, y))


def no_update(job: ElasticJob, net: nn.Module, _: object, x: torch.Tensor, y: torch.Tensor) -> None:
    job.backward(loss_of(net, x, y))


def update_only(job: ElasticJob, net: nn.Module, *_: Any) -> None:
    job.update()


def nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (own_backward, r"the script calls backward\(\) itself: call job.step\(loss\)"),
        (own_step, r"the script calls SGD.step\(\) itself: remove it"),
        (second_optimizer, "SGD is not an optimizer of the job"),
        (second_optimizer_of_the_model, "a second optimizer"),
        (twice, "job.step was called twice for the same batch"),
        (no_update, "step 0 has gradients and no update"),
        (update_only, "job.update was called without job.backward"),
        (nothing, "batch 1 of step 0 was not trained on"),
    ],
)
def test_what_would_go_wrong_silently_is_refused(body: Body, words: str) -> None:
    net = model()
    opt = OPTIMIZERS[0](net)
    job = ones.join(net, opt, data(), 16)

    def train() -> None:
        for _ in job.epochs(1):
            for x, y in job.batches():
                body(job, net, opt, x, y)

    with pytest.raises(UserError, match=words) as caught:
        train()
    assert "\n" not in str(caught.value)
    torch.optim.SGD(net.parameters(), lr=1.0).step()  # outside of the loop it is the script's own


def refusals() -> list[tuple[Callable[[], object], str]]:
    net = model()
    opt = OPTIMIZERS[0](net)
    job = ones.join(net, opt, data(), 16)
    grouped: Any = DataLoader(data(), batch_sampler=[[0, 1], [2, 3]])
    return [
        (lambda: ones.join(net, opt, data()), "batch_size is missing"),
        (lambda: ones.join(net, opt, batch_size=4), "options for a dataset, and no dataset"),
        (lambda: ones.join(net, opt, data(), 4, batch=3), "batch is not an option"),
        (lambda: ones.join(net, opt, data(), 4, scheduler=lambda: 1), "scheduler function is not"),
        (lambda: ones.join(net, opt, data(), 60, drop_last=True), "drop_last leaves no sample"),
        (lambda: ones.join(net, opt, grouped), "batch_size is missing"),
        (lambda: ones.join(net, opt, grouped, 1), "yields a batch of 2 samples"),
        (
            lambda: ones.join(net, opt, DataLoader(data(), batch_size=None)),
            "the DataLoader has no batch_size",
        ),
        (
            lambda: ones.join(net, opt, DataLoader(data(), 4), drop_last=True),
            "drop_last is given twice",
        ),
        (lambda: next(job.batches()), "outside of a loop over epochs"),
        (job.every, "needs steps=... or seconds="),
        (lambda: job.also(ema=3), "ema (int) has no state_dict"),
        (lambda: job.steps(0), "steps 0 is not at least 1"),
        (lambda: job.load("/nowhere/a.pt"), "/nowhere/a.pt: no such file"),
        (
            lambda: joined(net, sampler=torch.utils.data.DistributedSampler(data(), 2, 0)),
            "leave it out, ones.join divides",
        ),
        (
            lambda: joined(
                net, sampler=torch.utils.data.BatchSampler(SequentialSampler(data()), 2, False)
            ),
            "yields batches",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(("attempt", "words"), refusals())
def test_wrong_arguments_are_refused_in_one_line(attempt: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        attempt()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class ByLength:
    """A batch sampler that puts samples of similar length together, in another order each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        starts = list(range(0, 48, 8))
        for start in starts[self.epoch :] + starts[: self.epoch]:
            yield list(range(start, start + 8))


def test_batches_of_the_scripts_sampler_are_taken_in_order() -> None:
    seen: dict[int, list[int]] = {}
    numbers = torch.arange(48.0).unsqueeze(1)
    pairs = TensorDataset(numbers, numbers)
    loader: Any = DataLoader(pairs, batch_sampler=ByLength())
    net = nn.Linear(1, 1)
    job = ones.join(net, torch.optim.SGD(net.parameters(), lr=1e-6), loader, 8, max_local_batch=4)
    for epoch in job.epochs(2):
        for x, y in job.batches():
            seen.setdefault(epoch, []).extend(x[:, 0].int().tolist())
            job.step(loss_of(net, x, y))
    assert seen[0] == list(range(48))
    assert seen[1] == [*range(8, 48), *range(8)]
    assert job.steps == 12


class Shrinking:
    """A batch sampler whose epochs have fewer and fewer samples."""

    left = 40

    def __iter__(self) -> Iterator[list[int]]:
        Shrinking.left -= 8
        return iter([[i] for i in range(self.left)])


def test_a_batch_sampler_has_equally_many_samples_in_each_epoch() -> None:
    net = model()
    job = ones.join(net, OPTIMIZERS[0](net), data(), 16, batch_sampler=Shrinking())
    with pytest.raises(UserError, match="yields 24 samples in epoch 0 and 32 at first"):
        train(job, net, 1)


def test_a_loop_over_samples_ends_with_the_last_of_them() -> None:
    net, sizes = model(), []
    job = joined(net)
    for x, y in job.steps(samples=70):
        job.step(loss_of(net, x, y))
        sizes.append(len(x))
    assert sizes == [16, 16, 16, 2, 16, 4]
    assert job.samples == 70


def test_a_loop_over_tokens_ends_with_the_step_that_reaches_their_number() -> None:
    net = model()
    job = joined(net)
    for x, y in job.steps(tokens=500):
        job.step(loss_of(net, x, y), weight=3 * len(x))
    assert (job.tokens, job.steps) == (546, 14)  # 150 in an epoch of 4 steps


def test_tokens_must_be_counted() -> None:
    net = model()
    job = joined(net)
    x, y = next(job.steps(tokens=500))
    with pytest.raises(UserError, match=r"job\.step\(loss, weight=number\)"):
        job.step(loss_of(net, x, y))


@pytest.mark.parametrize(
    ("rule", "steps"),
    [(StopRule(max_steps=6), 6), (StopRule(max_samples=60), 5), (StopRule(max_tokens=60), 5)],
)
def test_a_script_that_runs_alone_ends_by_its_rule(rule: StopRule, steps: int) -> None:
    net = model()
    job = joined(net, stop=rule)
    for _ in job.epochs(9):
        for x, y in job.batches():
            job.step(loss_of(net, x, y), weight=len(x))
    assert job.steps == steps


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_a_schedule_follows_the_samples_in_any_unit(unit: str) -> None:
    """ceil(50 / 16) steps in an epoch, as without ONES."""
    net = model()
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    job = ones.join(net, opt, data(), 16, scheduler=schedule, scheduler_step="step")
    total: dict[str, Any] = {unit: 100}
    for x, y in job.steps(**total):
        job.step(loss_of(net, x, y) * 1e-9, weight=len(x))
    assert schedule.last_epoch == 8
