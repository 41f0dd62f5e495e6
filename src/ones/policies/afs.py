"""AFS (NSDI'21): elastic shares by marginal gain, for the mean completion time.

Of two jobs, the one that ends first gets the next GPU, unless the other gains more from it: then
the GPU helps the longer job now, and the shorter one ends little later. A tournament of such duels
gives away one GPU after another, in rounds or at every arrival and end. Which job ends first is
predicted, or the job with the least attained service counts as that one (`lengths`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, log2
from typing import Any, ClassVar

from ones.core.job import JobId
from ones.core.view import JobView, View
from ones.models.marginal_gain import GainCandidate
from ones.models.oracle import ORACLE_NEEDED, Oracle
from ones.models.settings import check_settings, setting
from ones.models.sizing_rounds import SizingRounds, Take

#: smaller relative gains are rounding errors
LEAST_GAIN = 1e-6
#: GPU-seconds of the first level of attained service; each further level is twice as long
QUANTUM = 60.0


@dataclass(slots=True)
class ShareCandidate:
    """A job in the tournament, with the GPUs that it has so far."""

    work: GainCandidate
    priority: float
    length: float  # time or service that decides which job ends first
    gpus: int = 0
    closed: bool = False  # it takes no more GPUs

    @property
    def step(self) -> int:
        """GPUs that the job takes next: its minimum, then one."""
        return 1 if self.gpus else self.work.least

    def speed(self, gpus: int) -> float:
        return 1.0 / self.work.step_seconds(gpus) if gpus else 0.0

    @property
    def end(self) -> float:
        """When the job ends with its present GPUs, in any unit that all jobs share."""
        one = self.speed(self.work.least)
        return self.length * one / self.speed(self.gpus) if self.gpus else inf


def wins(one: ShareCandidate, other: ShareCandidate) -> bool:
    """Whether the first of two jobs gets the next GPU."""
    if one.closed or other.closed:
        return not one.closed
    if one.priority != other.priority and not (one.gpus and other.gpus):
        return one.priority > other.priority
    if not one.gpus and not other.gpus:
        return (one.length, one.work.number) < (other.length, other.work.number)
    if not one.gpus or not other.gpus:  # a first GPU helps more than another one
        return not one.gpus
    sooner, later = one, other
    if (other.end, other.work.number) < (one.end, one.work.number):
        sooner, later = other, one
    # with p, p' the speeds now and with one more GPU: (p' - p) / p' against (p' - p) / p
    p, more = later.speed(later.gpus), later.speed(later.gpus + later.step)
    gain_later = (more - p) / more / later.step
    p, more = sooner.speed(sooner.gpus), sooner.speed(sooner.gpus + sooner.step)
    gain_sooner = (more - p) / p / sooner.step
    return (gain_later > gain_sooner) == (one is later)


class Afs(SizingRounds):
    native_mechanism: ClassVar[str] = "elastic"
    takes_oracle: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        lengths: str = setting(
            "predicted",
            "which job counts as the one that ends first: least attained service, least"
            " predicted work, or least true work (an oracle)",
            options=("attained", "predicted", "oracle"),
        )
        interval: float = setting(
            60.0,
            "seconds between two divisions of all GPUs, arrivals start at once; 0: all GPUs are"
            " divided at every arrival and end",
            least=0.0,
        )

        def __post_init__(self) -> None:
            check_settings(self)

    def __init__(self, *, seed: int = 0, oracle: Oracle | None = None, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        if self._settings.lengths == "oracle" and oracle is None:
            raise ValueError(f"lengths=oracle {ORACLE_NEEDED}")
        known = self._settings.lengths == "oracle"
        super().__init__(self._settings.interval, oracle if known else None)

    def sizes(self, view: View, jobs: Sequence[JobView], gpus: int, take: Take) -> dict[JobId, int]:
        candidates = []
        for job in jobs:
            work = self.candidates.of(view, job)
            length = work.steps * work.step_seconds(work.least)
            if self._settings.lengths == "attained":
                # in doublings, so that jobs do not overtake one another all the time
                length = 2.0 ** floor(log2(1 + job.gpu_seconds_at(view.now) / QUANTUM))
            candidates.append(ShareCandidate(work, job.priority, length))
        return elastic_shares(candidates, gpus, take)

    def size_why(self, job: JobView, size: int) -> str:
        return "each GPU goes to the shorter of two jobs, unless the longer gains more"

    def wait_rule(self, job: JobView) -> str:
        return "jobs that have used less GPU time come first"


def elastic_shares(candidates: Sequence[ShareCandidate], gpus: int, take: Take) -> dict[JobId, int]:
    """The GPUs of each job. A GPU costs one path of the tournament, not all jobs."""
    if not candidates:
        return {}
    size = 1 << (len(candidates) - 1).bit_length()
    tree: list[ShareCandidate | None] = [None] * size + [*candidates]
    tree += [None] * (2 * size - len(tree))

    def play(node: int) -> None:
        one, other = tree[2 * node], tree[2 * node + 1]
        if one is None or other is None:
            tree[node] = one or other
        else:
            tree[node] = one if wins(one, other) else other

    for node in range(size - 1, 0, -1):
        play(node)
    leaves = {candidate.work.job: size + i for i, candidate in enumerate(candidates)}
    left = gpus
    while left:
        winner = tree[1]
        assert winner is not None
        if winner.closed:
            break
        work, more = winner.work, winner.gpus + winner.step
        pays = not winner.gpus or winner.speed(more) > winner.speed(winner.gpus) * (1 + LEAST_GAIN)
        fits = winner.step <= left and more <= work.most and pays
        if fits and take(work.owner, winner.step):
            left -= winner.step
            winner.gpus = more
        else:
            winner.closed = True
        node = leaves[work.job] // 2
        while node:
            play(node)
            node //= 2
    return {c.work.job: c.gpus for c in candidates if c.gpus}
