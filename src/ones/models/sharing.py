"""Equal shares of GPUs, within what each job and each owner may have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ones.core.job import JobId
from ones.core.view import JobView, View


@dataclass(frozen=True, slots=True)
class Claim:
    job: JobId
    owner: str
    least: int
    most: int


class OwnerRoom:
    """GPUs that owners with a limit may still take, if these jobs are placed anew."""

    def __init__(self, view: View, movable: Iterable[JobView]) -> None:
        self._view = view
        self._given_up: dict[str, int] = {}
        for job in movable:
            if job.wanted is not None:
                owner = job.job.owner
                self._given_up[owner] = self._given_up.get(owner, 0) + job.wanted.n_gpus
        self._taken: dict[str, int] = {}

    def take(self, owner: str, gpus: int) -> bool:
        """Take so many, or none if that would exceed the owner's limit."""
        room = self._view.room(owner)
        taken = self._taken.get(owner, 0) + gpus
        if room is not None and taken > room + self._given_up.get(owner, 0):
            return False
        self._taken[owner] = taken
        return True


def equal_shares(claims: Sequence[Claim], gpus: int, room: OwnerRoom) -> dict[JobId, int]:
    """As equal as limits allow; claims come in the order in which they are served.

    First everybody gets the least it can run on, as far as that goes; then all rise together.
    """
    shares: dict[JobId, int] = {}
    left = gpus
    for claim in claims:
        if claim.least <= left and room.take(claim.owner, claim.least):
            shares[claim.job] = claim.least
            left -= claim.least
    rising = [claim for claim in claims if claim.job in shares]
    while left and rising:
        level = min(shares[claim.job] for claim in rising)
        next_round = []
        for claim in rising:
            if shares[claim.job] == level and left:
                if level >= claim.most or not room.take(claim.owner, 1):
                    continue
                shares[claim.job] += 1
                left -= 1
            next_round.append(claim)
        rising = next_round
    return shares
