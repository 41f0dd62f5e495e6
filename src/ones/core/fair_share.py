"""Past use of GPUs, and what it takes from the priority of an owner's jobs.

Use is counted in GPU-seconds and halves with every half-life. An owner's share is an equal part of
all GPU-seconds that can be remembered. With r = use / share, jobs lose 1 - 2^-r of their priority,
in steps: less than 1, so that whole priorities stay in order. Everything follows from the events;
an event costs the owner that it touches, and a review, a few in each half-life, all owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp2, log

from msgspec.structs import replace

from ones.core.job import JobId
from ones.wire.bounds import Value

#: penalties are multiples of this; the largest one is a step below 1
STEP = 1 / 16
#: a penalty stays while the exact one is within this distance, so that jobs do not swap to and fro
TOLERANCE = 0.75 * STEP
#: seconds; a shorter half-life counts as none
LEAST_HALF_LIFE = 1.0
#: reviews of all owners in one half-life
REVIEWS = 64
#: an owner without unfinished jobs is forgotten when the use is below this part of a share
FORGOTTEN = 0.01


class OwnerUse(Value, frozen=True):
    """What is counted of an owner."""

    gpu_seconds: float = 0.0  # decayed up to `at`
    at: float = 0.0
    gpus: int = 0  # that unfinished jobs occupy since `at`
    penalty: float = 0.0  # in force since the last review

    def gpu_seconds_at(self, now: float, half_life: float) -> float:
        """The use at a later time, in GPU-seconds."""
        left = exp2(-(now - self.at) / half_life)
        return self.gpu_seconds * left + self.gpus * memory(half_life) * (1.0 - left)


@dataclass(frozen=True, slots=True)
class OwnerShare:
    """The past use of an owner, for people."""

    owner: str
    gpu_seconds: float
    share: float  # an equal share, in GPU-seconds
    penalty: float  # what the owner's jobs lose of their priority

    @property
    def ratio(self) -> float:
        """The use as a multiple of a share."""
        return self.gpu_seconds / self.share


class FairShare:
    """The use of all owners, kept by `State`. Without a half-life it counts nothing."""

    __slots__ = ("half_life", "jobs", "next_review", "owners", "reviews")

    def __init__(self) -> None:
        self.half_life = 0.0  # seconds; 0: past use does not count
        self.next_review = 0.0
        self.reviews = 0  # number of changes of penalties since this object was made
        self.owners: dict[str, OwnerUse] = {}
        self.jobs: dict[str, dict[JobId, None]] = {}  # unfinished ones of each owner

    def __bool__(self) -> bool:
        return self.half_life > 0

    def set(self, now: float, half_life: float, used: Mapping[str, float]) -> None:
        """Count from now on, beginning with this use; a half-life of 0 ends it.

        GPUs that jobs occupy now must be counted afterwards.
        """
        half_life = half_life if half_life >= LEAST_HALF_LIFE else 0.0
        self.half_life, self.next_review = half_life, now
        self.reviews += 1
        known = self.owners
        owners = used.keys() | known.keys() if half_life else ()
        self.owners = {
            owner: OwnerUse(used.get(owner, 0.0), now, 0, self.penalty(owner))
            for owner in sorted(owners)
        }

    def occupy(self, owner: str, gpus: int, now: float) -> None:
        """The owner's jobs occupy more GPUs, or fewer."""
        if not self.half_life or not gpus:
            return
        use = self.owners.get(owner, OwnerUse(at=now))
        seconds = use.gpu_seconds_at(now, self.half_life)
        self.owners[owner] = OwnerUse(seconds, now, use.gpus + gpus, use.penalty)

    def penalty(self, owner: str) -> float:
        """What the owner's jobs lose of their priority, from 0 to below 1."""
        use = self.owners.get(owner)
        return use.penalty if use is not None else 0.0

    def share(self, n_gpus: int) -> float:
        """An equal share of one owner in GPU-seconds, of those that are there or have used GPUs."""
        owners = len(self.owners.keys() | self.jobs.keys())
        return n_gpus * memory(self.half_life) / max(1, owners)

    def review(self, now: float, n_gpus: int) -> list[str]:
        """Set the penalties anew; returns the owners with another penalty."""
        if not n_gpus:
            return []  # no node is up, and nothing says what a share is: at the next event
        self.next_review = now + self.half_life / REVIEWS
        share, changed = self.share(n_gpus), []
        for owner, use in list(self.owners.items()):
            seconds = use.gpu_seconds_at(now, self.half_life)
            if owner not in self.jobs and seconds < FORGOTTEN * share:
                del self.owners[owner]
                continue
            penalty = _penalty(seconds / share, use.penalty)
            if penalty != use.penalty:
                self.owners[owner] = replace(use, penalty=penalty)
                changed.append(owner)
        self.reviews += bool(changed)
        return changed

    def goes_behind(self, owner: str) -> bool:
        """Whether the jobs of another owner with unfinished jobs have a smaller penalty."""
        mine = self.penalty(owner)
        return mine > 0 and any(self.penalty(other) < mine for other in self.jobs)

    def of(self, owner: str, now: float, n_gpus: int) -> OwnerShare:
        use = self.owners.get(owner, OwnerUse(at=now))
        seconds = use.gpu_seconds_at(max(now, use.at), self.half_life)
        return OwnerShare(owner, seconds, self.share(n_gpus), use.penalty)

    def shares(self, now: float, n_gpus: int) -> list[OwnerShare]:
        """All owners, the largest use first. Any thread may call it."""
        if not self.half_life or not n_gpus:
            return []
        owners = {*list(self.owners), *list(self.jobs)}
        found = [self.of(owner, now, n_gpus) for owner in owners]
        return sorted(found, key=lambda each: (-each.gpu_seconds, each.owner))


def memory(half_life: float) -> float:
    """Seconds that count in full: what one GPU amounts to that is used for ever."""
    return half_life / log(2)


def decayed(gpu_seconds: float, age: float, half_life: float) -> float:
    """What use of some time ago counts now."""
    return gpu_seconds * exp2(-max(0.0, age) / half_life)


def _penalty(ratio: float, before: float) -> float:
    exact = 1.0 - exp2(-ratio)
    if abs(exact - before) <= TOLERANCE:
        return before
    return min(1.0 - STEP, round(exact / STEP) * STEP)
