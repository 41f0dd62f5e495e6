"""Process groups of workers. No other module creates one.

These are raw c10d groups and not torch's default group: two can exist side by side, so the next
group connects while the current one trains. gloo on the CPU; NCCL by the same calls (written, not
run on GPUs yet). Torch's planned `reconfigure()` would replace this class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ones.train.connection_tracking import shut_down, track_connections

dist: Any = torch.distributed  # most of c10d has no types

_LEAVE_TAG = 1
_COLLECTIVE_TIMEOUT = timedelta(hours=12)  # a hanging worker is found by the membership pings


class GroupLostError(RuntimeError):
    """A member is lost: the group cannot be used any more."""


class ProcessGroup:
    """A connected group of workers: collectives, and messages between two members."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self._backend = backend
        self._sent: list[tuple[Sequence[Any], object]] = []  # works and their buffers
        self.rank, self.size = rank, size
        self.state_roles: list[int] = []  # by rank; see `next_group`
        self._connections: set[str] = set()

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
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                    nccl = dist.ProcessGroupNCCL.Options()
                    nccl._timeout = _COLLECTIVE_TIMEOUT
                    backend: Any = dist.ProcessGroupNCCL(prefixed, rank, size, nccl)
                else:
                    gloo = dist.ProcessGroupGloo._Options()
                    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
                    gloo._timeout = timedelta(seconds=timeout)
                    gloo._threads = 2  # one is three times slower, four no faster
                    backend = dist.ProcessGroupGloo(prefixed, rank, size, gloo)
                    backend._set_default_timeout(_COLLECTIVE_TIMEOUT)
        except RuntimeError as error:
            raise GroupLostError(f"group {name} did not connect: {error}") from error
        group = cls(backend, rank, size)
        group._connections = connections
        return group

    @property
    def device(self) -> str:
        return "cpu" if isinstance(self._backend, dist.ProcessGroupGloo) else "cuda"

    # collectives

    def all_reduce(self, tensor: Tensor) -> Any:
        """Starts to sum `tensor` over all members, in place. Call `wait()` on the result."""
        return self._all_reduce(tensor, dist.ReduceOp.SUM)

    def all_equal(self, number: int) -> bool:
        """Whether all members pass the same number."""
        both = torch.tensor([number, -number], dtype=torch.int64, device=self.device)
        wait_all([self._all_reduce(both, dist.ReduceOp.MAX)])
        high, low = both.tolist()
        return bool(high == -low)

    def all_gather(self, number: int) -> list[int]:
        """The numbers of all members, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        wait_all([self.all_reduce(numbers)])
        return [int(n) for n in numbers.tolist()]

    def _all_reduce(self, tensor: Tensor, operation: Any) -> Any:
        options = dist.AllreduceOptions()
        options.reduceOp = operation
        options.timeout = _COLLECTIVE_TIMEOUT
        return self._start("allreduce", [tensor], options)

    # messages

    def send(self, tensor: Tensor, receiver: int, tag: int = 0) -> Any:
        """Starts to send. Messages of one tag arrive in order; different tags are independent."""
        return self._message(self._start("send", [tensor], receiver, tag))

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> Any:
        return self._message(self._start("recv", [tensor], source, tag))

    def _message(self, work: Any) -> Any:
        return _Message(work) if self.device == "cpu" else work

    def keep_until_sent(self, works: Sequence[Any], buffers: object) -> None:
        """Keeps buffers until they are sent (`wait_until_sent`) or the group is closed."""
        self._sent.append((works, buffers))

    def wait_until_sent(self) -> None:
        sent, self._sent = self._sent, []
        wait_all([work for works, _ in sent for work in works])

    # the end

    def acknowledge_leave(self, leaving: Collection[int]) -> None:
        """Leaving members wait until all others acknowledge that they need nothing more from them.

        A connection that is closed early loses data that is not yet received.
        """
        token = torch.zeros(1, dtype=torch.uint8, device=self.device)
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [self.send(token, rank, _LEAVE_TAG) for rank in others if rank in leaving]
        if self.rank in leaving:
            tokens = [torch.empty_like(token) for _ in others]
            received = map(self.receive, tokens, others, [_LEAVE_TAG] * len(others))
            wait_all([*received, *sent])
        else:
            self.keep_until_sent(sent, token)

    def close(self) -> None:
        """Closes the connections; members that wait for this worker get an error."""
        backend, self._backend = self._backend, None
        self._sent.clear()
        if backend is not None and not isinstance(backend, dist.ProcessGroupGloo):
            backend.abort()  # NCCL; gloo closes when its last reference is gone

    def abort(self) -> None:
        """Wakes the thread that waits for a member out of reach. May be called from any thread.

        The connections of a member that died end by themselves; those to a node that is cut off
        never do.
        """
        backend = self._backend
        if backend is None:
            return
        if isinstance(backend, dist.ProcessGroupGloo):
            shut_down(self._connections)
        else:
            backend.abort()

    def _start(self, operation: str, *arguments: Any) -> Any:
        if self._backend is None:
            raise GroupLostError("this group is closed")
        call: Callable[..., Any] = getattr(self._backend, operation)
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
