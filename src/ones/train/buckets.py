"""Gradient buckets: all-reduce of gradients over a process group, while backward runs.

Flat buffers, allocated once, hold the gradients in the order in which backward computes them. A
hook on each large parameter scales its gradient into the buffer and sets `p.grad` to a view of it;
small parameters are only counted and copied together when the bucket is full, as each call from a
hook costs microseconds. A full bucket is reduced while backward continues; the last is full when
backward ends, so its small parameters need no hooks. Buckets start in the same order on all
workers: gloo pairs them by order and would silently add different ones. Behind the gradients
follow, for each parameter, the number of workers that used it (without any it keeps no gradient,
because weight decay and Adam would change it) and the notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from ones.errors import UserError
from ones.train.process_group import GroupLostError, ProcessGroup, wait_all

_FIRST = 1 << 20  # bytes: the first bucket is small, so that its reduction starts early
_LARGE = 25 << 20
_SMALL = 64 << 10  # bytes: parameters up to here are copied together
_BLOCK = 1 << 16  # numbers: float32 sums over more lose digits

Preconditioner = Callable[[Parameter], Tensor]


class Notice(IntEnum):
    """Values that each worker sends with its gradients in every step; they are summed."""

    NOT_READY = 0  # for the next group; a sum of 0: all workers are ready
    CHECKPOINT = 1  # all workers are to save and leave
    END = 2  # the job is to end
    LEAVING = 3  # this worker leaves (SIGTERM): save, and continue without it
    LOSS = 4  # this worker's part of the step's mean loss
    SQUARE = 5  # squared norm of this worker's own gradient, in steps that measure it
    PLAN = 6  # for which this worker is ready, and its square: equal if their variance is 0
    PLAN_SQUARED = 7
    UNEQUAL = 8  # this joining worker received a state that differs: the step does not count


class _Bucket:
    """[large gradients | small gradients | number of users of each | notices, in the last one]"""

    def __init__(self, parameters: list[Parameter], *, last: bool, notices: bool) -> None:
        is_small = [p.numel() * p.element_size() <= _SMALL for p in parameters]
        large = [p for p, small in zip(parameters, is_small, strict=True) if not small]
        self.small = [p for p, small in zip(parameters, is_small, strict=True) if small]
        self.parameters = [*large, *self.small]
        self.large = len(large)
        self.hooked = self.large if last else len(parameters)  # parameters with a hook
        sizes = [p.numel() for p in self.parameters]
        end = sum(sizes)
        like, count = parameters[0], len(parameters)
        tail = count + (len(Notice) if notices else 0)
        self.flat = torch.empty(end + tail, dtype=like.dtype, device=like.device)
        self.flat.zero_()  # maps the memory: the first step is as fast as others
        self.views = []
        offset = 0
        for p, size in zip(self.parameters, sizes, strict=True):
            self.views.append(_view_like(self.flat[offset : offset + size], p))
            offset += size
        self.small_views = self.views[self.large :]
        self.blocks: list[Tensor] = list(torch.split(self.flat[:end], _BLOCK))
        self.small_gradients = self.flat[sum(sizes[: self.large]) : end]
        self.used = self.flat[end : end + count]
        self.tail = self.flat[end:]
        self.notices = self.flat[end + count :] if notices else None
        self.initial_tail = torch.ones(tail, dtype=like.dtype)
        self.missing = 0
        self.done = [False] * count  # by index: hashing a tensor costs a microsecond

    def start(self) -> None:
        self.missing = self.hooked
        self.done = [False] * len(self.done)
        self.tail.copy_(self.initial_tail)

    def squared_norm(self, preconditioner: Preconditioner | None) -> Tensor:
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        blocks = self.blocks
        if preconditioner is not None:
            pairs = zip(self.parameters, self.views, strict=True)
            blocks = [view / preconditioner(p) for p, view in pairs]
        norms = torch._foreach_norm(blocks, 2, wide)
        square: Tensor = torch.stack(norms).double().square().sum()
        return square


def _view_like(flat: Tensor, p: Parameter) -> Tensor:
    """A view with the strides of the parameter (such as channels_last) if its memory is dense."""
    dense = p.is_non_overlapping_and_dense() if hasattr(p, "is_non_overlapping_and_dense") else True
    if dense:
        return flat.as_strided(p.shape, p.stride(), flat.storage_offset())
    return flat.view(p.shape)


def _layout(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Parameters by bucket: reverse order of registration, one type per bucket, by last one."""
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


class Buckets:
    """Use: `arm`, backward, `finish`. Not armed, gradients just accumulate."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            raise UserError("model has no parameter that requires a gradient")
        *first, last = _layout(trained)
        exact = last[0].dtype in (torch.float32, torch.float64)  # enough for notices
        self.buckets = [_Bucket(ps, last=False, notices=False) for ps in first]
        self.buckets.append(_Bucket(last, last=True, notices=exact))
        tail = self.buckets[-1].initial_tail
        initial = tail[-len(Notice) :] if exact else torch.zeros(len(Notice))
        self._initial_notices: NDArray[np.floating[Any]] = initial.numpy()
        self._own_notices = None if exact else torch.zeros(len(Notice), device=trained[-1].device)
        self.preconditioner: Preconditioner | None = None
        self._handles: list[Any] = []
        for bucket in self.buckets:
            for index, p in enumerate(bucket.parameters[: bucket.hooked]):
                register: Any = p.register_post_accumulate_grad_hook
                self._handles.append(register(self._hook(bucket, index)))
        # on the CPU and of dimension 0: three times cheaper than a Python float
        self._weight = torch.ones((), dtype=torch.float64)
        self._weight_value = 1.0
        self._group: ProcessGroup | None = None
        self._works: list[Any] = []
        self._next = 0  # bucket to reduce
        self._has_unused = False  # a parameter had no gradient in this step
        self._measure = False
        self._problem = ""  # text: an exception would keep the connections open

    @property
    def notices(self) -> Tensor:
        found = self.buckets[-1].notices if self._own_notices is None else self._own_notices
        assert found is not None
        return found

    @property
    def armed(self) -> bool:
        return self._group is not None

    def arm(
        self,
        group: ProcessGroup,
        weight: float,
        notices: dict[Notice, float | Tensor],
        *,
        measure: bool,
    ) -> None:
        """Reduces the gradients of the next backward, the last one of its step.

        `weight`: this worker's part of the global batch; notices are not scaled.
        """
        self._group = group
        if weight != self._weight_value:
            self._weight_value = weight
            self._weight.fill_(weight)
        self._next, self._problem = 0, ""
        self._has_unused, self._measure = False, measure
        self._works.clear()
        initial = self._initial_notices
        initial.fill(0.0)
        on_device = []
        for notice, value in notices.items():
            if isinstance(value, Tensor):
                on_device.append((notice, value))
            else:
                initial[notice] = value
        for bucket in self.buckets:
            bucket.start()
        if self._own_notices is not None:
            self._own_notices.copy_(torch.from_numpy(initial))
        for notice, value in on_device:
            self.notices[notice] = value

    def finish(self) -> list[float]:
        """Waits for all reductions and sets the gradients; returns the sums of the notices."""
        group, self._group = self._group, None
        assert group is not None
        for bucket in self.buckets:
            if bucket.missing:
                for index in range(bucket.large):
                    if not bucket.done[index]:  # unused, or only in an earlier micro-batch
                        self._fill(bucket, index)
        self._reduce_full(group, everything=True)
        if self._own_notices is not None:
            self.reduce(self._own_notices, group)
        works, self._works = self._works, []
        if self._problem:
            group.close()  # so that reductions under way fail instead of waiting
        try:
            wait_all(works)
        except GroupLostError as problem:
            self._problem = self._problem or str(problem)
        works.clear()
        if self._problem:
            raise GroupLostError(self._problem)
        if self._has_unused:
            for bucket in self.buckets:
                used = bucket.used.tolist()
                for p, view, users in zip(bucket.parameters, bucket.views, used, strict=True):
                    p.grad = view if users > 0 else None
        sums: list[float] = self.notices.tolist()
        return sums

    def squared_norm(self) -> float:
        """Squared norm of the reduced gradient, after `finish`."""
        return sum(float(bucket.squared_norm(self.preconditioner)) for bucket in self.buckets)

    # while backward runs

    def _hook(self, bucket: _Bucket, index: int) -> Callable[[Tensor], None]:
        is_large = index < bucket.large

        def hook(_: Tensor) -> None:
            group = self._group
            if group is None:
                return
            if bucket.done[index]:
                raise UserError(
                    "a parameter got two gradients in one backward (re-entrant checkpointing?):"
                    " use torch.utils.checkpoint with use_reentrant=False"
                )
            bucket.done[index] = True
            if is_large:
                self._fill(bucket, index)
            bucket.missing -= 1
            if bucket.missing == 0:
                self._reduce_full(group, everything=False)

        return hook

    def _fill(self, bucket: _Bucket, index: int) -> None:
        """Copies one gradient, scaled, while it is still in the cache."""
        p, view = bucket.parameters[index], bucket.views[index]
        gradient = p.grad
        if gradient is None:
            self._has_unused = True
            view.zero_()
            bucket.used[index] = 0.0
        elif gradient is view:
            view.mul_(self._weight)
        else:
            _refuse_sparse(gradient)
            torch.mul(gradient, self._weight, out=view)
            p.grad = view

    def _fill_small(self, bucket: _Bucket) -> None:
        """Copies all small gradients in two calls."""
        gradients = [p.grad for p in bucket.small if p.grad is not None]
        if len(gradients) < len(bucket.small):
            for index in range(bucket.large, len(bucket.parameters)):
                self._fill(bucket, index)
            return
        for gradient in gradients:
            _refuse_sparse(gradient)
        torch._foreach_copy_(bucket.small_views, gradients)
        bucket.small_gradients.mul_(self._weight)
        for p, view in zip(bucket.small, bucket.small_views, strict=True):
            p.grad = view

    def _reduce_full(self, group: ProcessGroup, *, everything: bool) -> None:
        while self._next < len(self.buckets):
            bucket = self.buckets[self._next]
            is_last = self._next == len(self.buckets) - 1
            # only `finish` knows that parameters without a hook are complete
            if not everything and (bucket.missing or is_last):
                return
            self._next += 1
            if bucket.small:
                self._fill_small(bucket)
            if self._measure:
                self._add_square(bucket)
            self.reduce(bucket.flat, group)

    def _add_square(self, bucket: _Bucket) -> None:
        """Adds the squared norm of this worker's own gradient to its notices, before the sum."""
        if self._weight_value > 0:
            self.notices[Notice.SQUARE] += (
                bucket.squared_norm(self.preconditioner) / self._weight_value**2
            )

    def reduce(self, tensor: Tensor, group: ProcessGroup | None = None) -> None:
        """Starts a sum over all workers, complete after `finish`."""
        group = group or self._group
        if self._problem or group is None:
            return
        try:
            self._works.append(group.all_reduce(tensor))
        except RuntimeError as problem:  # a member is lost; `finish` raises, backward must not
            self._problem = str(problem)


def _refuse_sparse(gradient: Tensor) -> None:
    if gradient.is_sparse:
        raise UserError("sparse gradients are not supported: make the embedding with sparse=False")
