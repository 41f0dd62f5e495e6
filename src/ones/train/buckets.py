"""Gradients of many workers become one: own buckets over a raw group.

Flat buffers, made once, hold the gradients in the order in which backward gives them.
A hook on each parameter scales its fresh gradient into the buffer and hands the buffer's
view back as `p.grad`; a full bucket goes on its way while backward goes on. Buckets start
in one and the same order everywhere: gloo pairs them by order and would silently add
different ones. Behind the gradients travel, for each parameter, how many workers used it
(nobody: it keeps no gradient, as weight decay and Adam would move it) and the notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ones.errors import UserError
from ones.train.group import Group, GroupLostError, wait_all

_FIRST = 1 << 20  # bytes: the first bucket is small so that the first reduction starts early
_LARGE = 25 << 20


class Notice(IntEnum):
    """What every worker says in every step, added up over all of them."""

    NOT_READY = 0  # for the next configuration; 0 in the sum: everybody is
    CHECKPOINT = 1  # I was told that all of us save and leave
    END = 2  # I was told that the job is over
    LEAVING = 3  # I must go (SIGTERM): save, and go on without me
    LOSS = 4  # my part of the step's mean loss
    SQUARE = 5  # squared norm of my own gradient, in steps that measure it


class _Bucket:
    def __init__(self, parameters: list[Parameter], notices: bool) -> None:
        like = parameters[0]
        self.parameters = parameters
        sizes = [p.numel() for p in parameters]
        tail = len(parameters) + (len(Notice) if notices else 0)
        self.flat = torch.empty(sum(sizes) + tail, dtype=like.dtype, device=like.device)
        self.flat.zero_()  # touches it: the first step is no slower than others
        self.views = []
        at = 0
        for p, size in zip(parameters, sizes, strict=True):
            self.views.append(_view_like(self.flat[at : at + size], p))
            at += size
        self.used = self.flat[at : at + len(parameters)]
        self.notices = self.flat[at + len(parameters) :] if notices else None
        self.missing = 0
        self.done = [False] * len(parameters)  # by place: a tensor's hash costs a microsecond


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
        last = len(layout) - 1
        self._buckets = [_Bucket(ps, exact and i == last) for i, ps in enumerate(layout)]
        device = trained[-1].device
        self._own_notices = None if exact else torch.zeros(len(Notice), device=device)
        self._handles: list[Any] = []
        self._trained = [p for bucket in self._buckets for p in bucket.parameters]
        for bucket in self._buckets:
            for index, p in enumerate(bucket.parameters):
                register: Any = p.register_post_accumulate_grad_hook
                self._handles.append(register(self._hook(bucket, index)))
        # a number on the CPU, so that it is an argument of the kernel, and of dimension 0: three
        # times cheaper than a Python float
        self._weight = torch.ones((), dtype=torch.float64)
        self._group: Group | None = None
        self._works: list[Any] = []
        self._next = 0  # bucket to start
        self._squares: list[Tensor] | None = None
        self._problem = ""  # words only: an exception would keep the connections open

    @property
    def notices(self) -> Tensor:
        found = self._buckets[-1].notices if self._own_notices is None else self._own_notices
        assert found is not None
        return found

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
        self._weight.fill_(weight)
        self._next, self._problem = 0, ""
        self._works.clear()
        self._squares = [] if measure else None
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)
            bucket.done = [False] * bucket.missing
            bucket.used.fill_(1.0)
        values = self.notices
        values.zero_()
        for notice, value in notices.items():
            if isinstance(value, Tensor) or value:  # each write costs microseconds
                values[notice] = value

    def add_up(self, tensor: Tensor) -> None:
        """One more small sum, started at once; it is complete after `finish`."""
        self._start(tensor)

    def finish(self) -> list[float]:
        """Waits for everything, gives gradients to the parameters, returns the notices' sums."""
        group, self._group = self._group, None
        assert group is not None
        holes = False
        for bucket in self._buckets:
            if bucket.missing == 0:
                continue
            holes = True
            for index, p in enumerate(bucket.parameters):
                if bucket.done[index]:
                    continue
                if p.grad is None:
                    bucket.views[index].zero_()
                    bucket.used[index] = 0.0
                else:  # from an earlier micro-batch
                    self._fill(bucket, index, p)
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
        for bucket in self._buckets:
            used = bucket.used.tolist() if holes else None
            for index, p in enumerate(bucket.parameters):
                p.grad = bucket.views[index] if used is None or used[index] > 0 else None
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
        """Squared norm of the reduced gradient."""
        norms = torch._foreach_norm([p.grad for p in self._trained if p.grad is not None])
        return float(torch.stack([n.double() for n in norms]).square().sum()) if norms else 0.0

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    # while backward runs

    def _hook(self, bucket: _Bucket, index: int) -> Callable[[Tensor], None]:
        parameter = bucket.parameters[index]

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
            self._fill(bucket, index, parameter)
            bucket.missing -= 1
            if bucket.missing == 0:
                self._next_buckets(group, everything=False)

        return hook

    def _fill(self, bucket: _Bucket, index: int, p: Parameter) -> None:
        gradient, view = p.grad, bucket.views[index]
        assert gradient is not None
        if gradient.is_sparse:
            raise UserError(
                "sparse gradients are not supported: make the embedding with sparse=False"
            )
        if gradient.data_ptr() == view.data_ptr():
            view.mul_(self._weight)
        else:
            torch.mul(gradient, self._weight, out=view)
            p.grad = view
        if self._squares is not None:
            self._squares.append(torch.linalg.vector_norm(view).float())

    def _next_buckets(self, group: Group, *, everything: bool) -> None:
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if bucket.missing and not everything:
                return
            self._next += 1
            if self._next == len(self._buckets):
                self._note_square()
            self._start(bucket.flat, group)

    def _note_square(self) -> None:
        if self._squares and self._weight > 0:
            square = torch.stack(self._squares).square().sum()
            self.notices[Notice.SQUARE] = square / float(self._weight) ** 2

    def _start(self, tensor: Tensor, group: Group | None = None) -> None:
        group = group or self._group
        if self._problem or group is None:
            return
        try:
            self._works.append(group.sum(tensor))
        except RuntimeError as problem:  # the member next to us is gone; backward runs on unharmed
            self._problem = str(problem)
