"""Tensors and plain values as messages between workers.

Large tensors are received in place. Small ones are concatenated, because each message has a fixed
cost. Values that are not tensors are sent as a header, which is read with `weights_only`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ones.train.process_group import ProcessGroup, wait_all

_SMALL = 64 << 10  # bytes: below, two copies cost less than a message (0.9 ms per MB, 40 us)
_TENSOR = "__tensor__"


def _is_large(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= _SMALL


def _small_by_type(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Small tensors, grouped by type and device; sender and receiver get the same groups."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not _is_large(tensor) and tensor.numel():
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())


def as_bytes(tensor: Tensor) -> Tensor:
    """A view as bytes: gloo supports neither booleans nor 8-bit floats."""
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def pack_tensors(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The messages that `receive_tensors` expects, in order."""
    large = [t if t.is_contiguous() else t.contiguous() for t in tensors if _is_large(t)]
    small = [torch.cat([t.reshape(-1) for t in group]) for group in _small_by_type(tensors)]
    return [as_bytes(t.reshape(-1)) for t in (*large, *small)]


def receive_tensors(tensors: Sequence[Tensor], receive: Callable[[Tensor], Any]) -> None:
    """Fills `tensors` with what was sent as `pack_tensors` of tensors of the same shapes."""
    works, copies = [], []
    for tensor in tensors:
        if not _is_large(tensor):
            continue
        if tensor.is_contiguous():
            works.append(receive(as_bytes(tensor.view(-1))))
        else:
            received = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            works.append(receive(as_bytes(received.view(-1))))
            copies.append((tensor, received))
    for group in _small_by_type(tensors):
        size = sum(t.numel() for t in group)
        flat = torch.empty(size, dtype=group[0].dtype, device=group[0].device)
        works.append(receive(as_bytes(flat)))
        parts = torch.split(flat, [t.numel() for t in group])
        copies += [(t, p.view(t.shape)) for t, p in zip(group, parts, strict=True)]
    wait_all(works)
    with torch.no_grad():
        for tensor, received in copies:
            tensor.copy_(received)


def extract_tensors(value: Any, tensors: list[Tensor]) -> Any:
    """The value with a description in place of each tensor; appends the tensors to the list."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        on_cpu = value.device.type == "cpu"
        return {_TENSOR: [list(value.shape), str(value.dtype).removeprefix("torch."), on_cpu]}
    if isinstance(value, dict):
        return {key: extract_tensors(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(extract_tensors(item, tensors) for item in value)
    return value


def insert_tensors(
    value: Any, tensors: list[Tensor], device: torch.device, allocated: list[Tensor]
) -> Any:
    """The inverse of `extract_tensors`: descriptions become empty tensors, appended to the list.

    Takes them from `allocated`, in order, where shape and type match.
    """
    if isinstance(value, dict):
        if _TENSOR in value:
            shape, name, on_cpu = value[_TENSOR]
            dtype, target = getattr(torch, name), torch.device("cpu") if on_cpu else device
            tensor = allocated.pop(0) if allocated else None
            fits = tensor is not None and list(tensor.shape) == shape and tensor.dtype == dtype
            if tensor is None or not fits or tensor.device != target:
                tensor = torch.empty(shape, dtype=dtype, device=target)
            tensors.append(tensor)
            return tensor
        return {k: insert_tensors(item, tensors, device, allocated) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(insert_tensors(item, tensors, device, allocated) for item in value)
    return value


def read_numbers(scalars: Sequence[Tensor]) -> list[int]:
    """The values of tensors of one number and type; the host waits once for each device."""
    places: dict[torch.device, list[int]] = {}
    for place, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(place)
    numbers = [0] * len(scalars)
    for found in places.values():
        values = torch.stack([scalars[place] for place in found]).tolist()
        for place, value in zip(found, values, strict=True):
            numbers[place] = value
    return numbers


def copy_to_cpu(value: Any) -> Any:
    """The value with all tensors copied to host memory, so that training can go on meanwhile."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copy_to_cpu(item) for item in value)
    return value


def send_value(
    group: ProcessGroup, value: Any, receivers: Sequence[int], tag: int = 0
) -> list[tuple[Any, Tensor]]:
    """Starts to send a plain value. Returns (work, buffer) pairs: keep the buffers until sent."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    packed = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = torch.tensor([packed.numel()], dtype=torch.int64)
    return [(group.send(part, rank, tag), part) for part in (length, packed) for rank in receivers]


def receive_value(group: ProcessGroup, source: int, tag: int = 0) -> Any:
    length = torch.zeros(1, dtype=torch.int64)
    wait_all([group.receive(length, source, tag)])
    packed = torch.empty(int(length), dtype=torch.uint8)
    wait_all([group.receive(packed, source, tag)])
    return torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)
