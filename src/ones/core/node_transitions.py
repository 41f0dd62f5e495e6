"""State changes by events of nodes and GPUs. See `transitions`."""

from __future__ import annotations

from msgspec.structs import replace

from ones.core import events as ev
from ones.core import failures
from ones.core.cluster import Gpu, Node, NodeState
from ones.core.record import JobRecord
from ones.core.state import State
from ones.errors import BrokenEngineError


def node_up(state: State, event: ev.NodeUp) -> bool:
    known = state.cluster.nodes.get(event.node)
    if known is not None and known.state is not NodeState.DOWN and known.gpus != event.gpus:
        raise BrokenEngineError(
            f"node {event.node} has {known.gpus} GPUs and was reported up with {event.gpus}"
        )
    aside = known.aside if known is not None and known.state is not NodeState.DOWN else ()
    rack = event.rack or (known.rack if known is not None else "")
    node = Node(
        event.node, event.gpus, aside=aside, groups=event.groups, slots=event.slots, rack=rack
    )
    state.set_node(node)
    return True


def node_draining(state: State, event: ev.NodeDraining) -> bool:
    node = state.cluster.nodes.get(event.node)
    if node is None or node.state is NodeState.DOWN:
        return state.drop("unknown")
    state.set_node(replace(node, state=NodeState.DRAINING))
    return True


def node_down(state: State, event: ev.NodeDown) -> bool:
    node = state.cluster.nodes.get(event.node)
    if node is None or node.state is NodeState.DOWN:
        return state.drop("unknown")
    hit: dict[str, tuple[JobRecord, list[Gpu]]] = {}
    for gpu in (Gpu(node.id, i) for i in range(node.gpus)):
        occupant = state.occupants.get(gpu)
        if occupant is not None:
            state.vacate(gpu)
        for job in {occupant.job if occupant else None, state.assigned.get(gpu)} - {None}:
            if job in state.records:
                hit.setdefault(job, (state.touch(job), []))[1].append(gpu)
    state.set_node(replace(node, state=NodeState.DOWN))
    for _, (record, gpus) in sorted(hit.items()):
        failures.lose(state, record, gpus, failed=False)
    return True


def gpu_set_aside(state: State, event: ev.GpuSetAside) -> bool:
    node = state.cluster.nodes.get(event.gpu.node)
    if node is None or node.state is NodeState.DOWN or not 0 <= event.gpu.index < node.gpus:
        return state.drop("unknown")
    if event.gpu.index in node.aside:
        return state.drop("duplicate")
    state.set_node(replace(node, aside=tuple(sorted((*node.aside, event.gpu.index)))))
    return True


def gpu_returned(state: State, event: ev.GpuReturned) -> bool:
    node = state.cluster.nodes.get(event.gpu.node)
    if node is None or event.gpu.index not in node.aside:
        return state.drop("unknown")
    state.set_node(replace(node, aside=tuple(i for i in node.aside if i != event.gpu.index)))
    return True
