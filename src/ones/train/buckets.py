"""Gradient buckets: all-reduce of gradients over a process group, while backward runs.

Flat buffers, allocated once, hold the gradients in the order in which backward computes them. A
hook on each large parameter scales its gradient into the buffer and sets `p.grad` to a view of it;
small parameters are only counted and copied together when the bucket is full, as each call from a
hook costs microseconds. A full bucket is reduced while backward continues; the last is full when
backward ends, so its small parameters need no hooks. Buckets start in the same order on all
workers: gloo pairs them by order and would silently add different ones.

With the gradients, a bucket sums the number of workers that used each parameter. A parameter that
no worker used keeps no gradient: with a gradient of zero, weight decay and Adam would change it.
The last bucket also sums the notices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from ones.errors import UserError
from ones.train.bucket import Bucket, divide_parameters
from ones.train.gradient_noise import Preconditioner, sample_sizes
from ones.train.process_group import GroupLostError, ProcessGroup, wait_all


class Notice(IntEnum):
    """Values that each worker sends with its gradients in every step; they are summed."""

    NOT_READY = 0  # this worker is not ready for the next group
    CHECKPOINT = 1  # all workers are to save and leave
    END = 2  # the job is to end
    LEAVING = 3  # this worker leaves (SIGTERM): save, and continue without it
    LOSS = 4  # this worker's part of the step's mean loss
    SQUARE = 5  # squared norm of this worker's own gradient, in steps that measure it
    PLAN = 6  # plan that this worker is ready for
    PLAN_SQUARED = 7  # with PLAN it shows whether all plans are equal: their variance is 0
    UNEQUAL = 8  # this joining worker received a state that differs: the step does not count
    BREAK = 9  # this worker's script has left the loop over batches: so do the others
    STOP = 10  # this worker's script has ended the training: so do the others
    SECONDS = 11  # of training, from the main worker
    FINGERPRINT = 12  # of this worker's learning rate, position and parameters
    FINGERPRINT_SQUARED = 13  # with FINGERPRINT it shows whether all workers train alike
    WEIGHT = 14  # samples, or valid targets, of this worker's losses


class Buckets:
    """Call `arm`, backward, `finish`. Without `arm`, backward accumulates gradients locally.

    A worker that trains alone needs no buckets: they are made at first use, and `release` frees
    them.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        trained = [p for p in parameters if p.requires_grad]
        if not trained:
            raise UserError("model has no parameter that requires a gradient")
        self._trained = trained
        self._buckets: list[Bucket] = []
        self._own_notices: Tensor | None = None  # of a model in a type too short for notices
        self._own_staging = torch.zeros(len(Notice))
        self._initial_notices: NDArray[np.floating[Any]] = self._own_staging.numpy()
        self.preconditioner: Preconditioner | None = None
        self._handles: list[Any] = []
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
    def buckets(self) -> list[Bucket]:
        if not self._buckets:
            self._make_buckets()
        return self._buckets

    def _make_buckets(self) -> None:
        trained = self._trained
        *first, last = divide_parameters(trained)
        exact = last[0].dtype in (torch.float32, torch.float64)  # enough for notices
        sampled = dict(zip(trained, sample_sizes(trained), strict=True))
        self._buckets = [Bucket(ps, sampled) for ps in first]
        notices = len(Notice) if exact else 0
        self._buckets.append(Bucket(last, sampled, is_last=True, notices=notices))
        device = trained[-1].device
        self._own_notices = None if exact else torch.zeros(len(Notice), device=device)
        staging = torch.zeros(len(Notice))
        self._own_staging = staging if device.type == "cpu" else staging.pin_memory()
        tail = self._buckets[-1].initial_tail
        self._initial_notices = (tail[-len(Notice) :] if exact else self._own_staging).numpy()
        for bucket in self._buckets:
            for index, p in enumerate(bucket.parameters[: bucket.hooked]):
                register: Any = p.register_post_accumulate_grad_hook
                self._handles.append(register(self._hook(bucket, index)))

    def release(self) -> None:
        """Frees the buckets: this worker trains alone."""
        if self.armed:
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._buckets, self._own_notices = [], None

    def cancel(self) -> None:
        """Gives up the reductions under way: this worker's gradients are not complete."""
        group, self._group = self._group, None
        works, self._works = self._works, []
        if group is not None:
            group.close(is_lost=True)
            with contextlib.suppress(GroupLostError):
                wait_all(works)

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
        buckets = self.buckets
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
        for bucket in buckets:
            bucket.start()
        if self._own_notices is not None:
            self._own_notices.copy_(self._own_staging, non_blocking=True)
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
            group.close(is_lost=True)  # so that reductions under way fail instead of waiting
        try:
            wait_all(works)
        except GroupLostError as problem:
            self._problem = self._problem or str(problem)
        works.clear()
        if self._problem:
            raise GroupLostError(self._problem)
        sums: list[float] = self.notices.tolist()  # the step's one wait of the host
        group.check()  # aborted reductions end without an error
        if self._has_unused:
            device = self._trained[0].device
            used = torch.cat([b.used.to(device, torch.float32) for b in self.buckets]).tolist()
            parts = [part for b in self.buckets for part in zip(b.parameters, b.views, strict=True)]
            for (p, view), users in zip(parts, used, strict=True):
                p.grad = view if users > 0 else None
        return sums

    def squared_norm(self) -> float:
        """Squared norm of the reduced gradient, after `finish`."""
        squares = [bucket.squared_norm(self.preconditioner) for bucket in self.buckets]
        return float(torch.stack([square.to(squares[0].device) for square in squares]).sum())

    # while backward runs

    def _hook(self, bucket: Bucket, index: int) -> Callable[[Tensor], None]:
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

    def _fill(self, bucket: Bucket, index: int) -> None:
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

    def _fill_small(self, bucket: Bucket) -> None:
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

    def _add_square(self, bucket: Bucket) -> None:
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
