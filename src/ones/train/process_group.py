"""Process groups of workers. No other module creates one.

A group has two channels:

* device: `all_reduce` and `broadcast` of device tensors (NCCL). All members submit them in one
  order, from the training thread. A member that dies is not noticed: `abort` ends the operations,
  which then leave garbage and raise nothing, so `drain` or `check` must follow a host read.
* side: messages and small collectives of CPU tensors (gloo), with tags. A loss raises an error.

On the CPU both are one gloo group. These are raw c10d groups and not torch's default group: two can
exist side by side, so the next group connects while the current one trains. Torch's planned
`reconfigure()` would replace this class. NCCL was not run yet: tests use a strict double.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ones.train import emulation, logs
from ones.train.connection_tracking import shut_down, track_connections
from ones.train.device import backend_name, module_of
from ones.train.gloo_device import GlooDeviceGroup

dist: Any = torch.distributed  # most of c10d has no types

_log = logs.logger(__name__)

_LEAVE_TAG = 1
_COLLECTIVE_TIMEOUT = timedelta(hours=12)  # a hanging worker is found by the membership pings
_DEVICE_TIMEOUT = timedelta(seconds=120)  # longest wait of NCCL's own abort
_ABORT_SECONDS = 60.0
#: NCCL's watchdog must not end the survivors of a loss, nor leave marks in the job's store
_NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}


def _options_of(operation: Any) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = operation
    options.timeout = _COLLECTIVE_TIMEOUT
    return options


# made once: that takes longer than to submit a small operation
_SUM, _MAXIMUM = _options_of(dist.ReduceOp.SUM), _options_of(dist.ReduceOp.MAX)


class GroupLostError(RuntimeError):
    """A member is lost: the group cannot be used any more."""


def create_device_backend(store: Any, rank: int, size: int, device: torch.device) -> Any | None:
    """The communication library of a device; None on the CPU. Not connected yet."""
    if device.type == "cpu":
        return None
    if device.type == emulation.DEVICE:
        from ones.train.emulation.strict_group import EmulatedGroup

        return EmulatedGroup(store, rank, size)
    torch.cuda.set_device(device)
    if backend_name() == "gloo":
        return GlooDeviceGroup(store, rank, size)
    os.environ.update(_NCCL_ENVIRONMENT)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = _DEVICE_TIMEOUT
    return dist.ProcessGroupNCCL(store, rank, size, options)


def synchronise_device(device: torch.device) -> None:
    """Waits on the host for all that the current stream waits for."""
    module_of(device).current_stream(device).synchronize()


class ProcessGroup:
    """A connected group of workers: collectives, and messages between two members."""

    def __init__(
        self,
        side: Any,
        rank: int,
        size: int,
        *,
        device: torch.device | None = None,
        device_backend: Any = None,
    ) -> None:
        self._backend = side
        self._device, self._device_backend = device, device_backend
        self._sent: list[tuple[Sequence[Any], object]] = []  # works and their buffers
        self.rank, self.size = rank, size
        self.state_roles: list[int] = []  # by rank; see `next_group`
        self._connections: set[str] = set()  # of the side channel
        self._lock = threading.Lock()
        self.is_aborted = False
        self._abort: threading.Thread | None = None
        self._abort_failed = False

    @classmethod
    def connect(
        cls,
        store: Any,
        name: str,
        *,
        rank: int,
        size: int,
        host: str,
        device: torch.device,
        timeout: float,
    ) -> ProcessGroup:
        """Blocks until all members are connected; raises GroupLostError after `timeout` seconds.

        A `name` must be used once on one store only (pytorch issue 55967: it would hang).
        """
        prefixed = dist.PrefixStore(name, store)
        try:
            with track_connections() as connections:
                gloo = dist.ProcessGroupGloo._Options()
                gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
                gloo._timeout = timedelta(seconds=timeout)
                gloo._threads = 2  # one is three times slower, four no faster
                side = dist.ProcessGroupGloo(prefixed, rank, size, gloo)
                side._set_default_timeout(_COLLECTIVE_TIMEOUT)
            with track_connections():
                own = dist.PrefixStore("device", prefixed)
                backend = create_device_backend(own, rank, size, device)
                if backend is not None:
                    # by default NCCL connects in the first collective, where no timeout guards it
                    backend.eager_connect_single_device(device)
        except RuntimeError as error:
            raise GroupLostError(f"group {name} did not connect: {error}") from error
        group = cls(side, rank, size, device=device, device_backend=backend)
        group._connections = connections
        return group

    # the device channel

    @property
    def has_device_channel(self) -> bool:
        return self._device_backend is not None

    def is_on_device(self, tensor: Tensor) -> bool:
        """Whether the device channel carries this tensor; else it is sent as a message."""
        return (
            self._device_backend is not None
            and self._device is not None
            and tensor.device.type == self._device.type
        )

    def all_reduce(self, tensor: Tensor) -> Any:
        """Starts to sum `tensor` over all members, in place. Call `wait()` on the result."""
        return self._start(self._device_backend or self._backend, "allreduce", [tensor], _SUM)

    def broadcast(self, tensor: Tensor, source: int) -> Any:
        """Starts to copy the source's tensor to all members. All members must call it."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        options.timeout = _COLLECTIVE_TIMEOUT
        return self._start(self._device_backend or self._backend, "broadcast", [tensor], options)

    def check(self) -> None:
        """Raises GroupLostError if the group was aborted: what was read before is garbage."""
        if self.is_aborted:
            raise GroupLostError("the group was aborted because a member is lost")

    def drain(self) -> None:
        """Waits on the host for all device operations; raises GroupLostError if one was aborted."""
        if self._device_backend is not None and self._device is not None:
            synchronise_device(self._device)
            self.check()

    # small collectives

    def all_equal(self, number: int) -> bool:
        """Whether all members pass the same number."""
        both = torch.tensor([number, -number], dtype=torch.int64)
        wait_all([self._start(self._backend, "allreduce", [both], _MAXIMUM)])
        high, low = both.tolist()
        return bool(high == -low)

    def sum_on_host(self, values: Tensor) -> None:
        """Sums a CPU tensor over all members, in place."""
        wait_all([self._start(self._backend, "allreduce", [values], _SUM)])

    def all_gather(self, number: int) -> list[int]:
        """The numbers of all members, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.rank] = number
        wait_all([self._start(self._backend, "allreduce", [numbers], _SUM)])
        return [int(n) for n in numbers.tolist()]

    # messages of CPU tensors

    def send(self, tensor: Tensor, receiver: int, tag: int = 0) -> Any:
        """Starts to send. Messages of one tag arrive in order; different tags are independent."""
        return _Message(self._start(self._backend, "send", [tensor], receiver, tag))

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> Any:
        return _Message(self._start(self._backend, "recv", [tensor], source, tag))

    def keep_until_sent(self, works: Sequence[Any], buffers: object) -> None:
        """Keeps buffers until they are sent (`wait_until_sent`) or the group is closed."""
        self._sent.append((works, buffers))

    def wait_until_sent(self) -> None:
        sent, self._sent = self._sent, []
        wait_all([work for works, _ in sent for work in works])

    # the end

    def acknowledge_leave(self, leaving: Collection[int]) -> None:
        """Leaving members wait until all others acknowledge that they need nothing more from them.

        A connection that is closed early loses data that is not yet received. A member
        acknowledges when its device operations are complete.
        """
        self.drain()
        token = torch.zeros(1, dtype=torch.uint8)
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [self.send(token, rank, _LEAVE_TAG) for rank in others if rank in leaving]
        if self.rank in leaving:
            tokens = [torch.empty_like(token) for _ in others]
            received = map(self.receive, tokens, others, [_LEAVE_TAG] * len(others))
            wait_all([*received, *sent])
        else:
            self.keep_until_sent(sent, token)

    def close(self, *, is_lost: bool = False) -> bool:
        """Closes the connections; members that wait for this worker get an error.

        `is_lost`: operations may be under way, for which gloo's destructor would wait up to their
        timeout. So their connections are shut down first.
        False: the device operations could not be aborted. The process must end.
        """
        if is_lost:
            shut_down(self._connections)
        self._backend = None  # gloo closes when its last reference is gone
        self._sent.clear()
        self._abort_device()
        if self._abort is not None and self._abort is not threading.current_thread():
            self._abort.join(_ABORT_SECONDS)
            return not (self._abort.is_alive() or self._abort_failed)
        return True

    def abort(self, *, hangs: bool) -> None:
        """Wakes the thread that waits for a lost member. May be called from any thread.

        `hangs`: the member is out of reach, so its connections of the side channel do not end by
        themselves, as those of a member that died do.
        """
        self._abort_device()
        if hangs:
            self.is_aborted = True
            shut_down(self._connections)

    def _abort_device(self) -> None:
        """Aborts in a thread: NCCL may take long, and the caller answers the store's pings."""
        if self._device_backend is None:
            return
        with self._lock:
            self.is_aborted = True  # before: the aborted operations end while the thread runs
            if self._abort is None:
                self._abort = threading.Thread(target=self._run_abort, name="ones-abort")
                self._abort.daemon = True
                self._abort.start()

    def _run_abort(self) -> None:
        try:
            self._device_backend.abort()
        except Exception as error:  # of the device's library: any
            self._abort_failed = True
            _log.error("the device operations cannot be aborted: %s", error)

    def _start(self, backend: Any, operation: str, *arguments: Any) -> Any:
        if self._backend is None:
            raise GroupLostError("this group is closed")
        if backend is self._device_backend:
            self.check()
        call: Callable[..., Any] = getattr(backend, operation)
        try:
            return call(*arguments)
        except RuntimeError as error:
            raise GroupLostError(str(error)) from error


class _Message:
    """A gloo message: without a timeout of its own it would use the one for connecting."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: timedelta = _COLLECTIVE_TIMEOUT) -> None:
        self._work.wait(timeout)


class SingleWorkerGroup(ProcessGroup):
    """The group of one worker: sums are complete at once."""

    def __init__(self) -> None:
        super().__init__(None, 0, 1)

    def all_reduce(self, tensor: Tensor) -> Any:
        return _Completed()


class _Completed:
    def wait(self) -> None:
        pass


def wait_all(works: Sequence[Any]) -> None:
    """Waits for all works, also after one has failed: their buffers are in use until then."""
    failure: RuntimeError | None = None
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            failure = failure or error
    if failure is not None:
        raise GroupLostError(str(failure)) from failure
