"""One gradient bucket, and the division of a model's parameters into buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from ones.train.gradient_noise import Preconditioner, first_values

_FIRST = 1 << 20  # bytes: the first bucket is small, so that its reduction starts early
_LARGE = 25 << 20
_SMALL = 64 << 10  # bytes: parameters up to here are copied together


class Bucket:
    """A flat buffer: [large gradients | small gradients | users of each parameter | notices].

    Users: the number of workers that used a parameter in this step. Only the last bucket has
    notices; `notices` is their number.
    """

    def __init__(
        self,
        parameters: list[Parameter],
        sampled: Mapping[Parameter, int],
        *,
        is_last: bool = False,
        notices: int = 0,
    ) -> None:
        is_small = [p.numel() * p.element_size() <= _SMALL for p in parameters]
        large = [p for p, small in zip(parameters, is_small, strict=True) if not small]
        self.small = [p for p, small in zip(parameters, is_small, strict=True) if small]
        self.parameters = [*large, *self.small]
        self.large = len(large)
        self.hooked = self.large if is_last else len(parameters)  # parameters with a hook
        sizes = [p.numel() for p in self.parameters]
        end = sum(sizes)
        like, count = parameters[0], len(parameters)
        tail = count + notices
        self.flat = torch.empty(end + tail, dtype=like.dtype, device=like.device)
        self.flat.zero_()  # maps the memory: the first step is as fast as others
        self.views = []
        offset = 0
        for p, size in zip(self.parameters, sizes, strict=True):
            self.views.append(_view_like(self.flat[offset : offset + size], p))
            offset += size
        self.small_views = self.views[self.large :]
        self._sampled = [sampled[p] for p in self.parameters]  # values that are measured for noise
        self._measures_all = all(
            n == p.numel() for p, n in zip(self.parameters, self._sampled, strict=True)
        )
        self._samples = [  # a reshape of other memory formats would be a copy
            first_values(view, n) if view.is_contiguous() else None
            for view, n in zip(self.views, self._sampled, strict=True)
        ]
        self.gradients = self.flat[:end]
        self.small_gradients = self.flat[sum(sizes[: self.large]) : end]
        self.used = self.flat[end : end + count]
        self.tail = self.flat[end:]
        self.notices = self.flat[end + count :] if notices else None
        self.initial_tail = torch.ones(tail, dtype=like.dtype)
        if not like.is_cpu:  # the host then need not wait for the copy
            self.initial_tail = self.initial_tail.pin_memory()
        self.missing = 0
        self.done = [False] * count  # by index: hashing a tensor costs a microsecond

    def start(self) -> None:
        self.missing = self.hooked
        self.done = [False] * len(self.done)
        if self.notices is None:
            self.tail.fill_(1.0)
        else:  # overwritten for the next step only after the host has read the sums of this one
            self.tail.copy_(self.initial_tail, non_blocking=True)

    def squared_norm(self, preconditioner: Preconditioner | None) -> Tensor:
        """Of the measured values of each parameter."""
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        if preconditioner is None and self._measures_all:
            norm: Tensor = torch.linalg.vector_norm(self.gradients, dtype=wide)
            return norm.double().square()
        samples = [
            first_values(view, n) if sample is None else sample
            for view, n, sample in zip(self.views, self._sampled, self._samples, strict=True)
        ]
        if preconditioner is not None:
            of = zip(samples, self.parameters, self._sampled, strict=True)
            samples = [sample / preconditioner(p, n) for sample, p, n in of]
        norms = torch._foreach_norm(samples, 2, wide)
        square: Tensor = torch.stack(norms).double().square().sum()
        return square


def _view_like(flat: Tensor, p: Parameter) -> Tensor:
    """A view with the strides of the parameter (such as channels_last) if its memory is dense."""
    dense = p.is_non_overlapping_and_dense() if hasattr(p, "is_non_overlapping_and_dense") else True
    if dense:
        return flat.as_strided(p.shape, p.stride(), flat.storage_offset())
    return flat.view(p.shape)


def divide_parameters(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """The parameters of each bucket, in reverse order of registration, one type per bucket.

    Buckets are in the order in which backward fills them.
    """
    open_: dict[tuple[torch.dtype, torch.device], tuple[int, list[tuple[int, Parameter]]]] = {}
    done: list[list[tuple[int, Parameter]]] = []
    for position, p in enumerate(reversed(parameters)):
        key = (p.dtype, p.device)
        size, bucket = open_.get(key, (0, []))
        bucket.append((position, p))
        size += p.numel() * p.element_size()
        if size >= (_LARGE if done else _FIRST):
            done.append(bucket)
            open_.pop(key, None)
        else:
            open_[key] = (size, bucket)
    done += [bucket for _, bucket in open_.values()]
    done.sort(key=lambda bucket: bucket[-1][0])
    return [[p for _, p in bucket] for bucket in done]
