"""Nodes and GPUs that are not to be used for a while, and why.

A GPU may have several causes at once; it returns when the last one is gone. What operators said
and what was found to fail is kept in the database; who else uses a GPU is looked at anew.
"""

from __future__ import annotations

import json
import logging
from enum import StrEnum

import sqlalchemy as sa

from ones.control import logs
from ones.control.live.floor import Floor
from ones.control.live.jobs import NOW, gpu_of
from ones.control.readmodels.out_of_service import USED_BY
from ones.control.schema import meta
from ones.control.store import Done, Operation, Store, upsert
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.job import JobId
from ones.launchers import Slot
from ones.wire.bounds import Value, WorkerName
from ones.wire.decoding import CodecError, Decoder

KEY = "asides"

log = logs.logger(__name__)


class Cause(StrEnum):
    OUTSIDE = "outside"  # processes that are not ours
    FAILING = "failing"  # see `suspicion`
    OPERATOR = "operator"


_KEPT = (Cause.FAILING, Cause.OPERATOR)


class _Kept(Value, frozen=True, kw_only=True):
    nodes: tuple[NodeId, ...]
    gpus: dict[WorkerName, dict[Cause, str]]


_DECODER: Decoder[_Kept] = Decoder(_Kept, logs=True)
_LOG = logging.getLogger(__name__)


def load(floor: Floor, store: Store) -> None:
    """What was kept. To be called before nodes come up."""
    rows = store.rows(sa.select(meta.c.value).where(meta.c.key == KEY))
    if not rows:
        return
    try:
        kept = _DECODER.decode(rows[0].value)
    except CodecError as problem:
        _LOG.warning("kept list of drained nodes and GPUs cannot be read, ignored: %s", problem)
        return
    floor.drained = set(kept.nodes)
    floor.asides = {
        gpu_of(slot): {cause: why for cause, why in causes.items()}
        for slot, causes in kept.gpus.items()
    }


def agree(floor: Floor, slots: list[Slot]) -> None:
    """At the start, after nodes came up: what the brain was told last, and what is so now."""
    for slot in slots:
        if slot.used_by:
            floor.asides.setdefault(gpu_of(slot.id), {})[Cause.OUTSIDE] = _strangers(slot)
    told = {
        Gpu(node.id, index)
        for node in floor.state.cluster.nodes.values()
        if node.state is not NodeState.DOWN
        for index in node.aside
    }
    here = {gpu_of(slot.id) for slot in slots}
    for gpu in sorted((floor.asides.keys() & here) - told):
        floor.say(ev.GpuSetAside(NOW, gpu, _why(floor, gpu)))
    for gpu in sorted(told - floor.asides.keys()):
        floor.say(ev.GpuReturned(NOW, gpu))


def say_again(floor: Floor, node: NodeId) -> None:
    """A node is back: what is wrong with GPUs of it still is."""
    for gpu in sorted(gpu for gpu in floor.asides if gpu.node == node):
        floor.say(ev.GpuSetAside(NOW, gpu, _why(floor, gpu)))


def drain(floor: Floor, node: NodeId, done: Done) -> None:
    floor.drained.add(node)
    floor.say(ev.NodeDraining(NOW, node), [_kept(floor)], done)


def undrain(floor: Floor, node: NodeId, done: Done) -> None:
    floor.drained.discard(node)
    known = floor.state.cluster.nodes[node]
    floor.say(ev.NodeUp(NOW, node, known.gpus, known.groups), [_kept(floor)], done)


def set_aside(floor: Floor, gpu: Gpu, cause: Cause, why: str, done: Done | None = None) -> None:
    causes = floor.asides.setdefault(gpu, {})
    is_news = not causes
    causes[cause] = why
    if is_news:
        log.warning("GPU out of service", gpu=str(gpu), cause=str(cause), reason=why)
        floor.say(ev.GpuSetAside(NOW, gpu, why), [_kept(floor)], done)
    else:
        floor.store.write(operations=[_kept(floor)], done=done)


def take_back(floor: Floor, gpu: Gpu, cause: Cause, done: Done | None = None) -> None:
    """One cause is gone; an operator's word takes a suspicion back as well."""
    causes = floor.asides.get(gpu, {})
    was_aside = bool(causes)
    causes.pop(cause, None)
    if cause is Cause.OPERATOR:
        causes.pop(Cause.FAILING, None)
        floor.suspicion.clear(gpu)
    if was_aside and not causes:
        del floor.asides[gpu]
        log.info("GPU back in service", gpu=str(gpu))
        floor.say(ev.GpuReturned(NOW, gpu), [_kept(floor)], done)
    else:
        floor.store.write(operations=[_kept(floor)], done=done)


def used(floor: Floor, slot: Slot) -> None:
    """Strangers have come to a GPU, or gone."""
    gpu = gpu_of(slot.id)
    if slot.used_by:
        set_aside(floor, gpu, Cause.OUTSIDE, _strangers(slot))
    elif Cause.OUTSIDE in floor.asides.get(gpu, {}):
        take_back(floor, gpu, Cause.OUTSIDE)


def died_on(floor: Floor, gpu: Gpu, job: JobId, signal: int | None = None) -> None:
    """A worker was lost there: was it the GPU? Half of the GPUs stay, whatever happens to them:
    where all fail it is something else."""
    why = floor.suspicion.died(gpu, job, signal=signal)
    failing = sum(Cause.FAILING in causes for causes in floor.asides.values())
    if why and 2 * (failing + 1) <= floor.state.cluster.n_gpus:
        set_aside(floor, gpu, Cause.FAILING, why)


def _strangers(slot: Slot) -> str:
    return f"{USED_BY}{', '.join(slot.used_by)}"


def reasons(floor: Floor) -> dict[Gpu, str]:
    """Of all GPUs that are not used. For any thread."""
    return {gpu: "; ".join(list(causes.values())) for gpu, causes in list(floor.asides.items())}


def _why(floor: Floor, gpu: Gpu) -> str:
    return "; ".join(floor.asides[gpu].values())


def _kept(floor: Floor) -> Operation:
    gpus = {
        str(gpu): kept
        for gpu, causes in floor.asides.items()
        if (kept := {str(cause): why for cause, why in causes.items() if cause in _KEPT})
    }
    text = json.dumps({"nodes": sorted(floor.drained), "gpus": gpus})
    return upsert(meta, {"key": KEY, "value": text})
