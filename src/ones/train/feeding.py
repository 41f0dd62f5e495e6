"""State that reaches newcomers before the switch, while training goes on.

Parameters and optimizer state change only in the optimizer's step. In between, one of those
who stay sends them to its newcomers, a piece at a time, straight from where they live; the
optimizer waits for the piece that is on its way. What was sent is then kept up to date: the
gradients that the optimizer is about to use go to the newcomers, too, and they make the same
step on the pieces that they have. Same numbers in, same bits out, as in every other replica.
When all pieces are there, nothing is left to send at the switch but a few words. `proof` looks
whether the bits are the same indeed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ones.errors import UserError
from ones.train.buckets import Buckets
from ones.train.group import Group, GroupLostError, wait_all
from ones.train.parcels import as_bytes, parcels, receive_into, receive_words, send_words
from ones.train.replica import Replica

_STREAM, _STEPS = 2, 3  # tags
_PIECE = 8 << 20  # bytes: at least so much at once; the optimizer waits for no more
_PATIENCE = 10.0  # seconds that training waits for a newcomer before it goes on without


def _in_order(replica: Replica, buckets: Buckets) -> list[Tensor]:
    """As gradients lie in the buckets, so that those of the first pieces lie together."""
    trained: list[Tensor] = [p for bucket in buckets.each for p in bucket.parameters]
    known = set(trained)
    return [*trained, *(p for p in replica.model.parameters() if p not in known)]


class Feeder:
    """With those who have trained. All calls come from the training thread."""

    def __init__(
        self, replica: Replica, buckets: Buckets, group: Group, receivers: Sequence[int]
    ) -> None:
        self._replica, self._buckets = replica, buckets
        self._group, self.receivers = group, receivers
        self._order = _in_order(replica, buckets)
        self._turn = threading.Condition()
        self._is_held = self._is_busy = self._is_stopped = False
        self._sent = 0  # parameters
        self.is_complete = False
        self.problem = ""  # words only: an exception would keep the connections open
        self._on_the_way: list[tuple[Any, Tensor]] = []
        self._began = time.perf_counter()
        self.seconds = self.held_seconds = 0.0
        threading.Thread(target=self._run, name="ones-feed", daemon=True).start()

    # around the optimizer's step

    def hold(self) -> None:
        """Returns when no piece is on its way; none is sent until `release`."""
        began = time.perf_counter()
        with self._turn:
            self._is_held = True
            if not self._turn.wait_for(lambda: not self._is_busy, _PATIENCE):
                self._fail("a newcomer does not take its state")
        self.held_seconds += time.perf_counter() - began

    def repeat(self) -> None:
        """Newcomers make the step that comes now. Only while held."""
        if not self._sent or self.problem:
            return
        try:
            words = {"sent": self._sent, "settings": self._replica.settings()}
            self._on_the_way += send_words(self._group, words, self.receivers, _STEPS)
            first = 0
            for bucket in self._buckets.each:
                if first >= self._sent:
                    break
                first += len(bucket.parameters)
                part = as_bytes(bucket.flat)
                works = [self._group.send(part, to, _STEPS) for to in self.receivers]
                self._on_the_way += [(work, part) for work in works]
        except GroupLostError as problem:
            self._fail(str(problem))

    def release(self) -> None:
        with self._turn:
            self._is_held = False
            self._turn.notify_all()

    def wait_for_buffers(self, patience: float = _PATIENCE) -> None:
        """Before gradients of another step are written where the last ones are sent from."""
        works, self._on_the_way = self._on_the_way, []
        try:
            for work, _ in works:
                work.wait(timedelta(seconds=patience))
        except RuntimeError as problem:
            self._fail(str(problem))

    # the end

    def wait(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: self.is_complete or bool(self.problem))

    def finish(self) -> None:
        """All pieces are there, and this is the switch."""
        words = {"last": self._replica.last_words()}
        self._on_the_way += send_words(self._group, words, self.receivers, _STEPS)

    def stop(self) -> None:
        with self._turn:
            self._is_stopped = True
            self._turn.notify_all()

    def _fail(self, problem: str) -> None:
        with self._turn:
            self.problem = self.problem or problem
            self._is_stopped = True
            self._turn.notify_all()

    # in a thread of its own

    def _run(self) -> None:
        try:
            while not self.is_complete and self._begin():
                piece: list[Tensor] = []
                with torch.no_grad():
                    count = self._send_piece(piece)
                self._end(count)
        except GroupLostError as problem:
            self._fail(str(problem))
            self._end(0)

    def _begin(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: not self._is_held or self._is_stopped)
            self._is_busy = not self._is_stopped
        return self._is_busy

    def _end(self, count: int) -> None:
        with self._turn:
            self._sent += count
            self._is_busy = False
            self.is_complete = self._sent == len(self._order) and not self.problem
            if self.is_complete:
                self.seconds = time.perf_counter() - self._began
            self._turn.notify_all()

    def _send_piece(self, tensors: list[Tensor]) -> int:
        described: list[Any] = []
        for p in self._order[self._sent :]:
            described.append(self._replica.piece(p, tensors))
            if sum(t.numel() * t.element_size() for t in tensors) >= _PIECE:
                break
        works = send_words(self._group, described, self.receivers, _STREAM)
        for part in parcels(tensors):
            works += [(self._group.send(part, to, _STREAM), part) for to in self.receivers]
        wait_all([work for work, _ in works])
        return len(described)


class Follower:
    """With a newcomer."""

    def __init__(self, replica: Replica, buckets: Buckets, group: Group, source: int) -> None:
        self._replica, self._buckets = replica, buckets
        self._group, self._source = group, source
        self._order = _in_order(replica, buckets)
        self._arrived = threading.Condition()
        self._here = 0  # parameters
        self._problem: UserError | str = ""
        self.steps = 0

    def follow(self) -> None:
        """Returns after the switch, equal to the one that feeds us."""
        stream = threading.Thread(target=self._take_pieces, name="ones-fed", daemon=True)
        stream.start()
        while True:
            words = receive_words(self._group, self._source, _STEPS)
            if "last" in words:
                self._wait_for(len(self._order))
                self._replica.hear_last_words(words["last"])
                stream.join()
                return
            self._wait_for(words["sent"])
            self._repeat(words["sent"], words["settings"])

    def _wait_for(self, count: int) -> None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._here >= count or bool(self._problem))
        if isinstance(self._problem, UserError):
            raise self._problem
        if self._problem and self._here < count:
            raise GroupLostError(self._problem)

    def _repeat(self, count: int, settings: list[dict[str, Any]]) -> None:
        works, left = [], count
        for bucket in self._buckets.each:
            if left <= 0:
                break
            works.append(self._group.receive(as_bytes(bucket.flat), self._source, _STEPS))
            left -= len(bucket.parameters)
        wait_all(works)
        left = count
        for bucket in self._buckets.each:
            used = bucket.used.tolist()
            for p, view, users in zip(bucket.parameters, bucket.views, used, strict=True):
                p.grad = view if left > 0 and users > 0 else None
                left -= 1
        self._replica.use_settings(settings)
        self._replica.optimizer.step()
        self._replica.optimizer.zero_grad(set_to_none=True)
        for bucket in self._buckets.each:
            for p in bucket.parameters:
                p.grad = None  # also of those that the optimizer does not know
        self.steps += 1

    def _take_pieces(self) -> None:
        try:
            while self._here < len(self._order):
                described = receive_words(self._group, self._source, _STREAM)
                tensors: list[Tensor] = []
                pieces = self._order[self._here : self._here + len(described)]
                for p, piece in zip(pieces, described, strict=True):
                    self._replica.room_for(p, piece, tensors)
                receive_into(tensors, lambda t: self._group.receive(t, self._source, _STREAM))
                with self._arrived:
                    self._here += len(pieces)
                    self._arrived.notify_all()
        except (GroupLostError, UserError) as problem:
            with self._arrived:
                self._problem = problem if isinstance(problem, UserError) else str(problem)
                self._arrived.notify_all()
