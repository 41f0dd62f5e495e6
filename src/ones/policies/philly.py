"""Philly (ATC'19): first come, first served with skipping; locality is tried, then relaxed.

A job waits for the nearest GPUs at first: one node, or full nodes of one rack. Each retry that
finds none is a failure; after some of them any nodes of one rack will do, then any nodes at all. A
job that does not fit does not block those behind it. No job is interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import floor, inf
from typing import Any, ClassVar

from ones.core import reasons
from ones.core.cluster import Cluster, Gpu, NodeId
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of, size_of
from ones.models.settings import check_settings, setting
from ones.models.sharing import OwnerQuota

#: number of waiting jobs that one decision considers
DEPTH = 100
#: locality levels: the fewest nodes of one rack, any nodes of one rack, any nodes
NEAREST, ONE_RACK, ANYWHERE = range(3)
PLACES = ("the fewest nodes of one rack", "nodes of one rack", "any nodes")


class Philly:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        retry: float = setting(120.0, "seconds of waiting that count as one failure", least=1.0)
        relax_to_rack: int = setting(
            3, "failures after which a job takes any nodes of one rack", least=0
        )
        relax_to_any: int = setting(6, "failures after which a job takes any nodes", least=0)

        def __post_init__(self) -> None:
            check_settings(self)
            if self.relax_to_any < self.relax_to_rack:
                raise ValueError(
                    f"relax_to_any {self.relax_to_any} is below relax_to_rack {self.relax_to_rack}"
                )

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        self._racks: tuple[Cluster, dict[str, list[NodeId]]] = (Cluster(), {})  # of one cluster

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        pass

    def decide(self, view: View) -> Decision:
        if not view.n_waiting:
            return Decision(schedule=view.schedule)
        edit = view.schedule.edit()
        pool, owners = GpuPool(view), OwnerQuota(view, [])
        notes: dict[JobId, str] = {}
        too_large = [inf, inf, inf]  # by level: the smallest size that did not fit
        wake_at = inf
        for job in islice(view.waiting, DEPTH):
            size, level = size_of(job), self._level(job, view.now)
            if not owners.take(job.job.owner, size):
                notes[job.id] = reasons.waiting_over_limit(size)
                continue
            gpus = None
            if size < too_large[level]:
                gpus = self._place(view, pool, size, level)
            if gpus is None:
                owners.take(job.job.owner, -size)
                too_large[level] = min(too_large[level], size)
                notes[job.id] = self._wait_note(size, level, len(pool))
                if level < ANYWHERE and size <= len(pool):
                    wake_at = min(wake_at, self._relaxes_at(job, level))
                continue
            allocation = allocation_of(job, gpus)
            edit.put(job.id, allocation)
            nodes = allocation.n_nodes
            why = f"the first job in the queue that fits, on {nodes} node{'s' * (nodes > 1)}"
            notes[job.id] = reasons.started(size, allocation.batch, why)
        wake_at = max(wake_at, view.now + 1e-3)
        return Decision(schedule=edit.done(), wake_at=wake_at, notes=notes)

    def _failures(self, job: JobView, now: float) -> int:
        """A try every `retry` seconds of waiting, all of which have failed."""
        waited = now - job.job.submitted_at - job.run_seconds_at(now)
        return floor(waited / self._settings.retry + 1e-9)

    def _level(self, job: JobView, now: float) -> int:
        failures = self._failures(job, now)
        if failures >= self._settings.relax_to_any:
            return ANYWHERE
        return ONE_RACK if failures >= self._settings.relax_to_rack else NEAREST

    def _relaxes_at(self, job: JobView, level: int) -> float:
        """When a waiting job accepts places that it does not accept now."""
        settings = self._settings
        failures = settings.relax_to_rack if level == NEAREST else settings.relax_to_any
        return job.job.submitted_at + job.run_seconds + failures * settings.retry

    def _place(self, view: View, pool: GpuPool, size: int, level: int) -> tuple[Gpu, ...] | None:
        if size > len(pool):
            return None
        if level == ANYWHERE:
            return pool.place(size)
        if level == NEAREST and size <= view.cluster.width:
            return pool.place_packed(size)
        racks = self._racks_of(view.cluster)
        if len(racks) <= 1:  # racks are not known: the cluster is one
            return pool.place_packed(size) if level == NEAREST else pool.place(size)
        return _place_in_rack(pool, racks, size, level == NEAREST)

    def _racks_of(self, cluster: Cluster) -> dict[str, list[NodeId]]:
        if self._racks[0] is not cluster:
            racks: dict[str, list[NodeId]] = {}
            for node in cluster.nodes.values():
                racks.setdefault(node.rack, []).append(node.id)
            self._racks = (cluster, racks)
        return self._racks[1]

    def _wait_note(self, size: int, level: int, free: int) -> str:
        if size > free:
            return reasons.waiting_for_gpus(size)
        return reasons.waiting_by_rule(f"it waits for {PLACES[level]}", size)

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass


def _place_in_rack(
    pool: GpuPool, racks: Mapping[str, list[NodeId]], size: int, fewest: bool
) -> tuple[Gpu, ...] | None:
    """GPUs of one rack, the one with the most free GPUs first, on its emptiest nodes."""
    free = {rack: sum(len(pool.on(node)) for node in nodes) for rack, nodes in racks.items()}
    for rack in sorted(racks, key=lambda rack: -free[rack]):
        chosen: list[Gpu] = []
        for node in sorted(racks[rack], key=lambda node: -len(pool.on(node))):
            chosen += pool.on(node)[: size - len(chosen)]
        if len(chosen) < size:
            return None  # the other racks have fewer
        if not fewest or len({gpu.node for gpu in chosen}) <= pool.fewest_nodes(size):
            pool.take(chosen)
            return tuple(sorted(chosen))
    return None
