"""Updates the nodes of a restored state to those of the launcher, when a controller starts."""

from __future__ import annotations

from functools import partial

from ones.control.live.engine import LiveEngine
from ones.control.live.gpu_groups import groups_of
from ones.control.live.jobs import NOW, gpu_of
from ones.core import events as ev
from ones.core.cluster import NodeId, NodeState
from ones.core.state import State
from ones.errors import UserError
from ones.launchers import Launcher, Slot


def gone_nodes(state: State, launcher: Launcher) -> list[NodeId]:
    """Nodes that were lost while no controller ran.

    A node with processes of an earlier controller is left out: the launcher reports its loss.
    """
    present = {slot.node for slot in launcher.slots()}
    for process in launcher.running().values():
        if process.alive:
            present |= {gpu_of(slot).node for slot in process.slots}
    nodes = state.cluster.nodes.values()
    return [n.id for n in nodes if n.state is not NodeState.DOWN and n.id not in present]


def bring_up_nodes(engine: LiveEngine, state: State) -> None:
    """Emit the events of nodes that are gone, new or changed since the last controller."""
    for gone in sorted(engine.live.gone_nodes):
        engine.live.post(partial(_lose_node, engine, gone))
    slots_by_node: dict[str, list[Slot]] = {}
    for slot in engine.live.deps.launcher.slots():
        slots_by_node.setdefault(slot.node, []).append(slot)
    for name, slots in slots_by_node.items():
        node, gpus = NodeId(name), len(slots)
        up = ev.NodeUp(NOW, node, gpus, groups_of(slots, engine.live.deps.group_size))
        known = state.cluster.nodes.get(node)
        if known is not None and known.gpus != gpus:
            jobs = sorted(o.job for gpu, o in state.occupants.items() if gpu.node == node)
            if jobs:
                raise UserError(
                    f"node {node} has {gpus} slots now and had {known.gpus}, and job {jobs[0]} runs"
                    f" there: start with {known.gpus} slots, or stop the jobs first (ones down)"
                )
            engine.tell(ev.NodeDown(NOW, node))
        is_other = known is None or (known.gpus, known.groups) != (gpus, up.groups)
        last_state = known.state if known is not None else NodeState.DOWN
        if node in engine.cordons.drained:
            if is_other or last_state is NodeState.DOWN:
                engine.tell(up)
            engine.tell(ev.NodeDraining(NOW, node))
        elif is_other or last_state is not NodeState.UP:
            engine.tell(up)


def _lose_node(engine: LiveEngine, node: NodeId) -> None:
    engine.live.gone_nodes.discard(node)
    engine.nodes.node_lost(node)
