"""Everything that makes one worker equal to another, and how all become equal at once.

What is no tensor (structure of the optimizer's state, schedule, scaler, progress) goes ahead
in a header. `feeding` is the other way: it sends state while training goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Adam, AdamW, Optimizer

from ones.errors import UserError
from ones.train.checkpoint import copied
from ones.train.group import Group, wait_all
from ones.train.learning_rate import LearningRate
from ones.train.parcels import extract, insert, pack, parcels, receive_into, unpack
from ones.train.progress import Progress

# each parameter's step depends on nothing but its own gradient and state, and leaves the
# gradient as it is (foreach and fused ones may not)
_REPEATABLE = (SGD, Adam, AdamW)


class Replica:
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any,
        scaler: GradScaler | None,
        rate: LearningRate,
        progress: Progress,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.scheduler, self.scaler = scheduler, scaler
        self.rate, self.progress = rate, progress
        self._warm: dict[Tensor, list[Tensor]] = {}  # memory for optimizer state, touched already
        self.has_state = False  # it has trained, or got the state of one that has
        self.changes_by_itself = False  # the script does something that nobody repeats

    # as plain values

    def state(self) -> dict[str, Any]:
        """For a checkpoint. Tensors are the living ones: copy them before the next step."""
        return {"model": self.model.state_dict(), **self._rest()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._load_rest(state)

    def _rest(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), **self._bookkeeping()}

    def _bookkeeping(self) -> dict[str, Any]:
        return {
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "rate": self.rate.state(),
            "progress": self.progress.state(),
        }

    def _load_rest(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_bookkeeping(state)
        self.has_state = True

    def _load_bookkeeping(self, state: dict[str, Any]) -> None:
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.rate.load(state["rate"])
        self.progress.load(state["progress"])

    def warm_up(self) -> None:
        """One step on nothing: the optimizer makes its state, and its memory is ours before
        anybody waits for it. Everything is overwritten when the true state comes."""
        saved = copied(self._rest())
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        values = [p.detach().clone() for p in trained]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        with contextlib.suppress(Exception):  # an optimizer that cannot: then without
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, value in zip(trained, values, strict=True):
                p.copy_(value)
        for p, state in self.optimizer.state.items():
            extract(state, self._warm.setdefault(p, []))
        self._load_rest(saved)
        self.has_state = False

    # piece by piece, for `feeding`

    @property
    def is_repeatable(self) -> bool:
        """Can a newcomer make the optimizer's steps again, one parameter at a time?"""
        groups = self.optimizer.param_groups
        plain = not any(group.get("foreach") or group.get("fused") for group in groups)
        here = all(p.device.type == "cpu" for p in self.model.parameters())
        known = type(self.optimizer) in _REPEATABLE
        return known and plain and here and not self.changes_by_itself

    def piece(self, p: Tensor, tensors: list[Tensor]) -> Any:
        """A parameter with its part of the optimizer's state: description and living tensors."""
        tensors.append(p.detach())
        return [list(p.shape), extract(dict(self.optimizer.state.get(p, {})), tensors)]

    def room_for(self, p: Tensor, described: Any, tensors: list[Tensor]) -> None:
        """Where the tensors of that piece are to be received."""
        shape, state = described
        if shape != list(p.shape):
            raise _other_shapes()
        tensors.append(p.detach())
        made = insert(state, tensors, p.device, self._warm.pop(p, []))
        if made:
            self.optimizer.state[p] = made

    def settings(self) -> list[dict[str, Any]]:
        """Of the optimizer, by parameter group: learning rate and all."""
        groups = self.optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def use_settings(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)

    def last_words(self) -> dict[str, Any]:
        """What is left to say when all pieces are there."""
        return {"settings": self.settings(), **self._bookkeeping()}

    def hear_last_words(self, words: dict[str, Any]) -> None:
        self.use_settings(words["settings"])
        self._load_bookkeeping(words)
        self._warm.clear()

    def digest(self) -> int:
        """Of all bits of parameters and optimizer state."""
        total = 0
        for p in self.model.parameters():
            tensors: list[Tensor] = []
            self.piece(p, tensors)
            for tensor in tensors:
                total = (total * 1_000_003 + _sum_of_bits(tensor)) % (1 << 61)
        return total

    # from worker to worker

    def share(self, group: Group, mark: int) -> bool:
        """Afterwards all members are equal to the one that got furthest (highest mark).

        All below 0, nobody has trained: the first one's. True: this worker received.
        """
        marks = [number - 1 for number in group.of_all(mark + 1)]
        highest = max(marks)
        if highest < 0:
            trained = [rank == 0 for rank in range(group.size)]
        else:
            trained = [other == highest for other in marks]
        if trained[group.rank]:
            self._send(group, fed_by(trained, group.rank))
            self.has_state = True
            return False
        self._receive(group, feeder_of(trained, group.rank))
        return True

    def _send(self, group: Group, receivers: Sequence[int]) -> None:
        if not receivers:
            return
        own = self._own()
        others: list[Tensor] = []
        header = pack({"shapes": [list(t.shape) for t in own], **extract(self._rest(), others)})
        length = torch.tensor([header.numel()], dtype=torch.int64)
        device = own[0].device if own else torch.device("cpu")
        parts = [length.to(device), header.to(device), *parcels([*own, *others])]
        wait_all([group.send(part, to) for part in parts for to in receivers])

    def _receive(self, group: Group, source: int) -> None:
        own = self._own()
        device = own[0].device if own else torch.device("cpu")
        length = torch.zeros(1, dtype=torch.int64, device=device)
        wait_all([group.receive(length, source)])
        packed = torch.empty(int(length), dtype=torch.uint8, device=device)
        wait_all([group.receive(packed, source)])
        header = unpack(packed.cpu())
        if header["shapes"] != [list(t.shape) for t in own]:
            raise _other_shapes()
        others: list[Tensor] = []
        warm = [tensor for tensors in self._warm.values() for tensor in tensors]
        rest = insert(header, others, device, warm)
        self._warm.clear()
        receive_into([*own, *others], lambda part: group.receive(part, source))
        self._load_rest(rest)

    def _own(self) -> list[Tensor]:
        with torch.no_grad():
            tensors = [*self.model.parameters(), *self.model.buffers()]
            return [t.detach() for t in tensors]


def feeder_of(trained: Sequence[bool], rank: int) -> int:
    """From whom a worker that has not trained gets the state.

    >>> [feeder_of([True, True, False, False, False], rank) for rank in (2, 3, 4)]
    [0, 1, 0]
    """
    sources = [r for r, has in enumerate(trained) if has]
    receivers = [r for r, has in enumerate(trained) if not has]
    return sources[receivers.index(rank) % len(sources)]


def fed_by(trained: Sequence[bool], rank: int) -> list[int]:
    """To whom a worker that has trained gives the state."""
    return [r for r, has in enumerate(trained) if not has and feeder_of(trained, r) == rank]


def share_buffers(group: Group, model: nn.Module, source: int = 0) -> None:
    """One member's, everywhere: batch norm's statistics differ between workers.

    The sender does not wait: copies travel, for as long as the group is there.
    """
    buffers = [b.detach() for b in model.buffers()]
    if not buffers:
        return
    if group.rank == source:
        parts = parcels([b.clone() for b in buffers])
        others = [rank for rank in range(group.size) if rank != source]
        group.clear()  # of the last time
        group.keep([group.send(part, to) for part in parts for to in others], parts)
    else:
        receive_into(buffers, lambda part: group.receive(part, source))


def _sum_of_bits(tensor: Tensor) -> int:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    total = int(flat[:whole].view(torch.int64).sum()) if whole else 0
    return total + int(flat[whole:].sum())


def _other_shapes() -> UserError:
    return UserError(
        "the model of this worker has other shapes than the job's: a script must build"
        " the same model in every worker"
    )
