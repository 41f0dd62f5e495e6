"""Greedy division of GPUs: one after another, each to the job that gains most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from ones.core.job import JobId
from ones.models.strong_scaling import StepSeconds

#: seconds; smaller gains are rounding errors
LEAST_GAIN = 1e-6


@dataclass(frozen=True, slots=True)
class GainCandidate:
    """A job, with its remaining steps and its step time by number of GPUs."""

    job: JobId
    owner: str
    number: int
    least: int
    most: int
    steps: float  # remaining
    step_seconds: StepSeconds
    worth: float = 1.0  # weight of its gain

    def saved(self, now: int, then: int) -> float:
        """Seconds that the job ends earlier with `then` GPUs than with `now`."""
        return self.steps * (self.step_seconds(now) - self.step_seconds(then))

    def gain(self, now: int, then: int) -> float:
        """Weighted seconds saved per additional GPU."""
        return self.worth * self.saved(now, then) / (then - now)

    def next_size(self, now: int, jump: int) -> tuple[float, int]:
        """The best gain and its size: one more GPU, or the next full node."""
        sizes = {now + 1} if now < self.most else set()
        if jump and (full := (now // jump + 1) * jump) <= self.most:
            sizes.add(full)
        gains = [(self.gain(now, size), size) for size in sorted(sizes)]
        return max(gains, key=lambda pair: pair[0], default=(0.0, now))


def marginal_gains(
    candidates: Iterable[GainCandidate],
    gpus: int,
    take: Callable[[str, int], bool],
    *,
    jump: int = 0,
) -> dict[JobId, int]:
    """The GPUs of each job: its minimum, in order; then each GPU where it saves most.

    With `jump`, steps to whole nodes are considered, too: one more GPU may not pay where four do.
    """
    sizes: dict[JobId, int] = {}
    steps: list[tuple[float, int, int, GainCandidate]] = []

    def push_step(candidate: GainCandidate) -> None:
        gain, size = candidate.next_size(sizes[candidate.job], jump)
        if gain > LEAST_GAIN:
            heappush(steps, (-gain, candidate.number, size, candidate))

    left = gpus
    for candidate in candidates:
        if candidate.least <= left and take(candidate.owner, candidate.least):
            sizes[candidate.job] = candidate.least
            left -= candidate.least
            push_step(candidate)
    while steps and left:
        _, _, size, candidate = heappop(steps)
        more = size - sizes[candidate.job]
        if more > left and more > 1:  # a whole node is too much: try one GPU
            size, more = sizes[candidate.job] + 1, 1
            if candidate.gain(sizes[candidate.job], size) <= LEAST_GAIN:
                continue
        if take(candidate.owner, more):
            sizes[candidate.job] = size
            left -= more
            push_step(candidate)
    return sizes
