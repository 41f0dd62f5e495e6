"""A set of workers that can talk to one another: the only place that makes a process group.

Raw groups, not torch's default one: two can exist side by side, so the next one connects
while the present one trains. Torch's coming `reconfigure()` would replace this class.
gloo on the CPU; NCCL by the same calls (written, not run on GPUs yet).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ones.train.not_inherited import ours, sever

# most of c10d has no types
dist: Any = torch.distributed

_COLLECTIVE_TIMEOUT = timedelta(hours=12)  # who hangs is found by roll call and killed, not by this


class GroupLostError(RuntimeError):
    """A member is gone: this group will not speak again."""


class Group:
    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self._backend = backend
        self._kept: list[tuple[Sequence[Any], object]] = []
        self.rank, self.size = rank, size
        self.offers: list[int] = []  # of the members, where they were asked
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
    ) -> Group:
        """Blocks until all have come, or raises GroupLostError after `timeout` seconds.

        `name` must never be used twice on one store (pytorch issue 55967: it would hang).
        """
        prefixed = dist.PrefixStore(name, store)
        try:
            with ours() as connections:
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
        except RuntimeError as problem:
            raise GroupLostError(f"group {name} did not come together: {problem}") from problem
        group = cls(backend, rank, size)
        group._connections = connections
        return group

    def sum(self, tensor: Tensor) -> Any:
        """Starts to add up `tensor` over all members, in place; `wait()` on what it returns."""
        options = dist.AllreduceOptions()
        options.timeout = _COLLECTIVE_TIMEOUT
        return _started(self._open().allreduce, [tensor], options)

    def agree(self, number: int) -> bool:
        """Do all members say the same number?"""
        both = torch.tensor([number, -number], dtype=torch.int64, device=self.device)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        options.timeout = _COLLECTIVE_TIMEOUT
        wait_all([_started(self._open().allreduce, [both], options)])
        high, low = both.tolist()
        return bool(high == -low)

    def send(self, tensor: Tensor, to: int, tag: int = 0) -> Any:
        """Messages of one tag arrive in order; those of different tags pass one another."""
        return self._message(_started(self._open().send, [tensor], to, tag))

    def receive(self, tensor: Tensor, source: int, tag: int = 0) -> Any:
        return self._message(_started(self._open().recv, [tensor], source, tag))

    def _message(self, work: Any) -> Any:
        return _Message(work) if self.device == "cpu" else work

    def of_all(self, number: int) -> list[int]:
        """What each member says, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        wait_all([self.sum(numbers)])
        return [int(n) for n in numbers.tolist()]

    def keep(self, works: Sequence[Any], tensors: object) -> None:
        """What is on its way, until this group is closed or all of it has arrived."""
        self._kept.append((works, tensors))

    def clear(self) -> None:
        """Waits for what was kept: it has arrived long since."""
        kept, self._kept = self._kept, []
        wait_all([work for works, _ in kept for work in works])

    def farewell(self, leavers: Collection[int]) -> None:
        """Nobody may close a connection while another still reads from it: what is on its way
        would be lost. Those who leave wait until all have said that they are through."""
        word = torch.zeros(1, dtype=torch.uint8, device=self.device)
        others = [rank for rank in range(self.size) if rank != self.rank]
        sent = [self.send(word, rank, 1) for rank in others if rank in leavers]
        if self.rank in leavers:
            heard = [torch.empty_like(word) for _ in others]
            got = [self.receive(place, rank, 1) for place, rank in zip(heard, others, strict=True)]
            wait_all([*got, *sent])
        else:
            self.keep(sent, word)

    def close(self) -> None:
        """Lets go of the connections; members that wait for us are woken with an error."""
        backend, self._backend = self._backend, None
        self._kept.clear()
        if backend is not None and not isinstance(backend, dist.ProcessGroupGloo):
            backend.abort()  # NCCL; gloo's does nothing, letting go of it does

    def sever(self) -> None:
        """From another thread: whoever waits for a member that is out of reach need not any more.
        One that died has ended its connections; one behind a cut network never does."""
        backend = self._backend
        if backend is None:
            return
        if isinstance(backend, dist.ProcessGroupGloo):
            sever(self._connections)
        else:
            backend.abort()

    def _open(self) -> Any:
        if self._backend is None:
            raise GroupLostError("this group is closed")
        return self._backend

    @property
    def device(self) -> str:
        return "cpu" if isinstance(self._backend, dist.ProcessGroupGloo) else "cuda"


class _Message:
    """gloo would give up a message after the time that was meant for connecting."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self, timeout: timedelta = _COLLECTIVE_TIMEOUT) -> None:
        self._work.wait(timeout)


class Alone(Group):
    """One worker: sums are what they are already."""

    def __init__(self) -> None:
        super().__init__(None, 0, 1)

    def sum(self, tensor: Tensor) -> Any:
        return _Done()

    def agree(self, number: int) -> bool:
        return True


class _Done:
    def wait(self) -> None:
        """It is."""


def _started(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except RuntimeError as problem:
        raise GroupLostError(str(problem)) from problem


def wait_all(works: Sequence[Any]) -> None:
    """Waits for every one, also after one has failed: its buffer is not ours until then."""
    problem: RuntimeError | None = None
    for work in works:
        try:
            work.wait()
        except RuntimeError as this:
            problem = problem or this
    if problem is not None:
        raise GroupLostError(str(problem)) from problem
