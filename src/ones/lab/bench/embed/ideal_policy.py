"""An idealised rival: it knows the true speed and length of jobs, and divides GPUs exactly.

Speeds, gradient noise and remaining work are true. Flow weights, the cost of a change and the
exact division are those of `ones`. The difference to `ones` is the cost of learning and of all
that is not in the division. The policy is no bound: the weights are a heuristic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ones.core import Allocation, Event, Gpu, JobId, JobView, PlanAdopted, View
from ones.core import events as ev
from ones.core.policy import Decision
from ones.core.schedule import ScheduleEdit
from ones.lab.bench.embed.simulator import TickJob
from ones.models.allocation import exact
from ones.models.packing import GpuPool
from ones.policies.ones.score.flow import flow_weights, usual_sizes

Floats = NDArray[np.float64]

#: expected time until the next change of a job
STAY_SECONDS = 300.0
AGEING = 0.25
_BATCHES = 24  # tried for each size
_NEVER = 1e9  # cost of a size that is not possible


class IdealPolicy:
    decides_on: ClassVar[frozenset[type[Event]]] = frozenset({ev.Woke})
    native_mechanism: ClassVar[str] = "elastic"

    def __init__(self, truth: Mapping[JobId, TickJob], cost: float) -> None:
        self._truth, self._cost = truth, cost

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        pass

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        pass

    def decide(self, view: View) -> Decision:
        jobs = [job for job in view.jobs.values() if not job.pinned]
        held = [job.wanted.n_gpus if job.wanted else 0 for job in jobs]
        gpus = len(view.free) + sum(held)
        if not jobs or not gpus:
            return Decision(schedule=view.schedule)
        per_node = view.cluster.width
        sizes = usual_sizes(gpus, per_node)
        best = [[self._best(job, int(n), per_node) for n in sizes] for job in jobs]
        rates = np.maximum.accumulate([[rate for _, rate in row] for row in best], axis=1)
        counts = self._divided(view, jobs, np.array(held), sizes, rates, gpus)
        room, edit = GpuPool(view), view.schedule.edit()
        changed = [i for i in range(len(jobs)) if counts[i] != held[i]]
        for i in changed:
            wanted = jobs[i].wanted
            if wanted is not None:
                room.release(wanted.gpus)
                edit.drop(jobs[i].id)
        for i in sorted(changed, key=lambda i: -counts[i]):
            if counts[i]:
                places = room.place(int(counts[i]))
                assert places is not None, "the sizes exceed the GPUs"
                batch = best[i][_place(sizes, int(counts[i]))][0]
                edit.put(jobs[i].id, _allocation(jobs[i], places, batch))
        for i in set(range(len(jobs))) - set(changed):
            self._rebatch(jobs[i], edit, per_node)
        return Decision(schedule=edit.done())

    def _best(self, job: JobView, gpus: int, per_node: int) -> tuple[int, float]:
        """The batch of the best goodput on packed nodes, and that goodput."""
        t = self._truth[job.id]
        least = max(t.kind.base_batch, gpus)
        most = max(least, gpus * t.kind.fits)
        batches = np.unique(np.geomspace(least, most, _BATCHES).astype(int))
        rates = [t.rate(gpus, -(-gpus // per_node), int(batch)) for batch in batches]
        i = int(np.argmax(rates))
        return int(batches[i]), rates[i]

    def _divided(
        self,
        view: View,
        jobs: list[JobView],
        held: NDArray[np.int64],
        sizes: NDArray[np.int64],
        rates: Floats,
        gpus: int,
    ) -> NDArray[np.int32]:
        speedups = rates / rates[:, :1]
        truth = [self._truth[job.id] for job in jobs]
        left = np.array([t.needed - t.work for t in truth]) / rates[:, 0]
        weights = flow_weights(
            left[None],
            speedups,
            sizes,
            gpus,
            done_seconds=np.array([t.work for t in truth]) / rates[:, 0],
            ages=np.array([view.now - job.job.submitted_at for job in jobs]),
            ageing=AGEING,
        )[0]
        table = np.full((len(jobs), gpus + 1), _NEVER)
        for i, speedup in enumerate(speedups):
            table[i, sizes] = -weights[i] * self._after_a_change(speedup, left[i], int(held[i]))
            table[i, 0] = 0.0
            if held[i]:
                now = weights[i] * speedup[_place(sizes, int(held[i]))]
                table[i, held[i]] = -now
                table[i, 0] = now * self._cost / (STAY_SECONDS + self._cost)
        one, all_ = np.ones(len(jobs), np.int32), np.full(len(jobs), gpus, np.int32)
        return exact(table, one, all_, gpus, use_all=False)

    def _after_a_change(self, speedup: Floats, left: float, held: int) -> Floats:
        """Speed with the pause of a change counted in; a start costs nothing."""
        if not held:
            return speedup
        stay = np.minimum(STAY_SECONDS, left / speedup)
        return np.asarray(speedup * stay / (stay + self._cost))

    def _rebatch(self, job: JobView, edit: ScheduleEdit, per_node: int) -> None:
        """Changes the batch on the same GPUs if that pays before the next change."""
        if job.wanted is None or job.description is None:
            return
        t, n = self._truth[job.id], job.wanted.n_gpus
        batch, rate = self._best(job, n, per_node)
        present = t.rate(n, job.wanted.n_nodes, job.wanted.batch)
        stay = min(STAY_SECONDS, (t.needed - t.work) / rate)
        if rate * stay / (stay + self._cost) > present:
            edit.put(job.id, _allocation(job, job.wanted.gpus, batch))


def _place(sizes: NDArray[np.int64], gpus: int) -> int:
    return int(np.searchsorted(sizes, gpus, side="right")) - 1


def _allocation(job: JobView, gpus: tuple[Gpu, ...], batch: int) -> Allocation:
    if job.description is None:
        return Allocation.as_scripted(gpus)
    return Allocation.even(gpus, batch, job.local_limit)
