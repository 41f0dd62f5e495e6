"""Gradients of many workers become one: own buckets over a raw group.

Flat buffers, made once, hold the gradients in the order in which backward gives them. A hook
on each large parameter scales its fresh gradient into the buffer and hands the buffer's view
back as `p.grad`; small ones are only counted and follow together when the bucket is full, as
each call from a hook costs microseconds. A full bucket goes on its way while backward goes on;
the last is full when backward ends, so its small parameters need no hooks. Buckets start in one
and the same order everywhere: gloo pairs them by order and would silently add different ones.
Behind the gradients travel, for each parameter, how many workers used it (nobody: it keeps no
gradient, as weight decay and Adam would move it) and the notices.
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
from ones.train.group import Group, GroupLostError, wait_all

_FIRST = 1 << 20  # bytes: the first bucket is small so that the first reduction starts early
_LARGE = 25 << 20
_SMALL = 64 << 10  # bytes: parameters up to here are copied together
_BLOCK = 1 << 16  # numbers: a norm over more loses digits, as float32 adds them up


Unit = Callable[[Parameter], Tensor]


class Notice(IntEnum):
    """What every worker says in every step, added up over all of them."""

    NOT_READY = 0  # for the next configuration; 0 in the sum: everybody is
    CHECKPOINT = 1  # I was told that all of us save and leave
    END = 2  # I was told that the job is over
    LEAVING = 3  # I must go (SIGTERM): save, and go on without me
    LOSS = 4  # my part of the step's mean loss
    SQUARE = 5  # squared norm of my own gradient, in steps that measure it
    PLAN = 6  # that I am ready for, and its square: equal on all if they do not spread
    PLAN_SQUARED = 7
    UNEQUAL = 8  # I was fed and am not equal: this step must not count


class _Bucket:
    """[large gradients | small gradients | used by how many, for each | notices, in the last]"""

    def __init__(self, parameters: list[Parameter], *, last: bool, notices: bool) -> None:
        is_small = [p.numel() * p.element_size() <= _SMALL for p in parameters]
        large = [p for p, small in zip(parameters, is_small, strict=True) if not small]
        self.small = [p for p, small in zip(parameters, is_small, strict=True) if small]
        self.parameters = [*large, *self.small]
        self.large = len(large)
        self.hooked = self.large if last else len(parameters)  # the first so many
        sizes = [p.numel() for p in self.parameters]
        end = sum(sizes)
        like, count = parameters[0], len(parameters)
        tail = count + (len(Notice) if notices else 0)
        self.flat = torch.empty(end + tail, dtype=like.dtype, device=like.device)
        self.flat.zero_()  # touches it: the first step is no slower than others
        self.views = []
        at = 0
        for p, size in zip(self.parameters, sizes, strict=True):
            self.views.append(_view_like(self.flat[at : at + size], p))
            at += size
        self.small_views = self.views[self.large :]
        self.blocks: list[Tensor] = list(torch.split(self.flat[:end], _BLOCK))
        self.small_gradients = self.flat[sum(sizes[: self.large]) : end]
        self.used = self.flat[end : end + count]
        self.tail = self.flat[end:]
        self.notices = self.flat[end + count :] if notices else None
        self.fresh = torch.ones(tail, dtype=like.dtype)  # what the tail is before each step
        self.missing = 0
        self.done = [False] * count  # by place: a tensor's hash costs a microsecond

    def start(self) -> None:
        self.missing = self.hooked
        self.done = [False] * len(self.done)
        self.tail.copy_(self.fresh)

    def square(self, unit: Unit | None) -> Tensor:
        """Squared norm of what is in it."""
        wide = torch.promote_types(self.flat.dtype, torch.float32)
        blocks = self.blocks
        if unit is not None:
            blocks = [v / unit(p) for p, v in zip(self.parameters, self.views, strict=True)]
        norms = torch._foreach_norm(blocks, 2, wide)
        square: Tensor = torch.stack(norms).double().square().sum()
        return square


def _view_like(flat: Tensor, p: Parameter) -> Tensor:
    """Strided as the parameter is (channels_last, too) where it fills its memory."""
    dense = p.is_non_overlapping_and_dense() if hasattr(p, "is_non_overlapping_and_dense") else True
    if dense:
        return flat.as_strided(p.shape, p.stride(), flat.storage_offset())
    return flat.view(p.shape)


def _layout(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """Reverse order of registration, by kind of number, sorted by each one's last parameter."""
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
        layout = _layout(trained)
        exact = layout[-1][0].dtype in (torch.float32, torch.float64)
        *first, last = layout
        self._buckets = [_Bucket(ps, last=False, notices=False) for ps in first]
        self._buckets.append(_Bucket(last, last=True, notices=exact))
        # where they are written before they travel
        fresh = self._buckets[-1].fresh[-len(Notice) :] if exact else torch.zeros(len(Notice))
        self._fresh_notices: NDArray[np.floating[Any]] = fresh.numpy()
        self._own_notices = None if exact else torch.zeros(len(Notice), device=trained[-1].device)
        self.unit: Unit | None = None  # in which gradients are measured
        self._handles: list[Any] = []
        for bucket in self._buckets:
            for index, p in enumerate(bucket.parameters[: bucket.hooked]):
                register: Any = p.register_post_accumulate_grad_hook
                self._handles.append(register(self._hook(bucket, index)))
        # a number on the CPU, so that it is an argument of the kernel, and of dimension 0: three
        # times cheaper than a Python float
        self._weight = torch.ones((), dtype=torch.float64)
        self._weighs = 1.0
        self._group: Group | None = None
        self._works: list[Any] = []
        self._next = 0  # bucket to start
        self._holes = False  # some parameter had no gradient in this step
        self._measure = False
        self._problem = ""  # words only: an exception would keep the connections open

    @property
    def notices(self) -> Tensor:
        found = self._buckets[-1].notices if self._own_notices is None else self._own_notices
        assert found is not None
        return found

    @property
    def each(self) -> Sequence[_Bucket]:
        """The buckets, for who sends what is in them to newcomers."""
        return self._buckets

    @property
    def armed(self) -> bool:
        return self._group is not None

    def arm(
        self, group: Group, weight: float, notices: dict[Notice, float | Tensor], *, measure: bool
    ) -> None:
        """The next backward is the last one of its step: reduce what it gives.

        `weight` is this worker's part of the global batch; notices are never scaled.
        """
        self._group = group
        if weight != self._weighs:
            self._weighs = weight
            self._weight.fill_(weight)
        self._next, self._problem = 0, ""
        self._holes, self._measure = False, measure
        self._works.clear()
        fresh = self._fresh_notices
        fresh.fill(0.0)
        on_device = []
        for notice, value in notices.items():
            if isinstance(value, Tensor):
                on_device.append((notice, value))
            else:
                fresh[notice] = value
        for bucket in self._buckets:
            bucket.start()
        if self._own_notices is not None:
            self._own_notices.copy_(torch.from_numpy(fresh))
        for notice, value in on_device:
            self.notices[notice] = value

    def add_up(self, tensor: Tensor) -> None:
        """One more small sum, started at once; it is complete after `finish`."""
        self._start(tensor)

    def finish(self) -> list[float]:
        """Waits for everything, gives gradients to the parameters, returns the notices' sums."""
        group, self._group = self._group, None
        assert group is not None
        for bucket in self._buckets:
            if bucket.missing:
                for index in range(bucket.large):
                    if not bucket.done[index]:  # unused, or only in an earlier micro-batch
                        self._fill(bucket, index)
        self._next_buckets(group, everything=True)
        if self._own_notices is not None:
            self._start(self._own_notices, group)
        works, self._works = self._works, []
        if self._problem:
            group.close()  # so that what is on its way fails instead of waiting
        try:
            wait_all(works)
        except GroupLostError as problem:
            self._problem = self._problem or str(problem)
        works.clear()
        if self._problem:
            raise GroupLostError(self._problem)
        if self._holes:
            for bucket in self._buckets:
                used = bucket.used.tolist()
                for p, view, users in zip(bucket.parameters, bucket.views, used, strict=True):
                    p.grad = view if users > 0 else None
        sums: list[float] = self.notices.tolist()
        return sums

    def forget(self) -> None:
        """After a backward that raised: wait for what it had started into these buffers."""
        group, self._group = self._group, None
        works, self._works = self._works, []
        if group is not None:
            group.close()
        for work in works:
            try:
                work.wait()
            except RuntimeError:
                continue

    def square_of_gradients(self) -> float:
        """Squared norm of the reduced gradient, after `finish` and before anybody changes it."""
        return sum(float(bucket.square(self.unit)) for bucket in self._buckets)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

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
                self._next_buckets(group, everything=False)

        return hook

    def _fill(self, bucket: _Bucket, index: int) -> None:
        """One gradient, scaled; in one pass while it is still in the cache."""
        p, view = bucket.parameters[index], bucket.views[index]
        gradient = p.grad
        if gradient is None:
            self._holes = True
            view.zero_()
            bucket.used[index] = 0.0
        elif gradient is view:
            view.mul_(self._weight)
        else:
            _refuse_sparse(gradient)
            torch.mul(gradient, self._weight, out=view)
            p.grad = view

    def _fill_small(self, bucket: _Bucket) -> None:
        """All the small ones: two calls, however many."""
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

    def _next_buckets(self, group: Group, *, everything: bool) -> None:
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            is_last = self._next == len(self._buckets) - 1
            # only `finish` knows that nothing more comes for what is not hooked
            if not everything and (bucket.missing or is_last):
                return
            self._next += 1
            if bucket.small:
                self._fill_small(bucket)
            if self._measure:
                self._note_square(bucket)
            self._start(bucket.flat, group)

    def _note_square(self, bucket: _Bucket) -> None:
        """Of this worker's own mean gradient, before it is added to those of the others."""
        if self._weighs > 0:
            self.notices[Notice.SQUARE] += bucket.square(self.unit) / self._weighs**2

    def _start(self, tensor: Tensor, group: Group | None = None) -> None:
        group = group or self._group
        if self._problem or group is None:
            return
        try:
            self._works.append(group.sum(tensor))
        except RuntimeError as problem:  # the member next to us is gone; backward runs on unharmed
            self._problem = str(problem)


def _refuse_sparse(gradient: Tensor) -> None:
    if gradient.is_sparse:
        raise UserError("sparse gradients are not supported: make the embedding with sparse=False")
