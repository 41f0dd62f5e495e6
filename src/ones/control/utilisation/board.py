"""The last sample of each worker, since when it is idle or slow, and the curves of jobs.

The launcher's thread adds samples, the scheduler's thread ends jobs, any thread reads.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ones.control.live.jobs import job_of
from ones.control.readmodels.job_cards import JobCard, WorkerCard
from ones.control.utilisation.curves import CURVES, JobCurves
from ones.wire.samples import SAMPLE_SECONDS, SlotSample

#: age from which a sample says nothing about the present
FRESH_SECONDS = 4.5 * SAMPLE_SECONDS
#: curves of all ended jobs together; those of the jobs that ended first are dropped
MOST_ENDED = 10_000
MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationLimits:
    """When a worker is idle or slow. A time or percentage of 0: never."""

    idle_below: float = 0.05  # share of its GPU, or of its CPUs, that a worker keeps busy
    idle_warn_seconds: float = 30.0 * MINUTE
    idle_end_seconds: float = 0.0
    slow_by: float = 0.3  # part by which the steps of a slow worker are longer than its peers'
    slow_seconds: float = 5.0 * MINUTE


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What is known of the worker on one slot."""

    sample: SlotSample
    at: float
    idle_since: float | None = None
    slowdown: float = 0.0  # its own steps relative to those of its peers; 0: not known
    slow_since: float | None = None


class UtilisationBoard:
    """`is_live`: whether a job has not ended; samples of other jobs are dropped."""

    def __init__(
        self,
        limits: UtilisationLimits,
        now: Callable[[], float],
        is_live: Callable[[str], bool],
    ) -> None:
        self.limits, self._now, self._is_live = limits, now, is_live
        self._lock = threading.Lock()
        self._uses: dict[str, dict[str, WorkerUse]] = defaultdict(dict)  # job -> slot -> use
        self._curves: dict[str, JobCurves] = {}
        self._workers: dict[str, tuple[WorkerCard, ...]] = {}  # of the last card of each job
        self._ended: OrderedDict[str, int] = OrderedDict()  # ended job -> number of its curves
        self._n_ended = 0  # curves of ended jobs

    def take(self, samples: Iterable[SlotSample]) -> None:
        now = self._now()
        with self._lock:
            for sample in samples:
                job = str(job_of(sample.launch))
                if not self._is_live(job):
                    continue
                self._uses[job][sample.slot] = self._use(job, sample, now)
                if job not in self._curves:
                    self._curves[job] = JobCurves(now)
                self._curves[job].add(now, sample)

    def _use(self, job: str, sample: SlotSample, now: float) -> WorkerUse:
        before = self._uses[job].get(sample.slot)
        if before is None or before.sample.launch != sample.launch:
            before = WorkerUse(sample, now)
        idle_since = None
        if sample.utilisation is not None and sample.utilisation < self.limits.idle_below:
            idle_since = now if before.idle_since is None else before.idle_since
        return replace(before, sample=sample, at=now, idle_since=idle_since)

    def on_card(self, card: JobCard) -> None:
        """A job has a new card: only the curves of an ended job stay."""
        if card.id not in self._curves or card.id in self._ended:
            return
        if not card.over and self._workers.get(card.id) is card.workers:
            return  # the workers are the same
        with self._lock:
            uses, curves = self._uses[card.id], self._curves[card.id]
            if card.over:
                del self._uses[card.id]
                self._workers.pop(card.id, None)
                self._ended[card.id] = len(curves.slots)
                self._n_ended += len(curves.slots)
                while self._n_ended > MOST_ENDED:
                    job, count = self._ended.popitem(last=False)
                    del self._curves[job]
                    self._n_ended -= count
                return
            self._workers[card.id] = card.workers
            present = {worker.gpu for worker in card.workers}
            for slot in [slot for slot in uses if slot not in present]:
                del uses[slot]
            curves.drop_former(present)

    # queries

    def uses(self, job: str) -> dict[str, WorkerUse]:
        """The workers of a job with a recent sample, by slot."""
        oldest = self._now() - FRESH_SECONDS
        with self._lock:
            return {s: use for s, use in self._uses.get(job, {}).items() if use.at >= oldest}

    def shown(self, card: JobCard) -> dict[str, Any]:
        """What the workers of a job use now, as keys of its card."""
        uses = {} if card.over else self.uses(card.id)
        idle = self.idle_slots(card.id) if uses else []
        slow = self.slow_slots(card.id) if uses else []
        busy = [u.sample.utilisation for u in uses.values() if u.sample.utilisation is not None]
        memory = [u.sample.memory_mb for u in uses.values() if u.sample.memory_mb is not None]
        power = [u.sample.power_watts for u in uses.values() if u.sample.power_watts is not None]
        return {
            "utilisation": sum(busy) / len(busy) if busy else None,
            "memory_mb": sum(memory) if memory else None,
            "power_watts": sum(power) if power else None,
            "idle_gpus": idle,
            "slow_gpus": slow,
        }

    def all_uses(self) -> dict[str, WorkerUse]:
        """The workers of all jobs with a recent sample, by slot."""
        oldest = self._now() - FRESH_SECONDS
        with self._lock:
            return {
                slot: use
                for uses in self._uses.values()
                for slot, use in uses.items()
                if use.at >= oldest
            }

    def workers(self, job: str) -> list[dict[str, Any]]:
        """What the workers of a job use now."""
        now = self._now()
        return [
            {
                "gpu": slot,
                "utilisation": use.sample.utilisation,
                "memory_mb": use.sample.memory_mb,
                "power_watts": use.sample.power_watts,
                "cpus": use.sample.cpus,
                "step_seconds": use.sample.own_steps.seconds if use.sample.own_steps else None,
                "slowdown": use.slowdown or None,
                "idle_seconds": None if use.idle_since is None else now - use.idle_since,
            }
            for slot, use in sorted(self.uses(job).items())
        ]

    def version(self, job: str) -> int:
        """Changes with the curves of a job; 0: it has none."""
        curves = self._curves.get(job)
        return curves.version if curves is not None else 0

    def curves(self, job: str, most: int) -> dict[str, Any]:
        """The curves of up to `most` slots, and of all slots together."""
        with self._lock:
            curves = self._curves.get(job)
            if curves is None:
                return {"seconds": 0.0, "at": [], "curves": [], "all": None, "gpus": 0}
            at = curves.times()
            known = {
                slot: {name: curves.values(slot, name, len(at)) for name in CURVES}
                for slot in curves.slots
            }
            seconds = curves.seconds
        each = [{"gpu": slot, **values} for slot, values in sorted(known.items())[:most]]
        together = {
            name: [_mean(column) for column in zip(*(v[name] for v in known.values()), strict=True)]
            for name in CURVES
        }
        return {
            "seconds": seconds,
            "at": at,
            "curves": each,
            "all": together,
            "gpus": len(known),
        }

    # judgements, in the thread of `UtilisationWatch`

    def find_slow(self, job: str) -> None:
        """Compares the steps of a job's workers."""
        now, slow_by = self._now(), self.limits.slow_by
        uses = self.uses(job)
        times = {
            slot: steps.seconds / steps.samples
            for slot, use in uses.items()
            if (steps := use.sample.own_steps) is not None
        }
        ordered = sorted(times.values())
        usual = ordered[(len(ordered) - 1) // 2] if len(ordered) > 1 else 0.0
        found: dict[str, tuple[float, float | None]] = {}
        for slot, use in uses.items():
            slowdown = times[slot] / usual if usual and slot in times else 0.0
            is_slow = bool(slow_by) and slowdown > 1.0 + slow_by
            since = now if use.slow_since is None else use.slow_since
            found[slot] = slowdown, since if is_slow else None
        with self._lock:
            known = self._uses.get(job, {})
            for slot, (slowdown, slow_since) in found.items():
                if slot in known and known[slot].sample.launch == uses[slot].sample.launch:
                    known[slot] = replace(known[slot], slowdown=slowdown, slow_since=slow_since)

    def idle_slots(self, job: str) -> list[str]:
        """Slots with a worker that has been idle for the time of a warning."""
        return self._longer(job, self.limits.idle_warn_seconds, lambda use: use.idle_since)

    def slow_slots(self, job: str) -> list[str]:
        """Slots with a worker that has been slow for the time of a warning."""
        return self._longer(job, self.limits.slow_seconds, lambda use: use.slow_since)

    def is_all_idle(self, job: str) -> bool:
        """Whether all workers have been idle for the time after which a job is ended."""
        uses = self.uses(job)
        idle = self._longer(job, self.limits.idle_end_seconds, lambda use: use.idle_since)
        return bool(uses) and len(idle) == len(uses)

    def _longer(
        self, job: str, seconds: float, since: Callable[[WorkerUse], float | None]
    ) -> list[str]:
        if not seconds:
            return []
        limit = self._now() - seconds
        found = ((slot, since(use)) for slot, use in self.uses(job).items())
        return sorted(slot for slot, begin in found if begin is not None and begin <= limit)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
