"""Everything that makes one worker equal to another, and how it gets from one to the other.

Large tensors are received where they live; small ones travel together, as each message has
its price. What is no tensor (structure of the optimizer's state,
schedule, scaler, progress) goes ahead in a header that is read with `weights_only`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ones.errors import UserError
from ones.train.checkpoint import copied
from ones.train.group import Group, wait_all
from ones.train.learning_rate import LearningRate
from ones.train.progress import Progress

_SMALL = 64 << 10  # bytes: below, two copies cost less than a message (0.9 ms per MB, 40 us)
_TENSOR = "__tensor__"


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
        self._warm: list[Tensor] = []  # memory for the optimizer's state, touched already
        self.has_state = False  # it has trained, or got the state of one that has

    # as plain values

    def state(self) -> dict[str, Any]:
        """For a checkpoint. Tensors are the living ones: copy them before the next step."""
        return {"model": self.model.state_dict(), **self._rest()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._load_rest(state)

    def _rest(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "rate": self.rate.state(),
            "progress": self.progress.state(),
        }

    def _load_rest(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.rate.load(state["rate"])
        self.progress.load(state["progress"])
        self.has_state = True

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
        self._warm = []
        _extract(self._rest(), self._warm)
        self._load_rest(saved)
        self.has_state = False

    # from worker to worker

    def share(self, group: Group, mark: int) -> bool:
        """Afterwards all members are equal to the one that got furthest (highest mark).

        All below 0, nobody has trained: the first one's. True: this worker received.
        """
        marks = _all_marks(group, mark)
        highest = max(marks)
        if highest < 0:
            sources = [0]
        else:
            sources = [rank for rank, other in enumerate(marks) if other == highest]
        receivers = [rank for rank in range(group.size) if rank not in sources]
        if group.rank in sources:
            index = sources.index(group.rank)
            self._send(group, receivers[index :: len(sources)])
            self.has_state = True
            return False
        self._receive(group, sources[receivers.index(group.rank) % len(sources)])
        return True

    def _send(self, group: Group, receivers: Sequence[int]) -> None:
        if not receivers:
            return
        own = self._own()
        others: list[Tensor] = []
        header = _pack({"shapes": [list(t.shape) for t in own], **_extract(self._rest(), others)})
        length = torch.tensor([header.numel()], dtype=torch.int64)
        device = own[0].device if own else torch.device("cpu")
        parts = [length.to(device), header.to(device), *_parcels([*own, *others])]
        wait_all([group.send(part, to) for part in parts for to in receivers])

    def _receive(self, group: Group, source: int) -> None:
        own = self._own()
        device = own[0].device if own else torch.device("cpu")
        length = torch.zeros(1, dtype=torch.int64, device=device)
        wait_all([group.receive(length, source)])
        packed = torch.empty(int(length), dtype=torch.uint8, device=device)
        wait_all([group.receive(packed, source)])
        header = _unpack(packed.cpu())
        if header["shapes"] != [list(t.shape) for t in own]:
            raise UserError(
                "the model of this worker has other shapes than the job's: a script must build"
                " the same model in every worker"
            )
        others: list[Tensor] = []
        rest = _insert(header, others, device, self._warm)
        self._warm = []
        _receive_into([*own, *others], lambda part: group.receive(part, source))
        self._load_rest(rest)

    def _own(self) -> list[Tensor]:
        with torch.no_grad():
            tensors = [*self.model.parameters(), *self.model.buffers()]
            return [t.detach() for t in tensors]


def share_buffers(group: Group, model: nn.Module) -> None:
    """The first member's, everywhere: batch norm's statistics differ between workers."""
    buffers = [b.detach() for b in model.buffers()]
    if not buffers:
        return
    if group.rank == 0:
        parts = _parcels(buffers)
        wait_all([group.send(part, to) for part in parts for to in range(1, group.size)])
    else:
        _receive_into(buffers, lambda part: group.receive(part, 0))


def _all_marks(group: Group, mark: int) -> list[int]:
    marks = torch.zeros(group.size, dtype=torch.int64, device=group.device)
    marks[group.rank] = mark + 1
    wait_all([group.sum(marks)])
    return [int(m) - 1 for m in marks.tolist()]


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= _SMALL


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Small tensors, those of one type together; the same grouping on both sides."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not _is_large(tensor) and tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


def _as_bytes(tensor: Tensor) -> Tensor:
    """gloo knows no booleans and no 8-bit floats: bytes suit everything."""
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def _parcels(tensors: Sequence[Tensor]) -> list[Tensor]:
    large = [t if t.is_contiguous() else t.contiguous() for t in tensors if _is_large(t)]
    small = [torch.cat([t.reshape(-1) for t in kind]) for kind in _by_kind(tensors)]
    return [_as_bytes(t.reshape(-1)) for t in (*large, *small)]


def _receive_into(tensors: Sequence[Tensor], receive: Callable[[Tensor], Any]) -> None:
    works, later = [], []
    for tensor in tensors:
        if not _is_large(tensor):
            continue
        if tensor.is_contiguous():
            works.append(receive(_as_bytes(tensor.view(-1))))
        else:
            landing = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            works.append(receive(_as_bytes(landing.view(-1))))
            later.append((tensor, landing))
    for kind in _by_kind(tensors):
        size = sum(t.numel() for t in kind)
        flat = torch.empty(size, dtype=kind[0].dtype, device=kind[0].device)
        works.append(receive(_as_bytes(flat)))
        parts = torch.split(flat, [t.numel() for t in kind])
        later += [(t, p.view(t.shape)) for t, p in zip(kind, parts, strict=True)]
    wait_all(works)
    with torch.no_grad():
        for tensor, landing in later:
            tensor.copy_(landing)


def _extract(value: Any, tensors: list[Tensor]) -> Any:
    """The same value with each tensor replaced by a description; the tensors go to the list."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        on_cpu = value.device.type == "cpu"
        return {_TENSOR: [list(value.shape), str(value.dtype).removeprefix("torch."), on_cpu]}
    if isinstance(value, dict):
        return {key: _extract(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_extract(item, tensors) for item in value)
    return value


def _insert(value: Any, tensors: list[Tensor], device: torch.device, warm: list[Tensor]) -> Any:
    """Tensors, in the same order, where `_extract` has taken some out: warm ones if they fit."""
    if isinstance(value, dict):
        if _TENSOR in value:
            shape, name, on_cpu = value[_TENSOR]
            dtype, place = getattr(torch, name), torch.device("cpu") if on_cpu else device
            found = warm.pop(0) if warm else None
            fits = found is not None and list(found.shape) == shape and found.dtype == dtype
            if found is None or not fits or found.device != place:
                found = torch.empty(shape, dtype=dtype, device=place)
            tensors.append(found)
            return found
        return {key: _insert(item, tensors, device, warm) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_insert(item, tensors, device, warm) for item in value)
    return value


def _pack(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpack(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)
