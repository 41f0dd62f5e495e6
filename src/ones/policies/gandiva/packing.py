"""Packing: two jobs on the same GPUs, tried and kept if both together train faster than in turns.

A cluster has it only where GPUs have two slots, in the simulator. A pair of kinds is good if the
measured rates of both, each relative to the kind alone, add up to more than 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ones.core import events as ev
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.bounded_table import set_bounded
from ones.models.kinds import kind_of
from ones.models.packing import GpuPool

#: step times kept, of kinds alone and of pairs
MAX_MEASURED = 200
#: rate that a pair is expected to have before it was tried: better than turns, so it is tried
UNTRIED = 1.01


class FreeDevices:
    """The GPUs of a pool of which no slot is in use; its GPUs are first slots."""

    def __init__(self, cluster: Cluster, pool: GpuPool) -> None:
        self._nodes, self._pool = cluster.nodes, pool
        self._taken: set[Gpu] = set()

    def on(self, node: NodeId) -> list[Gpu]:
        known = self._nodes[node]
        free = set(self._pool.on(node))
        if known.slots > 1:
            first = [Gpu(node, index) for index in range(known.devices)]
            free_ones = [gpu for gpu in first if all(slot in free for slot in self._slots(gpu))]
        else:
            free_ones = self._pool.on(node)
        return [gpu for gpu in free_ones if gpu not in self._taken]

    def are_free(self, gpus: Iterable[Gpu]) -> bool:
        """Whether no other slot of these GPUs is in use."""
        return all(self._first(gpu) in self.on(gpu.node) for gpu in gpus)

    def take(self, gpus: Iterable[Gpu]) -> None:
        self._taken.update(map(self._first, gpus))

    def _first(self, gpu: Gpu) -> Gpu:
        return Gpu(gpu.node, gpu.index % self._nodes[gpu.node].devices)

    def _slots(self, gpu: Gpu) -> list[Gpu]:
        node = self._nodes[gpu.node]
        return [Gpu(gpu.node, i) for i in range(gpu.index % node.devices, node.gpus, node.devices)]


def sibling_gpus(cluster: Cluster, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """The other slots of these GPUs."""

    def sibling(gpu: Gpu) -> Gpu:
        node = cluster.nodes[gpu.node]
        return Gpu(gpu.node, (gpu.index + node.devices) % node.gpus)

    return tuple(sorted(map(sibling, gpus)))


def fit_together(host: JobView, guest: JobView) -> bool:
    """Whether the samples of both fit the memory of a GPU, as far as their limits are known."""
    parts = 0.0
    for job in (host, guest):
        limit = job.local_limit
        held = job.held or job.wanted
        if limit is None:
            return False
        batch = held.largest_part if held is not None else job.job.requested_batch or limit
        parts += min(batch, limit) / limit
    return parts <= 1.0


class PackedPairs:
    """Step times of kinds alone and in pairs, and the jobs that share GPUs now."""

    def __init__(self) -> None:
        self._alone: dict[str, float] = {}  # seconds of a step, by kind, GPUs and batch
        self._together: dict[str, dict[str, float]] = {}  # by pair: the same of each of the two
        self._places: dict[JobId, tuple[Gpu, ...]] = {}
        self._on: dict[Gpu, JobId] = {}

    def follow(self, job: JobId, view: View) -> None:
        """Takes over the GPUs that a job has now."""
        for gpu in self._places.pop(job, ()):
            if self._on.get(gpu) == job:
                del self._on[gpu]
        wanted = view.job(job).wanted if job in view.jobs else None
        if wanted is not None:
            self._places[job] = wanted.gpus
            self._on |= dict.fromkeys(wanted.gpus, job)

    def partner(self, job: JobId, cluster: Cluster) -> JobId | None:
        """The job on the other slots of this job's GPUs."""
        gpus = [gpu for gpu in self._places.get(job, ()) if gpu.node in cluster.nodes]
        others = (self._on.get(gpu) for gpu in sibling_gpus(cluster, gpus))
        return next((other for other in others if other is not None and other != job), None)

    def measure(self, event: ev.ThroughputMeasured, view: View) -> bool:
        """Keeps a measured step time; returns whether the job shares its GPUs."""
        job = view.job(event.job)
        c = event.configuration
        key = f"{kind_of(job.job)}/{c.gpus}/{c.batch}"
        other = self.partner(event.job, view.cluster)
        if other is None or other not in view.jobs:
            set_bounded(self._alone, key, event.step_seconds, MAX_MEASURED)
            return False
        pair = _pair(key, _key(view.job(other)))
        times = self._together.get(pair, {}) | {key: event.step_seconds}
        set_bounded(self._together, pair, times, MAX_MEASURED)
        return True

    def rate(self, host: JobView, guest: JobView) -> float:
        """Sum of the rates of both, relative to each alone; 0 if one was never measured alone."""
        keys = (_key(host), _key(guest))
        if not all(key in self._alone for key in keys):
            return 0.0
        times = self._together.get(_pair(*keys), {})
        if not all(key in times for key in keys):
            return UNTRIED
        return sum(self._alone[key] / max(times[key], 1e-9) for key in keys)

    def save(self) -> dict[str, Any]:
        return {
            "alone": dict(self._alone),
            "together": {pair: dict(times) for pair, times in self._together.items()},
            "places": {job: [list(gpu) for gpu in gpus] for job, gpus in self._places.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._alone = {key: float(seconds) for key, seconds in saved["alone"].items()}
        self._together = {
            pair: {key: float(seconds) for key, seconds in times.items()}
            for pair, times in saved["together"].items()
        }
        self._places, self._on = {}, {}
        for job, gpus in saved["places"].items():
            places = tuple(Gpu(NodeId(node), int(index)) for node, index in gpus)
            self._places[JobId(job)] = places
            self._on |= dict.fromkeys(places, JobId(job))


def _key(job: JobView) -> str:
    """Kind, GPUs and batch: what a step time of a job depends on."""
    held = job.held or job.wanted
    gpus = held.n_gpus if held is not None else max(job.job.requested_gpus, job.job.min_gpus)
    batch = held.batch if held is not None and held.batch else None
    return f"{kind_of(job.job)}/{gpus}/{batch or job.job.requested_batch or job.base_batch}"


def _pair(one: str, other: str) -> str:
    return " + ".join(sorted((one, other)))
