"""Nodes that come and go, as a launcher with several of them tells it, slot by slot."""

from __future__ import annotations

from ones.control import logs
from ones.control.live.asides import say_again
from ones.control.live.floor import Floor
from ones.control.live.grouping import groups_of
from ones.control.live.jobs import NOW, Kind, LiveJob, gpu_of
from ones.control.live.orders import forget, give_up_rescale
from ones.core import events as ev
from ones.core.cluster import NodeId, NodeState

log = logs.logger(__name__)


def came(floor: Floor, node: NodeId) -> None:
    """With all the slots that the launcher has there by now."""
    slots = [slot for slot in floor.launcher.slots() if slot.node == node]
    gpus = len(slots)
    known = floor.state.cluster.nodes.get(node)
    was_there = known is not None and known.state is not NodeState.DOWN
    if not gpus or (known is not None and was_there and known.gpus == gpus):
        return  # told with the first of its slots
    if was_there:
        gone(floor, node)
    floor.say(ev.NodeUp(NOW, node, gpus, groups_of(slots, floor.group_size)))
    log.info("node up", node=node, gpus=gpus)
    if node in floor.drained:
        floor.say(ev.NodeDraining(NOW, node))
    say_again(floor, node)


def lost(floor: Floor, slot: str) -> None:
    """Nothing runs there any more. A node is gone with the last of its slots."""
    node = gpu_of(slot).node
    known = floor.state.cluster.nodes.get(node)
    if known is None or known.state is NodeState.DOWN:
        return
    if not any(other.node == node for other in floor.launcher.slots()):
        gone(floor, node)


def ending(floor: Floor, slot: str) -> None:
    """It will be gone soon: who is there saves and goes, nobody new comes."""
    node = gpu_of(slot).node
    known = floor.state.cluster.nodes.get(node)
    if known is not None and known.state is NodeState.UP:
        floor.say(ev.NodeDraining(NOW, node))


def gone(floor: Floor, node: NodeId) -> None:
    """The core hears of the node, not of each worker: survivors elsewhere go on by themselves."""
    floor.say(ev.NodeDown(NOW, node))
    log.warning("node lost", node=node)
    for job in list(floor.jobs.values()):
        _without(floor, job, node)


def _without(floor: Floor, job: LiveJob, node: NodeId) -> None:
    hit = [w for w in job.workers.values() if any(gpu.node == node for gpu in w.gpus)]
    for worker in hit:
        del job.workers[worker.launch]
        worker.alive = False
        floor.mailbox.drop(worker.launch)
        floor.last_word.pop(worker.launch, None)
    job.quiet = [w for w in job.quiet if not any(gpu.node == node for gpu in w.gpus)]
    if job.ended:
        if not job.workers:
            forget(floor, job)
        return
    order = job.pending
    if order is None or order.kind is not Kind.RESCALE or order.published:
        return
    if any(order.needs(worker.gpus) for worker in hit):
        give_up_rescale(floor, job, f"node {node} is gone")
