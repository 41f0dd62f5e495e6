"""The training state of one worker, and how the workers of a group become equal.

`Replica.synchronise` transfers the whole state at once; `background_transfer` sends it while
training goes on.
"""

from __future__ import annotations

import contextlib
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import SGD, Adam, AdamW, Optimizer

from ones.errors import UserError
from ones.train import logs
from ones.train.learning_rate import LearningRate
from ones.train.process_group import ProcessGroup, wait_all
from ones.train.progress import TrainingProgress
from ones.train.script_state import ScriptState
from ones.train.tensor_messages import (
    copy_to_cpu,
    extract_tensors,
    insert_tensors,
    pack_tensors,
    read_numbers,
    receive_tensors,
    receive_value,
    send_value,
)

# optimizers that update each parameter from its own gradient and state only, and do not change the
# gradient (foreach and fused variants may)
_REPEATABLE = (SGD, Adam, AdamW)


#: position of a worker that was to receive the state of trained workers, which are all lost
STATE_LOST = -2

_log = logs.logger(__name__)


class StateLostError(RuntimeError):
    """All workers that had trained are lost, and there is no checkpoint."""


class Replica:
    """Model, optimizer, schedule and progress of one worker."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any,
        scaler: GradScaler | None,
        rate: LearningRate,
        progress: TrainingProgress,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.scheduler, self.scaler = scheduler, scaler
        self.rate, self.progress = rate, progress
        self.script = ScriptState()
        self._received_schedule: Any = None  # for a schedule that the script gives later
        self._allocated: dict[Tensor, list[Tensor]] = {}  # memory for the optimizer's state
        self.has_state = False  # it has trained, or received the state of a worker that has
        self.is_unchecked = False  # it received the whole state, not yet compared by digest
        self.is_from_checkpoint = False  # without state, but with that of a checkpoint
        self.group_has_trained = False  # this worker or another member of its group
        self.is_changed_by_script = False  # parameters change outside the optimizer

    @property
    def is_complete(self) -> bool:
        """Whether training can go on from this state, if no worker has a checked one."""
        return self.has_state or self.is_unchecked

    # as plain values

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint. Tensors are not copied."""
        return {"model": self.model.state_dict(), **self._state_without_model()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._load_without_model(state)

    def _state_without_model(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        # in one order in all workers: `state` is in the order of the first update
        state = optimizer["state"]  # by parameter number
        optimizer["state"] = {
            key: state[key] for key in sorted(state, key=lambda key: (isinstance(key, str), key))
        }
        return {"optimizer": optimizer, **self._counters()}

    def _load_without_model(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self._load_counters(state)
        self.has_state = True

    def _counters(self) -> dict[str, Any]:
        return {
            "scheduler": (
                self._received_schedule if self.scheduler is None else self.scheduler.state_dict()
            ),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "rate": self.rate.state(),
            "progress": self.progress.state(),
            "script": self.script.state(),
        }

    def _load_counters(self, state: dict[str, Any]) -> None:
        if self.scheduler is None:
            self._received_schedule = state["scheduler"]
        elif state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        if self.scaler is not None and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.rate.load(state["rate"])
        self.progress.load(state["progress"])
        self.script.load(state["script"])

    def set_scheduler(self, scheduler: Any) -> None:
        """Takes a schedule that the script made after it had joined."""
        self.scheduler = scheduler
        received, self._received_schedule = self._received_schedule, None
        if received is not None:
            scheduler.load_state_dict(received)

    def warm_up(self) -> None:
        """Makes one step with zero gradients, so that the optimizer allocates its state.

        Joining workers do so before others wait for them. All values are overwritten later.
        """
        saved = copy_to_cpu(self._state_without_model())
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        values = [p.detach().clone() for p in trained]
        for p in trained:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        with contextlib.suppress(Exception):  # some optimizers need more: they are not warmed up
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for p, value in zip(trained, values, strict=True):
                p.copy_(value)
        for p, state in self.optimizer.state.items():
            extract_tensors(state, self._allocated.setdefault(p, []))
        self._load_without_model(saved)
        self.has_state = False

    # parameter by parameter, for `background_transfer`

    @property
    def is_repeatable(self) -> bool:
        """Whether a joining worker can repeat the optimizer's steps, parameter by parameter."""
        groups = self.optimizer.param_groups
        plain = not any(group.get("foreach") or group.get("fused") for group in groups)
        on_cpu = all(p.device.type == "cpu" for p in self.model.parameters())
        known = type(self.optimizer) in _REPEATABLE
        return known and plain and on_cpu and not self.is_changed_by_script

    def describe_parameter(self, p: Tensor, tensors: list[Tensor]) -> Any:
        """A description of a parameter and its optimizer state; appends their tensors."""
        tensors.append(p.detach())
        return [list(p.shape), extract_tensors(dict(self.optimizer.state.get(p, {})), tensors)]

    def allocate_parameter(self, p: Tensor, description: Any, tensors: list[Tensor]) -> None:
        """Appends the tensors in which the described parameter and state are to be received."""
        shape, state = description
        if shape != list(p.shape):
            raise _shape_error()
        tensors.append(p.detach())
        allocated = insert_tensors(state, tensors, p.device, self._allocated.pop(p, []))
        if allocated:
            self.optimizer.state[p] = allocated

    def optimizer_settings(self) -> list[dict[str, Any]]:
        """Learning rate and other settings of each parameter group."""
        groups = self.optimizer.param_groups
        return [{k: v for k, v in group.items() if k != "params"} for group in groups]

    def set_optimizer_settings(self, settings: list[dict[str, Any]]) -> None:
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)

    def final_state(self) -> dict[str, Any]:
        """The values to send after all parameters."""
        return {"settings": self.optimizer_settings(), **self._counters()}

    def load_final_state(self, state: dict[str, Any]) -> None:
        self.set_optimizer_settings(state["settings"])
        self._load_counters(state)
        self._allocated.clear()

    def digest(self) -> int:
        """A digest of all bits of parameters and optimizer state, and of their shapes.

        The host waits once for each device.
        """
        total, tensors = 0, list[Tensor]()
        for p in self.model.parameters():
            total += zlib.crc32(repr(self.describe_parameter(p, tensors)).encode())
        for number in read_numbers([_sum_of_bits(tensor) for tensor in tensors]):
            total = (total * 1_000_003 + number) % (1 << 61)
        return total

    # from worker to worker

    def synchronise(self, group: ProcessGroup, position: int, *, compare: bool = False) -> bool:
        """Makes all members equal to the one with the highest position.

        If no member has trained, the state of rank 0 is used, unless its position is STATE_LOST.
        With `compare`, members of the highest position with another digest than most
        (or of the first) receive the state, too. Returns True if this member received the state.
        """
        positions = group.all_gather(position)
        highest = max(positions)
        self.group_has_trained |= highest >= 0
        if highest >= 0:
            has_state = [other == highest for other in positions]
            if (compare or group.has_device_channel) and sum(has_state) > 1:
                has_state = self._have_equal_state(group, has_state)
        elif positions[0] == STATE_LOST:
            raise StateLostError
        else:
            has_state = [rank == 0 for rank in range(group.size)]
        if group.has_device_channel:
            self._broadcast(group, has_state)
        elif has_state[group.rank]:
            self._send(group, receivers_of(has_state, group.rank))
        else:
            self._receive(group, sender_of(has_state, group.rank))
        self.has_state, self.is_unchecked = True, False
        return not has_state[group.rank]

    def _have_equal_state(self, group: ProcessGroup, has_state: Sequence[bool]) -> list[bool]:
        """Which members have the state that most of them have; ties go to the lowest rank."""
        digests = group.all_gather(self.digest() if has_state[group.rank] else 0)
        counts = Counter(d for d, has in zip(digests, has_state, strict=True) if has)
        ((usual, _),) = counts.most_common(1)
        if len(counts) > 1 and group.rank == 0:
            _log.warning(
                "workers had trained equally far but their state differed: %d of %d keep theirs,"
                " the others receive it",
                counts[usual],
                counts.total(),
            )
        return [has and d == usual for d, has in zip(digests, has_state, strict=True)]

    def _broadcast(self, group: ProcessGroup, has_state: Sequence[bool]) -> None:
        """Sends the state on the device channel, in which all members take part.

        Tensors on the CPU, such as Adam's step counts, are sent as messages.
        """
        source, is_receiver = has_state.index(True), not has_state[group.rank]
        if all(has_state):
            return
        if is_receiver:
            tensors, state = self._allocate(group, source)
        else:
            tensors, header = self._describe()
            state = None
        on_device = [t for t in tensors if group.is_on_device(t)]
        on_host = [t for t in tensors if not group.is_on_device(t)]
        if is_receiver:
            receive_tensors(on_device, lambda part: group.broadcast(part, source))
            receive_tensors(on_host, lambda part: group.receive(part, source))
        elif group.rank == source:
            receivers = [rank for rank, has in enumerate(has_state) if not has]
            sent = send_value(group, header, receivers)
            device_parts = pack_tensors(on_device)
            wait_all([group.broadcast(part, source) for part in device_parts])
            for part in pack_tensors(on_host):
                sent += [(group.send(part, rank), part) for rank in receivers]
            wait_all([work for work, _ in sent])
        else:  # an aborted broadcast leaves garbage: not in this member's own state
            for part in pack_tensors(on_device):
                wait_all([group.broadcast(torch.empty_like(part), source)])
        group.drain()
        if state is not None:
            self._load_without_model(state)

    def _send(self, group: ProcessGroup, receivers: Sequence[int]) -> None:
        if not receivers:
            return
        tensors, header = self._describe()
        works = send_value(group, header, receivers)
        for part in pack_tensors(tensors):
            works += [(group.send(part, rank), part) for rank in receivers]
        wait_all([work for work, _ in works])

    def _receive(self, group: ProcessGroup, source: int) -> None:
        tensors, state = self._allocate(group, source)
        receive_tensors(tensors, lambda part: group.receive(part, source))
        self._load_without_model(state)

    def _describe(self) -> tuple[list[Tensor], dict[str, Any]]:
        """All tensors of the state, and the header that describes them."""
        own, others = self._model_tensors(), list[Tensor]()
        header = extract_tensors(self._state_without_model(), others)
        header["shapes"] = [list(t.shape) for t in own]
        return [*own, *others], header

    def _allocate(self, group: ProcessGroup, source: int) -> tuple[list[Tensor], dict[str, Any]]:
        """Receives the header. Returns the tensors to receive, and the state that holds them."""
        own, others = self._model_tensors(), list[Tensor]()
        header = receive_value(group, source)
        if header["shapes"] != [list(t.shape) for t in own]:
            raise _shape_error()
        # until all has arrived
        self.has_state = self.is_unchecked = self.is_from_checkpoint = False
        allocated = [tensor for tensors in self._allocated.values() for tensor in tensors]
        device = own[0].device if own else torch.device("cpu")
        state = insert_tensors(header, others, device, allocated)
        self._allocated.clear()
        return [*own, *others], state

    def _model_tensors(self) -> list[Tensor]:
        return [t.detach() for t in (*self.model.parameters(), *self.model.buffers())]


def sender_of(has_state: Sequence[bool], rank: int) -> int:
    """The rank from which a worker without state receives it.

    >>> [sender_of([True, True, False, False, False], rank) for rank in (2, 3, 4)]
    [0, 1, 0]
    """
    senders = [r for r, has in enumerate(has_state) if has]
    receivers = [r for r, has in enumerate(has_state) if not has]
    return senders[receivers.index(rank) % len(senders)]


def receivers_of(has_state: Sequence[bool], rank: int) -> list[int]:
    """The ranks to which a worker with state sends it."""
    return [r for r, has in enumerate(has_state) if not has and sender_of(has_state, r) == rank]


def broadcast_buffers(group: ProcessGroup, model: nn.Module, source: int = 0) -> None:
    """Copies one member's buffers to all: statistics of batch norm differ between workers.

    On the CPU the sender does not wait: it sends copies, which the group keeps.
    """
    buffers = [b.detach() for b in model.buffers()]
    if not buffers:
        return
    if group.has_device_channel:
        _broadcast_buffers_on_device(group, buffers, source)
        buffers = [b for b in buffers if not group.is_on_device(b)]
    if group.rank == source:
        parts = pack_tensors([b.clone() for b in buffers])
        others = [rank for rank in range(group.size) if rank != source]
        group.wait_until_sent()  # buffers of the last call
        group.keep_until_sent([group.send(part, to) for part in parts for to in others], parts)
    else:
        receive_tensors(buffers, lambda part: group.receive(part, source))


def _broadcast_buffers_on_device(
    group: ProcessGroup, buffers: Sequence[Tensor], source: int
) -> None:
    # copies: an aborted broadcast leaves garbage
    copies = [b.clone() for b in buffers if group.is_on_device(b)]
    if group.rank == source:
        wait_all([group.broadcast(part, source) for part in pack_tensors(copies)])
        group.drain()
        return
    receive_tensors(copies, lambda part: group.broadcast(part, source))
    group.drain()
    with torch.no_grad():
        for buffer, copy in zip(filter(group.is_on_device, buffers), copies, strict=True):
            buffer.copy_(copy)


def _sum_of_bits(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8:  # a view of another tensor: int64 needs aligned bytes
        flat = flat.clone()
    whole = flat.numel() // 8 * 8
    total = flat[:whole].view(torch.int64).sum()
    return total if whole == flat.numel() else total + flat[whole:].sum()


def _shape_error() -> UserError:
    return UserError(
        "the model of this worker has other shapes than the job's: a script must build"
        " the same model in every worker"
    )
