"""Nodes that come up, drain and are lost, from the slots that a launcher reports."""

from __future__ import annotations

from ones.control import logs
from ones.control.live.action_runner import ActionRunner
from ones.control.live.cordons import Cordons
from ones.control.live.gpu_groups import groups_of
from ones.control.live.jobs import NOW, LiveJob, gpu_of
from ones.control.live.live_state import LiveState
from ones.core import events as ev
from ones.core import reasons
from ones.core.cluster import NodeId, NodeState
from ones.core.lifecycle import OrderKind

log = logs.logger(__name__)


class NodeEvents:
    def __init__(self, live: LiveState, runner: ActionRunner, cordons: Cordons) -> None:
        self._live, self._runner, self._cordons = live, runner, cordons

    def slot_up(self, node: NodeId) -> None:
        """The node comes up with all slots that the launcher has there by now."""
        live = self._live
        slots = [slot for slot in live.launcher.slots() if slot.node == node]
        gpus = len(slots)
        known = live.state.cluster.nodes.get(node)
        was_up = known is not None and known.state is not NodeState.DOWN
        if not gpus or (known is not None and was_up and known.gpus == gpus):
            return  # reported with the first of its slots
        if was_up:
            self.node_lost(node)
        live.emit(ev.NodeUp(NOW, node, gpus, groups_of(slots, live.deps.group_size)))
        log.info("node up", node=node, gpus=gpus)
        if node in self._cordons.drained:
            live.emit(ev.NodeDraining(NOW, node))
        self._cordons.emit_again(node)

    def slot_lost(self, slot: str) -> None:
        """Handle a lost slot: no process runs there any more. A node is lost with its last slot."""
        node = gpu_of(slot).node
        known = self._live.state.cluster.nodes.get(node)
        if known is None or known.state is NodeState.DOWN:
            return
        if not any(other.node == node for other in self._live.launcher.slots()):
            self.node_lost(node)

    def slot_ending(self, slot: str) -> None:
        """The slot will be lost soon: its workers save and leave, no other worker starts there."""
        node = gpu_of(slot).node
        known = self._live.state.cluster.nodes.get(node)
        if known is not None and known.state is NodeState.UP:
            self._live.emit(ev.NodeDraining(NOW, node))

    def node_lost(self, node: NodeId) -> None:
        """Handle a lost node. The scheduler gets one event for the node, not one for each worker;
        workers on other nodes continue."""
        self._live.emit(ev.NodeDown(NOW, node))
        log.warning("node lost", node=node)
        for job in list(self._live.jobs.values()):
            self._remove_workers(job, node)

    def _remove_workers(self, job: LiveJob, node: NodeId) -> None:
        live = self._live
        hit = [w for w in job.workers.values() if any(gpu.node == node for gpu in w.gpus)]
        for worker in hit:
            live.forget_worker(job, worker)
        job.quiet = [w for w in job.quiet if not any(gpu.node == node for gpu in w.gpus)]
        if job.end_reported:
            if not job.workers:
                self._runner.forget(job)
            return
        order = live.order(job)
        if order is None or order.kind is not OrderKind.RESCALE or job.published(order.plan):
            return
        if any(order.needs(worker.gpus) for worker in hit):
            self._runner.give_up_rescale(job, reasons.node_gone(node))
