"""DeepRM (HotNets 2016): a network starts one of the first ten waiting jobs, or waits.

Sizes and batches are as requested, and no job is interrupted. The network observes how many GPUs
will be busy in the next time steps, as predicted, and for each waiting job its size, its predicted
length and how long it has waited. It is asked again until it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from math import log1p
from typing import Any, ClassVar

import numpy as np

from ones.core import reasons
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.completed_lengths import CompletedLengths
from ones.models.packing import GpuPool
from ones.models.rigid_jobs import allocation_of, size_of
from ones.models.seat_network import Floats, SeatChooser, SeatNetwork, SeatObservation, TrainedSeats
from ones.models.settings import setting
from ones.models.sharing import OwnerQuota

SEATS = 10  # waiting jobs in a decision (M of the publication)
HORIZON, STEP_SECONDS = 20, 60.0  # time steps ahead (the publication: 20 steps)
ROWS = 3  # features of a waiting job
HIDDEN = 20  # units (the publication's network)
UNKNOWN_SECONDS = 300.0  # length of a job before any has completed
NETWORK = SeatNetwork(inputs=HORIZON + SEATS * ROWS + 1, hidden=HIDDEN, seats=SEATS)


@cache
def shipped() -> TrainedSeats:
    return NETWORK.parse(
        (files("ones.policies.deeprm") / "weights.json").read_text(), "weights.json"
    )


class DeepRm:
    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "checkpoint"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        sampled: bool = setting(False, "draw choices at random instead of the most probable")
        weights: str = setting(
            "", "file of `ones drl train --policy deeprm`; empty: the shipped weights"
        )

    def __init__(self, *, seed: int = 0, trained: Floats | None = None, **settings: Any) -> None:
        """`trained`: weights in place of a file, for training."""
        chosen = self.Settings(**settings)
        weights = trained
        if weights is None:
            learned = NETWORK.read(chosen.weights) if chosen.weights else shipped()
            weights = learned.weights
        self.chooser = SeatChooser(NETWORK, weights, seed=seed, sampled=chosen.sampled)
        self._lengths = CompletedLengths()

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self.chooser.seen += 1
        if not isinstance(event, PlanAdopted):
            self._lengths.observe(event, view)

    def decide(self, view: View) -> Decision:
        if not view.n_waiting:
            return Decision(schedule=view.schedule)
        edit = view.schedule.edit()
        pool, owners = GpuPool(view), OwnerQuota(view, [])
        busy = self._busy_ahead(view)
        backlog = min(view.n_waiting, 60) / 60
        started: set[JobId] = set()
        blocked: set[JobId] = set()  # by the limit of their owner
        notes: dict[JobId, str] = {}
        turn = 0
        while len(pool):
            seats = self._seats(view, started, blocked)
            look = self._observation(view, seats, busy, len(pool), backlog)
            if not look.valid[:-1].any():
                break
            chosen = self.chooser.choose(look, turn)
            turn += 1
            if chosen == look.nothing:
                break
            job = seats[chosen]
            size = size_of(job)
            if not owners.take(job.job.owner, size):
                blocked.add(job.id)
                continue
            gpus = pool.place(size)
            assert gpus is not None, "a valid choice does not fit"
            allocation = allocation_of(job, gpus)
            edit.put(job.id, allocation)
            started.add(job.id)
            steps = min(HORIZON, 1 + int(self._length(job) / STEP_SECONDS))
            busy[:steps] += size / max(1, view.cluster.n_gpus)
            notes[job.id] = reasons.started(size, allocation.batch, reasons.CHOSEN_BY_NETWORK)
        for job in islice(view.waiting, SEATS):
            if job.id not in started:
                notes[job.id] = reasons.waiting_for_gpus(size_of(job))
        return Decision(schedule=edit.done(), notes=notes)

    def _seats(self, view: View, started: set[JobId], blocked: set[JobId]) -> list[JobView]:
        """The first waiting jobs of the highest priority."""
        jobs = (job for job in view.waiting if job.id not in started and job.id not in blocked)
        first = list(islice(jobs, SEATS))
        return [job for job in first if job.priority == first[0].priority]

    def _length(self, job: JobView) -> float:
        seconds = self._lengths.seconds(job, size_of(job))
        return UNKNOWN_SECONDS if seconds is None else seconds

    def _busy_ahead(self, view: View) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Part of the GPUs that are predicted to be busy in each of the next time steps."""
        busy = np.zeros(HORIZON)
        for job_id in view.schedule:
            job = view.job(job_id)
            left = max(0.0, self._length(job) - job.run_seconds_at(view.now))
            steps = min(HORIZON, 1 + int(left / STEP_SECONDS))
            busy[:steps] += view.schedule[job_id].n_gpus
        return busy / max(1, view.cluster.n_gpus)

    def _observation(
        self,
        view: View,
        seats: list[JobView],
        busy: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
        free: int,
        backlog: float,
    ) -> SeatObservation:
        rows = np.zeros((SEATS, ROWS))
        valid = np.zeros(SEATS + 1, np.bool_)
        total = max(1, view.cluster.n_gpus)
        for seat, job in enumerate(seats):
            size = size_of(job)
            rows[seat] = (
                size / total,
                log1p(self._length(job)) / 10,
                log1p(max(0.0, view.now - job.job.submitted_at)) / 10,
            )
            valid[seat] = size <= free
        # waiting is no choice if all jobs fit, or if nothing else runs
        wanted = sum(map(size_of, seats))
        valid[-1] = wanted > free and free < view.cluster.n_gpus
        features = np.concatenate([busy, rows.ravel(), [backlog]])
        return SeatObservation(features, valid)

    def save(self) -> dict[str, Any]:
        return {"seen": self.chooser.seen, "lengths": self._lengths.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.chooser.seen = int(saved["seen"])
        self._lengths.load(saved["lengths"])


def shortest_that_fits(look: SeatObservation) -> int:
    """The teacher: the waiting job with the shortest predicted length of those that fit."""
    lengths = look.features[HORIZON : HORIZON + SEATS * ROWS].reshape(SEATS, ROWS)[:, 1]
    open_seats = np.flatnonzero(look.valid[:-1])
    if not len(open_seats):
        return look.nothing
    return int(open_seats[np.argmin(lengths[open_seats])])


def untrained() -> DeepRm:
    """The policy before its first training: the trainer replaces its chooser."""
    return DeepRm(trained=np.zeros(NETWORK.size))
