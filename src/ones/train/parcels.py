"""Tensors and plain values as messages between workers.

Large tensors are received where they live; small ones travel together, as each message has
its price. What is no tensor goes as a header that is read with `weights_only`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ones.train.group import Group, wait_all

_SMALL = 64 << 10  # bytes: below, two copies cost less than a message (0.9 ms per MB, 40 us)
_TENSOR = "__tensor__"


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= _SMALL


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Small tensors, those of one type together; the same grouping on both sides."""
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not _is_large(tensor) and tensor.numel():
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())


def as_bytes(tensor: Tensor) -> Tensor:
    """gloo knows no booleans and no 8-bit floats: bytes suit everything."""
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def parcels(tensors: Sequence[Tensor]) -> list[Tensor]:
    large = [t if t.is_contiguous() else t.contiguous() for t in tensors if _is_large(t)]
    small = [torch.cat([t.reshape(-1) for t in kind]) for kind in _by_kind(tensors)]
    return [as_bytes(t.reshape(-1)) for t in (*large, *small)]


def receive_into(tensors: Sequence[Tensor], receive: Callable[[Tensor], Any]) -> None:
    works, later = [], []
    for tensor in tensors:
        if not _is_large(tensor):
            continue
        if tensor.is_contiguous():
            works.append(receive(as_bytes(tensor.view(-1))))
        else:
            landing = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            works.append(receive(as_bytes(landing.view(-1))))
            later.append((tensor, landing))
    for kind in _by_kind(tensors):
        size = sum(t.numel() for t in kind)
        flat = torch.empty(size, dtype=kind[0].dtype, device=kind[0].device)
        works.append(receive(as_bytes(flat)))
        parts = torch.split(flat, [t.numel() for t in kind])
        later += [(t, p.view(t.shape)) for t, p in zip(kind, parts, strict=True)]
    wait_all(works)
    with torch.no_grad():
        for tensor, landing in later:
            tensor.copy_(landing)


def extract(value: Any, tensors: list[Tensor]) -> Any:
    """The same value with each tensor replaced by a description; the tensors go to the list."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        on_cpu = value.device.type == "cpu"
        return {_TENSOR: [list(value.shape), str(value.dtype).removeprefix("torch."), on_cpu]}
    if isinstance(value, dict):
        return {key: extract(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(extract(item, tensors) for item in value)
    return value


def insert(value: Any, tensors: list[Tensor], device: torch.device, warm: list[Tensor]) -> Any:
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
        return {key: insert(item, tensors, device, warm) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(insert(item, tensors, device, warm) for item in value)
    return value


def pack(value: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(packed: Tensor) -> Any:
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)


def send_words(group: Group, value: Any, to: Sequence[int], tag: int) -> list[tuple[Any, Tensor]]:
    """Starts to send a plain value; what is returned must be kept until it has arrived."""
    packed = pack(value)
    length = torch.tensor([packed.numel()], dtype=torch.int64)
    return [(group.send(part, rank, tag), part) for part in (length, packed) for rank in to]


def receive_words(group: Group, source: int, tag: int) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    wait_all([group.receive(length, source, tag)])
    packed = torch.empty(int(length), dtype=torch.uint8)
    wait_all([group.receive(packed, source, tag)])
    return unpack(packed)
