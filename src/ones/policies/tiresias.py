"""Tiresias (NSDI'19): who has had least goes first, with no knowledge of lengths.

Jobs have the GPUs and the batch that their users asked for. Attained service is GPUs x
time; as it grows past thresholds a job sinks from queue to queue, and lower queues yield
to higher ones. Within a queue it is first come, first served (`las`), or by the Gittins
index of the lengths seen so far (`gittins`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import Any

from ones.core.cluster import Gpu
from ones.core.events import Event, JobEnded, JobSubmitted
from ones.core.job import JobId
from ones.core.plan import PlanAdopted, Start, Stop
from ones.core.view import JobView, View
from ones.models.gittins import Gittins
from ones.models.interrupting import Interrupting
from ones.models.packing import Room
from ones.models.rigid import Group, Rank, batch_of, size_of
from ones.models.strong_scaling import ring_seconds

#: GPU-seconds; "published" is the authors' simulator, "tuned" what docs/rivals.md tells of
THRESHOLDS = {"published": (3250.0, 7200.0), "tuned": (1000.0,)}
#: largest tensor in proportion to all of them, by model; computed from the authors' lists
SKEWS = {"vgg16": 0.74, "vgg19": 0.72, "alexnet": 0.61, "inceptionv3": 0.14, "resnet50": 0.11}
PLACEMENTS = ("yarn", "step-time", "skew", "packed")
#: a timer that is later than this was not waited for
ON_TIME_SECONDS = 1.0


@dataclass(slots=True)
class _Seat:
    """Where a job stands, and since when."""

    queue: int = 0
    seat: int = 0  # within its queue; smaller goes first
    sunk: bool = False  # just now, so it is behind those who wait in its new queue
    forgotten: float = 0.0  # GPU-seconds before its last promotion
    forgotten_run: float = 0.0
    waits_since: float = inf
    due: float = inf  # when it sinks or rises, if nothing happens to it


class Tiresias(Interrupting):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        variant: str = field(
            default="las",
            metadata={
                "help": "order within a queue: las (by start) or gittins (by the Gittins index)",
                "options": ("las", "gittins"),
            },
        )
        thresholds: str = field(
            default="tuned",
            metadata={
                "help": "GPU-seconds at which a job sinks to the next queue, with commas between;"
                " or published, or tuned; none: one queue"
            },
        )
        promote_knob: float = field(
            default=0.0,
            metadata={
                "help": "a job that has waited so many times what it has run goes back to the"
                " first queue; 0: never"
            },
        )
        gittins_quantum: float = field(
            default=0.0,
            metadata={"help": "GPU-seconds that the index looks ahead; 0: the first threshold"},
        )
        gittins_cells: int = field(
            default=1,
            metadata={"help": "parts of that quantum in which attained service is told apart"},
        )
        placement: str = field(
            default="yarn",
            metadata={
                "help": "yarn: everybody waits for the fewest nodes it fits on; step-time: only a"
                " job that spreading would slow, others fill gaps; skew: likewise, by the largest"
                " tensor; packed: nobody waits, the fewest nodes that have room",
                "options": PLACEMENTS,
            },
        )
        spread_limit: float = field(
            default=1.1, metadata={"help": "step time spread / packed that is still borne"}
        )
        pack_limit: float = field(
            default=0.5, metadata={"help": "skew above which a job must be packed"}
        )

        def __post_init__(self) -> None:
            for name, options in (
                ("variant", ("las", "gittins")),
                ("placement", PLACEMENTS),
            ):
                if getattr(self, name) not in options:
                    raise ValueError(
                        f"{name} {getattr(self, name)!r} is not one of {', '.join(options)}"
                    )
            for name in ("promote_knob", "gittins_quantum"):
                if not 0 <= getattr(self, name) < inf:
                    raise ValueError(f"{name} {getattr(self, name)} is negative")
            if self.gittins_cells < 1:
                raise ValueError(f"gittins_cells {self.gittins_cells} is not at least 1")
            _thresholds(self.thresholds)

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        super().__init__()
        self._settings = self.Settings(**settings)
        self._limits = _thresholds(self._settings.thresholds)
        quantum = self._settings.gittins_quantum or (self._limits[0] if self._limits else 3250.0)
        self._gittins: Gittins | None = None
        if self._settings.variant == "gittins":
            self._gittins = Gittins(quantum, self._settings.gittins_cells)
        self._seats: dict[JobId, _Seat] = {}
        self._service: dict[JobId, tuple[float, float, int]] = {}  # booked, at, GPUs
        self._front, self._tail = 0, 0
        self._sunk: list[JobId] = []  # by the last event
        self._timers: list[tuple[float, JobId]] = []

    # what it learns

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        if isinstance(event, PlanAdopted):
            self._reseat(event)
            super().observe(event, view)
            return
        self._settle_the_sunk(view)
        if isinstance(event, JobSubmitted):
            self._seats[event.job.id] = _Seat(seat=self._last())
        elif isinstance(event, JobEnded):
            self._seats.pop(event.job, None)
            booked, at, gpus = self._service.pop(event.job, (0.0, 0.0, 0))
            served = booked + (event.at - at) * gpus
            if self._gittins is not None and served > 0:
                self._gittins.learn(served)
        super().observe(event, view)
        if type(event) in self.decides_on:
            self._sink_and_rise(view)

    def look_at(self, view: View, job_id: JobId) -> None:
        if job_id in view.jobs:
            job = view.job(job_id)
            seat = self._seats.setdefault(job_id, _Seat())
            waits = job.wanted is None and not job.pinned
            seat.waits_since = min(seat.waits_since, view.now) if waits else inf
            self._service[job_id] = (job.gpu_seconds, job.booked_at, job.occupied)
            self._set_timer(job_id, self._due(job, seat))
        super().look_at(view, job_id)

    def _reseat(self, adopted: PlanAdopted) -> None:
        """Who is started comes behind those who run; who is interrupted, before those who wait."""
        stopped = []
        for action in adopted.plan.actions:
            seat = self._seats.get(action.job)
            if seat is None:
                continue
            if isinstance(action, Start):
                seat.seat = self._last()
            elif isinstance(action, Stop):
                stopped.append(seat)
        for seat in sorted(stopped, key=lambda s: s.seat, reverse=True):
            self._front -= 1
            seat.seat = self._front

    def _settle_the_sunk(self, view: View) -> None:
        """Who sank before this event and still runs has its seat among those who run."""
        sunk, self._sunk = self._sunk, []
        for job in sunk:
            if job in self._seats:
                self._seats[job].sunk = False
                self.look_at(view, job)

    def _last(self) -> int:
        self._tail += 1
        return self._tail

    # queues

    def _attained(self, job: JobView, now: float) -> float:
        return job.gpu_seconds_at(now) - self._seats[job.id].forgotten

    def _due(self, job: JobView, seat: _Seat) -> float:
        """When it sinks (it runs) or rises (it waits), if nothing happens to it."""
        if job.occupied and seat.queue < len(self._limits):
            left = self._limits[seat.queue] - (job.gpu_seconds - seat.forgotten)
            return job.booked_at + left / job.occupied
        knob, ran = self._settings.promote_knob, job.run_seconds - seat.forgotten_run
        if knob and seat.queue and seat.waits_since < inf and ran > 0:
            return seat.waits_since + knob * ran
        return inf

    def _set_timer(self, job: JobId, due: float) -> None:
        if due != self._seats[job].due:
            self._seats[job].due = due
            if due < inf:
                heappush(self._timers, (due, job))

    def _sink_and_rise(self, view: View) -> None:
        while self._timers and self._timers[0][0] <= view.now:
            due, job_id = heappop(self._timers)
            seat = self._seats.get(job_id)
            if seat is None or seat.due != due or job_id not in view.jobs:
                continue  # something has happened to it since
            job = view.job(job_id)
            seat.due = inf
            if job.occupied:
                seat.queue += 1
                seat.seat = self._last()
                # if nobody asked when it was due, nobody waited: then it has kept its place
                if view.now - due <= ON_TIME_SECONDS:
                    seat.sunk = True
                    self._sunk.append(job_id)
            else:
                seat.queue, seat.seat = 0, self._last()
                seat.forgotten = job.gpu_seconds_at(view.now)
                seat.forgotten_run = job.run_seconds_at(view.now)
                seat.waits_since = view.now
                self.news.append(job_id)
            self.look_at(view, job_id)

    def wake_at(self, view: View, starting: Iterable[JobView]) -> float:
        while self._timers and self._timers[0] != self._timer_of(self._timers[0][1]):
            heappop(self._timers)  # void: forgetting it changes nothing
        due = self._timers[0][0] if self._timers else inf
        for job in starting:  # has no timer yet: when it could sink at the earliest
            seat = self._seats[job.id]
            if seat.queue < len(self._limits):
                left = self._limits[seat.queue] - (job.gpu_seconds - seat.forgotten)
                due = min(due, view.now + left / size_of(job))
        return max(due, view.now + 1e-3)

    def _timer_of(self, job: JobId) -> tuple[float, JobId]:
        return (self._seats[job].due if job in self._seats else inf, job)

    # ranks

    def waiting_key(self, job: JobView) -> tuple[int, Rank]:
        seat = self._seats[job.id]
        if self._gittins is None:
            return seat.queue, (-job.priority, seat.queue, 1, seat.seat)
        cell = self._gittins.cell(job.gpu_seconds - seat.forgotten)
        return seat.queue << 32 | cell, (-job.priority, job.number)

    def waiting_rank(self, group: Group, key: Rank, now: float) -> Rank:
        if self._gittins is None:
            return key
        queue, cell = group.cell >> 32, group.cell & 0xFFFFFFFF
        return (key[0], queue, -self._gittins.of_cell(cell), 1, key[1])

    def running_rank(self, job: JobView, now: float) -> Rank:
        seat = self._seats[job.id]
        if self._gittins is None:
            return (-job.priority, seat.queue, seat.sunk, seat.seat)
        index = self._gittins.of_cell(self._gittins.cell(self._attained(job, now)))
        return (-job.priority, seat.queue, -index, 0, job.number)

    def ranks_drift(self) -> bool:
        return self._gittins is not None

    # places

    def place(self, view: View, room: Room, job: JobView, size: int) -> tuple[Gpu, ...] | None:
        must = self._must_be_packed(view, job, size)
        if must is None:
            return room.place(size)
        if not must:
            return room.place_in_fragments(size)
        return room.place_packed(size)

    def _must_be_packed(self, view: View, job: JobView, size: int) -> bool | None:
        """None: the fewest nodes that have room, without waiting for fewer."""
        if size == 1 or self._settings.placement == "packed":
            return None
        if self._settings.placement == "yarn":
            return True
        if self._settings.placement == "skew":
            skew = SKEWS.get(job.job.kind.partition("-")[0])
            return None if skew is None else skew > self._settings.pack_limit
        slower = spread_slowdown(job, size, view.cluster.width)
        return None if slower is None else slower > self._settings.spread_limit

    # words

    def start_note(self, job: JobView, nodes: int) -> str:
        return f"its turn in {self._queue(job)}: {_gpus(job, nodes)}"

    def wait_note(self, job: JobView) -> str:
        size = size_of(job)
        return f"waits in {self._queue(job)} for {size} {'GPU' if size == 1 else 'GPUs'}"

    def _queue(self, job: JobView) -> str:
        return f"queue {self._seats[job.id].queue + 1} of {len(self._limits) + 1}"

    def save(self) -> dict[str, Any]:
        return super().save() | {
            "seats": {
                job: {k: v if v != inf else None for k, v in asdict(seat).items()}
                for job, seat in self._seats.items()
            },
            "service": {job: list(served) for job, served in self._service.items()},
            "front": self._front,
            "tail": self._tail,
            "sunk": list(self._sunk),
            "lengths": list(self._gittins.seen) if self._gittins else [],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._seats = {JobId(job): _Seat(**_finite(seat)) for job, seat in saved["seats"].items()}
        self._service = {
            JobId(job): (float(booked), float(at), int(gpus))
            for job, (booked, at, gpus) in saved["service"].items()
        }
        self._front, self._tail = int(saved["front"]), int(saved["tail"])
        self._sunk = [JobId(job) for job in saved["sunk"]]
        self._timers = sorted((s.due, job) for job, s in self._seats.items() if s.due < inf)
        if self._gittins is not None:
            self._gittins = Gittins(self._gittins.quantum, self._gittins.cells)
            for length in saved["lengths"]:
                self._gittins.learn(float(length))


def spread_slowdown(job: JobView, size: int, width: int) -> float | None:
    """Step time over several nodes / on the fewest, measured or else from a prior for the links.

    The published rule is about the largest tensor, because parameter servers divide the work by
    tensors; with all-reduce it is bytes that count. None: the job has not been measured.
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


def _finite(saved: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: it was saved as nothing."""
    return {name: inf if value is None else value for name, value in saved.items()}


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


def _gpus(job: JobView, nodes: int) -> str:
    size = size_of(job)
    return f"{size} {'GPU' if size == 1 else 'GPUs'} on {nodes} {'node' if nodes == 1 else 'nodes'}"
