"""Drained nodes and cordoned GPUs, with the causes.

A GPU may be cordoned for several causes at once; it returns when the last one is gone. Cordons by
operators and of failing GPUs are stored in the database; use by other processes is measured again
after a restart.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from msgspec import field

from ones.control import logs
from ones.control.live.gpu_health import GpuHealth
from ones.control.live.jobs import NOW, gpu_of
from ones.control.live.live_state import LiveState
from ones.control.persistence import CordonsChanged, Done
from ones.control.readmodels.out_of_service import USED_BY
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.launchers import Slot
from ones.wire.bounds import Value, WorkerName
from ones.wire.decoding import CodecError, Decoder

log = logs.logger(__name__)


class Cause(StrEnum):
    OUTSIDE = "outside"  # used by processes outside ONES
    FAILING = "failing"  # see `gpu_health`
    OPERATOR = "operator"


_KEPT = (Cause.FAILING, Cause.OPERATOR)


class _Kept(Value, frozen=True, kw_only=True):
    nodes: tuple[NodeId, ...]
    gpus: dict[WorkerName, dict[Cause, str]]
    why: dict[NodeId, str] = field(default_factory=dict)  # why a node was drained


_DECODER: Decoder[_Kept] = Decoder(_Kept, logs=True)


class Cordons:
    def __init__(self, live: LiveState) -> None:
        self._live = live
        self.health = GpuHealth()
        self.drained: dict[NodeId, str] = {}  # by operators: node -> reason
        self.gpus: dict[Gpu, dict[str, str]] = {}  # cordoned: cause -> reason

    def load(self, text: str) -> None:
        """Load the cordons that an earlier controller stored. To be called before nodes come up."""
        try:
            kept = _DECODER.decode(text)
        except CodecError as problem:
            log.warning("kept list of drained nodes and GPUs not read", error=str(problem))
            return
        self.drained = {node: kept.why.get(node, "") for node in kept.nodes}
        self.gpus = {
            gpu_of(slot): {cause: why for cause, why in causes.items()}
            for slot, causes in kept.gpus.items()
        }

    def reconcile(self, slots: list[Slot]) -> None:
        """At the start, after nodes came up: emit what differs from the scheduler's state."""
        live = self._live
        for slot in slots:
            if slot.used_by:
                self.gpus.setdefault(gpu_of(slot.id), {})[Cause.OUTSIDE] = _users(slot)
        already_cordoned = {  # by the scheduler's state
            Gpu(node.id, index)
            for node in live.state.cluster.nodes.values()
            if node.state is not NodeState.DOWN
            for index in node.aside
        }
        here = {gpu_of(slot.id) for slot in slots}
        for gpu in sorted((self.gpus.keys() & here) - already_cordoned):
            live.emit(ev.GpuSetAside(NOW, gpu, self._why(gpu)))
        for gpu in sorted(already_cordoned - self.gpus.keys()):
            live.emit(ev.GpuReturned(NOW, gpu))

    def emit_again(self, node: NodeId) -> None:
        """Emit the cordons of a node that is back: its GPUs are still cordoned."""
        for gpu in sorted(gpu for gpu in self.gpus if gpu.node == node):
            self._live.emit(ev.GpuSetAside(NOW, gpu, self._why(gpu)))

    def drain(self, node: NodeId, why: str, done: Done) -> None:
        self.drained[node] = why
        self._live.emit(ev.NodeDraining(NOW, node), [self._kept()], done)

    def undrain(self, node: NodeId, done: Done) -> None:
        self.drained.pop(node, None)
        known = self._live.state.cluster.nodes[node]
        up = ev.NodeUp(NOW, node, known.gpus, known.groups)
        self._live.emit(up, [self._kept()], done)

    def cordon(self, gpu: Gpu, cause: Cause, why: str, done: Done | None = None) -> None:
        causes = self.gpus.setdefault(gpu, {})
        is_new = not causes
        causes[cause] = why
        if is_new:
            log.warning("GPU out of service", gpu=str(gpu), cause=str(cause), reason=why)
            self._live.emit(ev.GpuSetAside(NOW, gpu, why), [self._kept()], done)
        else:
            self._live.store.write(operations=[self._kept()], done=done)

    def uncordon(self, gpu: Gpu, cause: Cause, done: Done | None = None) -> None:
        """Remove one cause. An operator also removes the finding that the GPU fails."""
        causes = self.gpus.get(gpu, {})
        was_cordoned = bool(causes)
        causes.pop(cause, None)
        if cause is Cause.OPERATOR:
            causes.pop(Cause.FAILING, None)
            self.health.clear(gpu)
        if was_cordoned and not causes:
            del self.gpus[gpu]
            log.info("GPU back in service", gpu=str(gpu))
            self._live.emit(ev.GpuReturned(NOW, gpu), [self._kept()], done)
        else:
            self._live.store.write(operations=[self._kept()], done=done)

    def slot_used(self, slot: Slot) -> None:
        """Other processes have begun to use a GPU, or stopped."""
        gpu = gpu_of(slot.id)
        if slot.used_by:
            self.cordon(gpu, Cause.OUTSIDE, _users(slot))
        elif Cause.OUTSIDE in self.gpus.get(gpu, {}):
            self.uncordon(gpu, Cause.OUTSIDE)

    def worker_died(self, gpu: Gpu, job: JobId, signal: int | None = None) -> None:
        """Cordon the GPU if it has failed too often. At most half of the GPUs are cordoned so:
        if all fail, the cause is not a GPU."""
        why = self.health.died(gpu, job, signal=signal)
        failing = sum(Cause.FAILING in causes for causes in self.gpus.values())
        if why and 2 * (failing + 1) <= self._live.state.cluster.n_gpus:
            self.cordon(gpu, Cause.FAILING, why)

    def reasons(self) -> dict[Gpu, str]:
        """The causes of each cordon, as one text. For any thread."""
        return {gpu: "; ".join(list(causes.values())) for gpu, causes in list(self.gpus.items())}

    def _why(self, gpu: Gpu) -> str:
        return "; ".join(self.gpus[gpu].values())

    def _kept(self) -> CordonsChanged:
        gpus = {
            str(gpu): kept
            for gpu, causes in self.gpus.items()
            if (kept := {str(cause): why for cause, why in causes.items() if cause in _KEPT})
        }
        stored: dict[str, Any] = {"nodes": sorted(self.drained), "gpus": gpus, "why": self.drained}
        return CordonsChanged(json.dumps(stored))


def _users(slot: Slot) -> str:
    return f"{USED_BY}{', '.join(slot.used_by)}"
