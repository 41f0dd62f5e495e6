"""DL2 (2019), for all-reduce: in each slot a network gives GPUs one by one, until it stops.

At the start of a slot every job gets its minimum, in order of submission. Then the network is
asked again and again: one more GPU for one of the first 20 jobs, or stop. It observes the kind of a
job by number, its age, the part of its work that is left, its share of the GPUs and its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from zlib import crc32

import numpy as np

from ones.core import reasons
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.view import JobView, View
from ones.models.kinds import kind_of
from ones.models.marginal_gain import GainCandidate
from ones.models.rigid_jobs import batch_of
from ones.models.seat_network import Floats, SeatChooser, SeatNetwork, SeatObservation, TrainedSeats
from ones.models.settings import check_settings, setting
from ones.models.sizing_rounds import SizingRounds, Take

SEATS = 20  # jobs in a decision (the publication's small setting)
ROWS = 5  # features of a job
MOST_GPUS = 16  # of one job (the publication's limit of workers)
KINDS = 16  # numbers of kinds
NETWORK = SeatNetwork(inputs=SEATS * ROWS, hidden=SEATS * ROWS, seats=SEATS)


@cache
def shipped() -> TrainedSeats:
    return NETWORK.parse((files("ones.policies.dl2") / "weights.json").read_text(), "weights.json")


class Dl2(SizingRounds):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        interval: float = setting(300.0, "seconds of a slot", least=1.0)
        sampled: bool = setting(False, "draw choices at random instead of the most probable")
        weights: str = setting(
            "", "file of `ones drl train --policy dl2`; empty: the shipped weights"
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, trained: Floats | None = None, **settings: Any) -> None:
        """`trained`: weights in place of a file, for training."""
        self._settings = chosen = self.Settings(**settings)
        super().__init__(chosen.interval)
        weights = trained
        if weights is None:
            learned = NETWORK.read(chosen.weights) if chosen.weights else shipped()
            weights = learned.weights
        self.chooser = SeatChooser(NETWORK, weights, seed=seed, sampled=chosen.sampled)

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self.chooser.seen += 1
        super().observe(event, view)

    def sizes(self, view: View, jobs: Sequence[JobView], gpus: int, take: Take) -> dict[JobId, int]:
        sizes: dict[JobId, int] = {}
        left = gpus
        candidates = {job.id: self.candidates.of(view, job) for job in jobs}
        for job in jobs:
            least = job.job.min_gpus
            if least <= left and take(job.job.owner, least):
                sizes[job.id] = least
                left -= least
        if self._rounds is None or not self._rounds.due:
            return sizes  # between two slots jobs start on their minimum
        seated = [job for job in jobs if job.id in sizes][:SEATS]
        full: set[JobId] = set()
        for turn in range(gpus):
            if not left or not seated:
                break
            seats = [(job, candidates[job.id], sizes[job.id]) for job in seated]
            look = observation_of(view, seats, full)
            chosen = self.chooser.choose(look, turn)
            if chosen == look.nothing:
                break
            job = seated[chosen]
            if take(job.job.owner, 1):
                sizes[job.id] += 1
                left -= 1
            else:
                full.add(job.id)
        return sizes

    def size_why(self, job: JobView, size: int) -> str:
        return reasons.CHOSEN_BY_NETWORK

    def wait_rule(self, job: JobView) -> str:
        return "earlier jobs have one GPU each"

    def save(self) -> dict[str, Any]:
        return super().save() | {"seen": self.chooser.seen}

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self.chooser.seen = int(saved["seen"])


def observation_of(
    view: View, seats: Sequence[tuple[JobView, GainCandidate, int]], full: set[JobId]
) -> SeatObservation:
    rows = np.zeros((SEATS, ROWS))
    valid = np.zeros(SEATS + 1, np.bool_)
    valid[-1] = True
    total = max(1, view.cluster.n_gpus)
    for seat, (job, work, size) in enumerate(seats):
        done = job.progress.samples / max(1, batch_of(job, work.least))
        rows[seat] = (
            (1 + crc32(kind_of(job.job).encode()) % KINDS) / KINDS,
            min(1.0, (view.now - job.job.submitted_at) / 3600.0),
            work.steps / max(work.steps + done, 1e-9),
            size / total,
            size / MOST_GPUS,
        )
        valid[seat] = job.id not in full and size < min(work.most, MOST_GPUS)
    return SeatObservation(rows.ravel(), valid)


def fewest_gpus(look: SeatObservation) -> int:
    """The teacher (dominant resource fairness): the job with the fewest GPUs gets the next one."""
    sizes = look.features.reshape(SEATS, ROWS)[:, 4]
    open_seats = np.flatnonzero(look.valid[:-1])
    if not len(open_seats):
        return look.nothing
    return int(open_seats[np.argmin(sizes[open_seats])])


def untrained() -> Dl2:
    """The policy before its first training: the trainer replaces its chooser."""
    return Dl2(trained=np.zeros(NETWORK.size))
