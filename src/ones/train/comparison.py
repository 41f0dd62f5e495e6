"""Checks that all workers train alike: learning rate, step, order of samples and parameters.

Each worker sends two small numbers with the notices of every step: a fingerprint of its learning
rates, position and a part of its parameters (each step another part), and the square of it. The
sums show whether all fingerprints are equal: then their variance is zero. A fingerprint is small,
so that the sums are exact in float32; a difference that lasts is found within a few steps. All
parameters are compared at the end of an epoch.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ones.errors import UserError
from ones.train.process_group import GroupLostError, ProcessGroup
from ones.train.replica import Replica

_MODULUS = 61  # prime: all bits of a sum count
_PART = 4096  # numbers of a parameter in a fingerprint: a few microseconds


class WorkerComparison:
    def __init__(self, replica: Replica) -> None:
        self._progress, self._optimizer = replica.progress, replica.optimizer
        # not `detach()`: a script may give a parameter other memory (`p.data = ...`)
        self._parameters = {name: p for name, p in replica.model.named_parameters() if p.numel()}
        self._in_order = list(self._parameters.values())
        #: by index, of parameters on the CPU: address and bytes
        self._bytes: dict[int, tuple[int, NDArray[Any]]] = {}
        self.order = 0  # a mark of the order of samples, where the script's sampler draws it

    def fingerprint(self) -> float | Tensor:
        """A number below 61 that is equal in workers that train alike."""
        progress, rates = self._progress, self._rates()
        where = progress.step, progress.epoch, progress.offset, self.order
        number = zlib.crc32(struct.pack(f"<qqqq{len(rates)}d", *where, *rates))
        turn, index = divmod(progress.step, len(self._in_order))
        p = self._in_order[index]
        if p.is_cpu:
            return float((number + self._part_on_host(index, turn)) % _MODULUS)
        return ((_part(p, turn) + number) % _MODULUS).float()  # without a wait of the host

    def _part_on_host(self, index: int, turn: int) -> int:
        """The sum of the bits of a part of a parameter; NumPy adds small parts faster than torch.

        The array shares the memory of the parameter.
        """
        p = self._in_order[index]
        address, found = self._bytes.get(index, (0, None))
        if found is None or address != p.data_ptr():  # the script has moved the parameter
            flat = _flat(p)
            found = flat.view(torch.uint8).numpy()
            if flat.data_ptr() == p.data_ptr():  # else it is a copy
                self._bytes[index] = p.data_ptr(), found
        size = _PART * p.element_size()
        start = turn % -(-found.size // size) * size
        part = found[start : start + size]
        words = part.size // 8 * 8
        whole = np.add.reduce(part[:words].view(np.int64))
        return int(whole) + (int(np.add.reduce(part[words:])) if words < part.size else 0)

    def compare_parameters(self, group: ProcessGroup) -> None:
        """Compares all parameters; raises UserError in all workers if they differ."""
        digest = 0
        for p in self._in_order:
            digest = (digest * 31 + int(_sum(_flat(p)))) % (1 << 61)
        if not group.all_equal(digest):
            self.fail(group)

    def fail(self, group: ProcessGroup) -> None:
        """Raises UserError with the cause. All workers call it."""
        step = self._progress.step
        try:
            cause = self._cause(group)
        except GroupLostError:  # another worker has ended with the same error
            cause = ""
        raise UserError(
            f"the workers of this job differ at step {step}, so the training was stopped"
            + (f": {cause}" if cause else "")
        )

    def _cause(self, group: ProcessGroup) -> str:
        for rate in self._rates():
            (bits,) = struct.unpack("<q", struct.pack("<d", rate))
            found = group.all_gather(bits)
            if len(set(found)) > 1:
                rates = [struct.unpack("<d", struct.pack("<q", n))[0] for n in found]
                return (
                    f"the learning rate is {' and '.join(f'{r:g}' for r in sorted(set(rates)))}."
                    " A schedule or counter of the script's own starts anew in a joining worker:"
                    " pass the schedule as scheduler= to ones.join, or use job.steps, job.samples"
                    " or job.state instead of the counter"
                )
        if len(set(group.all_gather(self.order))) > 1:
            return "the sampler draws another order of samples in each worker: seed it alike"
        for name, p in self._parameters.items():
            if len(set(group.all_gather(int(_sum(_flat(p)))))) > 1:
                return (
                    f"parameter {name} differs. The script changes it by what only one worker has"
                    " (random numbers, its part of the data, a counter of its own)"
                )
        return ""

    def _rates(self) -> list[float]:
        rates = [group.get("lr") for group in self._optimizer.param_groups]
        return [float(rate) for rate in rates if isinstance(rate, float | int)]


def are_equal(size: int, total: float, squares: float) -> bool:
    """Whether `size` fingerprints are equal, by their sum and the sum of their squares."""
    return size * squares == total * total


def _part(p: Tensor, turn: int) -> Tensor:
    """The sum of the bits of a part of a parameter; each turn takes another part."""
    flat = _flat(p)
    parts = -(-flat.numel() // _PART)
    start = turn % parts * _PART
    return _sum(flat[start : start + _PART])


def _flat(p: Tensor) -> Tensor:
    """All numbers of a parameter, without a copy where its memory is dense."""
    p = p.detach()
    if p.is_contiguous():
        return p.reshape(-1)
    if torch.ops.aten.is_non_overlapping_and_dense(p):
        return p.as_strided((p.numel(),), (1,), p.storage_offset())
    return p.reshape(-1)


def _sum(flat: Tensor) -> Tensor:
    whole, size = flat.numel(), flat.element_size()
    if flat.storage_offset() * size % 8 == 0 and whole * size % 8 == 0:
        return flat.view(torch.int64).sum()  # twice as fast
    return flat.view(torch.uint8).sum()
