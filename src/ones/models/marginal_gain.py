"""One GPU after another, each to the job that gains most by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from ones.core.job import JobId
from ones.models.strong_scaling import StepSeconds

#: seconds: what is less is rounding
LEAST_GAIN = 1e-6


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job could do with GPUs."""

    job: JobId
    owner: str
    number: int
    least: int
    most: int
    steps: float  # that are left
    step_seconds: StepSeconds
    worth: float = 1.0

    def gain(self, now: int, then: int) -> float:
        """Seconds saved for each GPU more."""
        saved = self.steps * (self.step_seconds(now) - self.step_seconds(then))
        return self.worth * saved / (then - now)

    def next_size(self, now: int, jump: int) -> tuple[float, int]:
        """The best gain, and the size that brings it: one more, or the next full node."""
        sizes = {now + 1} if now < self.most else set()
        if jump and (full := (now // jump + 1) * jump) <= self.most:
            sizes.add(full)
        gains = [(self.gain(now, size), size) for size in sorted(sizes)]
        return max(gains, key=lambda pair: pair[0], default=(0.0, now))


def marginal_gains(
    claims: Iterable[Claim], gpus: int, take: Callable[[str, int], bool], *, jump: int = 0
) -> dict[JobId, int]:
    """The least for everybody, in order, as far as it goes; then each GPU where it saves most.

    With `jump`, whole nodes are looked at as well: one GPU more may not pay where four do.
    """
    sizes: dict[JobId, int] = {}
    steps: list[tuple[float, int, int, Claim]] = []

    def look_ahead(claim: Claim) -> None:
        gain, size = claim.next_size(sizes[claim.job], jump)
        if gain > LEAST_GAIN:
            heappush(steps, (-gain, claim.number, size, claim))

    left = gpus
    for claim in claims:
        if claim.least <= left and take(claim.owner, claim.least):
            sizes[claim.job] = claim.least
            left -= claim.least
            look_ahead(claim)
    while steps and left:
        _, _, size, claim = heappop(steps)
        more = size - sizes[claim.job]
        if more > left and more > 1:  # a whole node is too much: one at a time, then
            size, more = sizes[claim.job] + 1, 1
            if claim.gain(sizes[claim.job], size) <= LEAST_GAIN:
                continue
        if take(claim.owner, more):
            sizes[claim.job] = size
            left -= more
            look_ahead(claim)
    return sizes
