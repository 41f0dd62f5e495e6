"""Equal shares of GPUs, within the limits of jobs and owners."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ones.core.job import JobId
from ones.core.view import JobView, View


@dataclass(frozen=True, slots=True)
class ShareRequest:
    job: JobId
    owner: str
    least: int
    most: int


class OwnerQuota:
    """GPUs that owners with a limit may still use, if the movable jobs are placed again."""

    def __init__(self, view: View, movable: Iterable[JobView]) -> None:
        self._view = view
        self._released: dict[str, int] = {}
        for job in movable:
            if job.wanted is not None:
                owner = job.job.owner
                self._released[owner] = self._released.get(owner, 0) + job.wanted.n_gpus
        self._taken: dict[str, int] = {}

    def take(self, owner: str, gpus: int) -> bool:
        """Takes GPUs for an owner; False, and none are taken, if that exceeds the owner's limit."""
        room = self._view.room(owner)
        taken = self._taken.get(owner, 0) + gpus
        if room is not None and taken > room + self._released.get(owner, 0):
            return False
        self._taken[owner] = taken
        return True


def equal_shares(
    requests: Sequence[ShareRequest], gpus: int, quota: OwnerQuota
) -> dict[JobId, int]:
    """The GPUs of each job, as equal as limits allow. Requests are in the order of service.

    First each job gets its minimum, while GPUs last; then all grow together.
    """
    shares: dict[JobId, int] = {}
    left = gpus
    for request in requests:
        if request.least <= left and quota.take(request.owner, request.least):
            shares[request.job] = request.least
            left -= request.least
    growing = [request for request in requests if request.job in shares]
    while left and growing:
        level = min(shares[request.job] for request in growing)
        next_round = []
        for request in growing:
            if shares[request.job] == level and left:
                if level >= request.most or not quota.take(request.owner, 1):
                    continue
                shares[request.job] += 1
                left -= 1
            next_round.append(request)
        growing = next_round
    return shares
