"""Tiresias (NSDI'19): the job with the least attained service first; lengths are not known.

Jobs have the GPUs and the batch that their users asked for. Attained service is GPUs x time; above
thresholds a job is demoted from queue to queue, and higher queues have precedence. Within a queue
the order is first come, first served (`las`), or by the Gittins index of the lengths seen so far
(`gittins`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.events import Event, JobEnded, JobSubmitted
from ones.core.job import JobId
from ones.core.plan import PlanAdopted, Start, Stop
from ones.core.view import JobView, View
from ones.models.feedback_queues import FeedbackQueues
from ones.models.gittins import GittinsIndex
from ones.models.packing import GpuPool
from ones.models.preemptive_policy import PreemptivePolicy
from ones.models.rigid_jobs import Rank, WaitingGroup, batch_of, size_of
from ones.models.settings import check_settings, setting
from ones.models.strong_scaling import ring_seconds

#: GPU-seconds; "published": the authors' simulator, "tuned": see docs/rivals.md
THRESHOLDS = {"published": (3250.0, 7200.0), "tuned": (1000.0,)}
#: size of the largest tensor relative to all, by model; computed from the authors' lists
SKEWS = {"vgg16": 0.74, "vgg19": 0.72, "alexnet": 0.61, "inceptionv3": 0.14, "resnet50": 0.11}


class Tiresias(PreemptivePolicy):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        variant: str = setting(
            "las",
            "order within a queue: las (by start) or gittins (by the Gittins index)",
            options=("las", "gittins"),
        )
        thresholds: str = setting(
            "tuned",
            "GPU-seconds at which a job moves to the next queue, separated by commas;"
            " or published, tuned, or none (one queue)",
        )
        promote_knob: float = setting(
            0.0,
            "waiting time, as a multiple of the time run, after which a job returns to"
            " the first queue; 0: never",
        )
        gittins_quantum: float = setting(
            0.0, "quantum of the Gittins index in GPU-seconds; 0: the first threshold"
        )
        gittins_cells: int = setting(
            1, "resolution of attained service, in parts of the quantum", least=1
        )
        placement: str = setting(
            "yarn",
            "yarn: wait for the fewest nodes; step-time: only jobs that spreading would"
            " slow wait, others fill gaps; skew: likewise, by the largest tensor; packed: the"
            " fewest nodes with free GPUs, without waiting",
            options=("yarn", "step-time", "skew", "packed"),
        )
        spread_limit: float = setting(1.1, "maximum slowdown of a step by spreading, as a factor")
        pack_limit: float = setting(0.5, "skew above which a job must be on the fewest nodes")

        def __post_init__(self) -> None:
            check_settings(self)
            for name in ("promote_knob", "gittins_quantum"):
                if not 0 <= getattr(self, name) < inf:
                    raise ValueError(f"{name} {getattr(self, name)} is negative")
            _thresholds(self.thresholds)

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        self._settings = self.Settings(**settings)
        self._limits = _thresholds(self._settings.thresholds)
        quantum = self._settings.gittins_quantum or (self._limits[0] if self._limits else 3250.0)
        self._gittins: GittinsIndex | None = None
        if self._settings.variant == "gittins":
            self._gittins = GittinsIndex(quantum, self._settings.gittins_cells)
        self._queues = FeedbackQueues(self._limits, self._settings.promote_knob)
        self._service: dict[JobId, tuple[float, float, int]] = {}  # booked, at, GPUs

    # events

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            actions = event.plan.actions
            self._queues.reorder(
                [action.job for action in actions if isinstance(action, Start)],
                [action.job for action in actions if isinstance(action, Stop)],
            )
            super().observe(event, view)
            return
        for job in self._queues.settle_demoted():
            self.update_job(view, job)
        if isinstance(event, JobSubmitted):
            self._queues.add(event.job.id)
        elif isinstance(event, JobEnded):
            self._queues.remove(event.job)
            booked, at, gpus = self._service.pop(event.job, (0.0, 0.0, 0))
            served = booked + (event.at - at) * gpus
            if self._gittins is not None and served > 0:
                self._gittins.learn(served)
        super().observe(event, view)
        if type(event) in self.decides_on:
            for job, promoted in self._queues.move_due(view):
                if promoted:
                    self.changed_jobs.append(job)
                self.update_job(view, job)

    def update_job(self, view: View, job_id: JobId) -> None:
        if job_id in view.jobs:
            job = view.job(job_id)
            self._queues.update(job, view.now)
            self._service[job_id] = (job.gpu_seconds, job.booked_at, job.occupied)
        super().update_job(view, job_id)

    def wake_at(self, view: View, starting: Iterable[JobView]) -> float:
        return max(self._queues.next_move(view.now, starting), view.now + 1e-3)

    # ranks

    def waiting_key(self, job: JobView) -> tuple[int, Rank]:
        entry = self._queues[job.id]
        if self._gittins is None:
            return entry.queue, (-job.priority, entry.queue, 1, entry.seat)
        cell = self._gittins.cell(job.gpu_seconds - entry.forgotten)
        return entry.queue << 32 | cell, (-job.priority, job.number)

    def waiting_rank(self, group: WaitingGroup, key: Rank, now: float) -> Rank:
        if self._gittins is None:
            return key
        assert isinstance(group.cell, int)
        queue, cell = group.cell >> 32, group.cell & 0xFFFFFFFF
        return (key[0], queue, -self._gittins.of_cell(cell), 1, key[1])

    def running_rank(self, job: JobView, now: float) -> Rank:
        entry = self._queues[job.id]
        if self._gittins is None:
            return (-job.priority, entry.queue, entry.sunk, entry.seat)
        index = self._gittins.of_cell(self._gittins.cell(job.gpu_seconds_at(now) - entry.forgotten))
        return (-job.priority, entry.queue, -index, 0, job.number)

    def ranks_drift(self) -> bool:
        return self._gittins is not None

    # places

    def place(self, view: View, pool: GpuPool, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        packed = self._must_be_packed(view, job, size)
        if packed is None:
            return pool.place(size)
        if not packed:
            return pool.place_in_fragments(size)
        return pool.place_packed(size)

    def _must_be_packed(self, view: View, job: JobView, size: int) -> bool | None:
        """None: the fewest nodes with enough free GPUs, without waiting for fewer."""
        if size == 1 or self._settings.placement == "packed":
            return None
        if self._settings.placement == "yarn":
            return True
        if self._settings.placement == "skew":
            skew = SKEWS.get(job.job.kind.partition("-")[0])
            return None if skew is None else skew > self._settings.pack_limit
        slower = spread_slowdown(job, size, view.cluster.width)
        return None if slower is None else slower > self._settings.spread_limit

    # notes

    def start_why(self, job: JobView) -> str:
        return f"it was next in {self._queue_name(job)}"

    def wait_note(self, job: JobView) -> str:
        rule = f"in {self._queue_name(job)}, behind jobs that used less GPU time"
        return reasons.waiting_by_rule(rule, size_of(job))

    def _queue_name(self, job: JobView) -> str:
        return f"queue {self._queues[job.id].queue + 1} of {len(self._limits) + 1}"

    def save(self) -> dict[str, Any]:
        own = {
            "service": {job: list(served) for job, served in self._service.items()},
            "lengths": list(self._gittins.seen) if self._gittins else [],
        }
        return super().save() | self._queues.save() | own

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._queues.load(saved)
        self._service = {
            JobId(job): (float(booked), float(at), int(gpus))
            for job, (booked, at, gpus) in saved["service"].items()
        }
        if self._gittins is not None:
            self._gittins = GittinsIndex(self._gittins.quantum, self._gittins.cells)
            for length in saved["lengths"]:
                self._gittins.learn(float(length))


def spread_slowdown(job: JobView, size: int, width: int) -> float | None:
    """Step time over several nodes relative to the fewest, measured or from assumed links.

    The published rule uses the largest tensor, because parameter servers divide the work by
    tensors; with all-reduce the bytes count. None: the job was not measured.
    """
    if size > width:
        return 1.0  # it needs several nodes anyway
    batch = batch_of(job, size)
    measured = {
        c.nodes > 1: t.seconds
        for c, t in job.profile.items()
        if c.gpus == size and c.batch == batch
    }
    if job.description is None or not measured:
        return None
    volume = job.description.parameter_bytes
    more = ring_seconds(volume, size, spread=True) - ring_seconds(volume, size, spread=False)
    packed = measured.get(False, measured.get(True, 0.0) - more)
    spread = measured.get(True, packed + more)
    return spread / packed if packed > 0 else inf


def _thresholds(text: str) -> tuple[float, ...]:
    if text in THRESHOLDS:
        return THRESHOLDS[text]
    try:
        limits = tuple(float(part) for part in text.split(",") if text != "none")
    except ValueError:
        limits = (-1.0,)
    if any(b <= a for a, b in zip((0.0, *limits), limits, strict=False)):
        raise ValueError(
            f"thresholds {text!r} are not rising GPU-seconds, published, tuned or none"
        )
    return limits
