"""A communication library that keeps to the rules of ProcessGroupNCCL. Data travels by gloo.

* Only allreduce and broadcast; the caller cannot pass a tag. A tensor of the host is refused.
* An operation is asynchronous. All operations of a process run one after the other on one device,
  in the order of submission, whichever group they belong to: two members that submit operations of
  two groups in different orders wait for each other for ever.
* Members that submit different operations wait for ever, too (NCCL may also corrupt memory).
* A member that died or hangs is not noticed: the operation waits until the group is aborted. Then
  it ends with garbage in its tensor, and `wait()` raises nothing.
* The group connects in `eager_connect_single_device`, or in its first operation without a guard.
* With `is_exclusive`, the rule of this library, too: no operation on a group before the host has
  waited for all operations of the group before (`drain`), unless that one was aborted.
* Random skew before connecting and before each operation.
* On the emulated device `wait()` orders streams only. With CPU tensors, which have no streams, it
  waits on the host, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import queue
import random
import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ones.train.connection_tracking import track_connections
from ones.train.emulation import DEVICE

dist: Any = torch.distributed
_POLL_SECONDS = 0.0005
_CONNECT_SECONDS = 60.0
_SKEW_SECONDS = 0.002


class RuleBrokenError(Exception):
    """The library under test does what may hang on a device. No RuntimeError: as those of torch are
    taken for a lost member."""


class Device:
    """Runs the operations of one worker in the order of their submission."""

    def __init__(self) -> None:
        self.undrained: set[StrictGroup] = set()  # groups used since the host waited last
        self._operations: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="strict-device", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._operations.get()()

    def submit(self, operation: Callable[[], None]) -> None:
        self._operations.put(operation)

    def synchronise(self) -> None:
        done = threading.Event()
        self.submit(done.set)
        done.wait()
        self.undrained.clear()


class Work:
    def __init__(self) -> None:
        self._done = threading.Event()

    def finish(self) -> None:
        self._done.set()

    def wait(self, *_: object) -> None:
        """Raises nothing, whatever happened to the operation."""
        self._done.wait()


class StrictGroup:
    """The rules above, for one member of a group."""

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        device: Device,
        *,
        seed: int = 0,
        most_skew: float = 0.0,
        is_exclusive: bool = False,
        is_on_device: Callable[[Tensor], bool] = lambda tensor: True,
        new_work: Callable[[], Work] = Work,
        host_view: Callable[[Tensor], Tensor] = Tensor.detach,
    ) -> None:
        self._store, self._rank, self._size, self._device = store, rank, size, device
        self._random = random.Random(f"{seed} {rank}")
        self._most_skew, self._is_on_device = most_skew, is_on_device
        self._is_exclusive = is_exclusive
        self._new_work, self._host_view = new_work, host_view
        self._gloo: Any = None
        self._aborted = threading.Event()
        self.connected_eagerly = False
        self.operations: list[str] = []

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._connect()
        self.connected_eagerly = True

    def _connect(self) -> None:
        self._skew(10)
        with track_connections():
            options = dist.ProcessGroupGloo._Options()
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=_CONNECT_SECONDS)
            options._threads = 1
            self._gloo = dist.ProcessGroupGloo(self._store, self._rank, self._size, options)
            self._gloo._set_default_timeout(timedelta(hours=1))
        # never destroyed: gloo would wait for operations with members that have aborted
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:
        return self._submit("allreduce", tensors, options)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Work:
        return self._submit("broadcast", tensors, options)

    def abort(self) -> None:
        """Other members do not notice."""
        self._aborted.set()
        self._device.undrained.discard(self)

    def _submit(self, name: str, tensors: list[Tensor], options: Any) -> Work:
        (tensor,) = tensors
        if self._aborted.is_set():
            raise RuntimeError("NCCL communicator was aborted")
        if not self._is_on_device(tensor):
            raise ValueError("Tensors must be CUDA and dense")
        if self._is_exclusive and self._device.undrained - {self}:
            raise RuleBrokenError("a group is used before the group before it was drained")
        self._device.undrained.add(self)
        if self._gloo is None:
            self._connect()
        signature = f"{name} {tensor.numel()} {tensor.dtype}"
        self.operations.append(signature)
        work, memory = self._new_work(), self._host_view(tensor)
        self._device.submit(lambda: self._run(work, name, signature, memory, options))
        return work

    def _run(self, work: Work, name: str, signature: str, tensor: Tensor, options: Any) -> None:
        self._skew(1)
        with torch.no_grad():
            number = zlib.crc32(signature.encode())
            both = torch.tensor([number, -number])
            highest = dist.AllreduceOptions()
            highest.reduceOp = dist.ReduceOp.MAX
            self._wait(self._gloo.allreduce([both], highest))
            if int(both[0]) != -int(both[1]):
                self._aborted.wait()  # other members run another operation
            result = tensor.clone(memory_format=torch.contiguous_format)
            if not self._aborted.is_set():
                self._wait(getattr(self._gloo, name)([result], options))
            if self._aborted.is_set():
                _fill_with_garbage(tensor)
            else:
                tensor.copy_(result)
        work.finish()

    def _wait(self, work: Any) -> None:
        while not work.is_completed():
            if self._aborted.wait(_POLL_SECONDS):
                return
        try:
            work.wait(timedelta(seconds=1))
        except RuntimeError:  # a member is gone
            self._aborted.wait()

    def _skew(self, factor: int) -> None:
        if self._most_skew:
            time.sleep(self._random.random() * self._most_skew * factor)


def _fill_with_garbage(tensor: Tensor) -> None:
    """The first half is as if reduced, the other is not."""
    with contextlib.suppress(RuntimeError):  # of a tensor without dimensions, nothing
        flat = tensor.view(-1)
        flat[: len(flat) // 2 + 1].mul_(3)


class EmulatedWork(Work):
    """Its `wait()` does not hold the host: the next kernel of the stream waits."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self._number = next(self._numbers)
        _operators().started(self._number)

    def finish(self) -> None:
        super().finish()
        _operators().finished(self._number)

    def wait(self, *_: object) -> None:
        _operators().stream_waits(self._number)


class EmulatedGroup(StrictGroup):
    """The strict group of a worker on the emulated device."""

    _device_of_process: Device | None = None

    def __init__(self, store: Any, rank: int, size: int) -> None:
        if EmulatedGroup._device_of_process is None:
            EmulatedGroup._device_of_process = Device()
        super().__init__(
            store,
            rank,
            size,
            EmulatedGroup._device_of_process,
            seed=int(os.environ.get("ONES_EMULATED_SEED", "0")),
            most_skew=_SKEW_SECONDS,
            is_on_device=lambda tensor: tensor.device.type == DEVICE,
            new_work=EmulatedWork,
            host_view=_operators().host_view,
        )


def _operators() -> Any:
    return torch.ops.ones_emulated
