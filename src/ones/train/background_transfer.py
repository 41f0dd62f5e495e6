"""State transfer to joining workers before the switch, while training goes on.

Parameters and optimizer state change only in the optimizer's step. Between two steps a staying
worker sends them to its joining workers piece by piece, directly from memory; the optimizer waits
for the piece that is being sent. Sent pieces are kept up to date: the joining workers also get the
gradients of each update and make the same step on the pieces that they have. Equal inputs give
equal bits, as in every other replica; `digest` checks that. When all pieces have arrived, only the
final values (`Replica.final_state`) are left to send at the switch.
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
from ones.train import logs
from ones.train.buckets import Buckets
from ones.train.process_group import GroupLostError, ProcessGroup, wait_all
from ones.train.replica import Replica
from ones.train.tensor_messages import (
    as_bytes,
    pack_tensors,
    receive_tensors,
    receive_value,
    send_value,
)

_PIECE_TAG, _STEP_TAG = 2, 3
_PIECE_BYTES = 8 << 20  # size from which a piece is sent; the optimizer waits for one piece at most
_TIMEOUT = 10.0  # seconds that training waits for a joining worker before the plan is given up


def _in_bucket_order(replica: Replica, buckets: Buckets) -> list[Tensor]:
    """All parameters, in the order of the gradient buckets, then those without a gradient."""
    trained: list[Tensor] = [p for bucket in buckets.buckets for p in bucket.parameters]
    known = set(trained)
    return [*trained, *(p for p in replica.model.parameters() if p not in known)]


class StateSender:
    """Sends the state of a staying worker. Public methods are for the training thread."""

    def __init__(
        self, replica: Replica, buckets: Buckets, group: ProcessGroup, receivers: Sequence[int]
    ) -> None:
        self._replica, self._buckets = replica, buckets
        self._group, self.receivers = group, receivers
        self._parameters = _in_bucket_order(replica, buckets)
        self._changed = threading.Condition()
        self._is_paused = self._is_sending = self._is_stopped = False
        self._sent = 0  # parameters
        self.is_complete = False
        self.problem = ""  # text: an exception would keep the connections open
        self._pending: list[tuple[Any, Tensor]] = []  # works and their buffers
        self._started = time.perf_counter()
        self.seconds = self.optimizer_wait_seconds = 0.0
        threading.Thread(target=self._run, name="ones-send-state", daemon=True).start()

    # around the optimizer's step

    def pause(self) -> None:
        """Waits for the piece that is being sent; no other is sent until `resume`."""
        started = time.perf_counter()
        with self._changed:
            self._is_paused = True
            if not self._changed.wait_for(lambda: not self._is_sending, _TIMEOUT):
                self._fail(f"a joining worker did not receive state for {_TIMEOUT:.0f} s")
        self.optimizer_wait_seconds += time.perf_counter() - started

    def send_step(self) -> None:
        """Starts to send the gradients of the update that follows. Call it while paused."""
        if not self._sent or self.problem:
            return
        try:
            header = {"sent": self._sent, "settings": self._replica.optimizer_settings()}
            self._pending += send_value(self._group, header, self.receivers, _STEP_TAG)
            first = 0
            for bucket in self._buckets.buckets:
                if first >= self._sent:
                    break
                first += len(bucket.parameters)
                part = as_bytes(bucket.flat)
                works = [self._group.send(part, rank, _STEP_TAG) for rank in self.receivers]
                self._pending += [(work, part) for work in works]
        except Exception as error:  # any: training goes on, the plan fails
            self._fail(logs.describe(error))

    def resume(self) -> None:
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def wait_until_sent(self, timeout: float = _TIMEOUT) -> None:
        """Waits for the gradients of the last step, before their buffers are overwritten."""
        pending, self._pending = self._pending, []
        try:
            for work, _ in pending:
                work.wait(timedelta(seconds=timeout))
        except RuntimeError as error:
            self._fail(str(error))

    # the end

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.is_complete or bool(self.problem))

    def finish(self) -> None:
        """Sends the final values, in the switch, after all pieces."""
        values = {"final": self._replica.final_state()}
        self._pending += send_value(self._group, values, self.receivers, _STEP_TAG)

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _fail(self, problem: str) -> None:
        with self._changed:
            self.problem = self.problem or problem
            self.stop()

    # the sending thread

    def _run(self) -> None:
        try:
            while not self.is_complete and self._begin_piece():
                with torch.no_grad():
                    count = self._send_piece()
                self._end_piece(count)
        except Exception as error:  # any: training goes on, the plan fails
            self._fail(logs.describe(error))
            self._end_piece(0)

    def _begin_piece(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_paused or self._is_stopped)
            self._is_sending = not self._is_stopped
        return self._is_sending

    def _end_piece(self, count: int) -> None:
        with self._changed:
            self._sent += count
            self._is_sending = False
            self.is_complete = self._sent == len(self._parameters) and not self.problem
            if self.is_complete:
                self.seconds = time.perf_counter() - self._started
            self._changed.notify_all()

    def _send_piece(self) -> int:
        """Returns the number of parameters sent."""
        descriptions: list[Any] = []
        tensors: list[Tensor] = []
        for p in self._parameters[self._sent :]:
            descriptions.append(self._replica.describe_parameter(p, tensors))
            if sum(t.numel() * t.element_size() for t in tensors) >= _PIECE_BYTES:
                break
        works = send_value(self._group, descriptions, self.receivers, _PIECE_TAG)
        for part in pack_tensors(tensors):
            works += [(self._group.send(part, rank, _PIECE_TAG), part) for rank in self.receivers]
        wait_all([work for work, _ in works])
        return len(descriptions)


class StateReceiver:
    """Receives the state on a joining worker, and repeats the steps made meanwhile."""

    def __init__(
        self, replica: Replica, buckets: Buckets, group: ProcessGroup, source: int
    ) -> None:
        self._replica, self._buckets = replica, buckets
        self._group, self._source = group, source
        self._parameters = _in_bucket_order(replica, buckets)
        self._changed = threading.Condition()
        self._received = 0  # parameters
        self._problem: UserError | str = ""

    def receive(self) -> None:
        """Receives the state of the sender. Returns after the switch."""
        pieces = threading.Thread(
            target=self._receive_pieces, name="ones-receive-state", daemon=True
        )
        pieces.start()
        while True:
            message = receive_value(self._group, self._source, _STEP_TAG)
            if "final" in message:
                self._wait_for(len(self._parameters))
                self._replica.load_final_state(message["final"])
                pieces.join()
                return
            self._wait_for(message["sent"])
            self._repeat_step(message["sent"], message["settings"])

    def _wait_for(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._received >= count or bool(self._problem))
        if isinstance(self._problem, UserError):
            raise self._problem
        if self._problem and self._received < count:
            raise GroupLostError(self._problem)

    def _repeat_step(self, count: int, settings: list[dict[str, Any]]) -> None:
        """The optimizer's step of the sender, on the first `count` parameters."""
        works, left = [], count
        for bucket in self._buckets.buckets:
            if left <= 0:
                break
            works.append(self._group.receive(as_bytes(bucket.flat), self._source, _STEP_TAG))
            left -= len(bucket.parameters)
        wait_all(works)
        left = count
        for bucket in self._buckets.buckets:
            used = bucket.used.tolist()
            for p, view, users in zip(bucket.parameters, bucket.views, used, strict=True):
                p.grad = view if left > 0 and users > 0 else None
                left -= 1
        self._replica.set_optimizer_settings(settings)
        self._replica.optimizer.step()
        self._replica.optimizer.zero_grad(set_to_none=True)
        for bucket in self._buckets.buckets:
            for p in bucket.parameters:
                p.grad = None  # also of parameters that the optimizer does not have

    def _receive_pieces(self) -> None:
        try:
            while self._received < len(self._parameters):
                descriptions = receive_value(self._group, self._source, _PIECE_TAG)
                tensors: list[Tensor] = []
                piece = self._parameters[self._received : self._received + len(descriptions)]
                for p, description in zip(piece, descriptions, strict=True):
                    self._replica.allocate_parameter(p, description, tensors)
                receive_tensors(
                    tensors, lambda part: self._group.receive(part, self._source, _PIECE_TAG)
                )
                with self._changed:
                    self._received += len(piece)
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._problem = error if isinstance(error, UserError) else logs.describe(error)
                self._changed.notify_all()
