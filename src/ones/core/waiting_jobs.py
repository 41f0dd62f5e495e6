"""The queue: jobs without GPUs, by priority and then by submission.

Each owner with a limit has a queue of its own, so hiding all jobs of an owner that has reached its
limit costs nothing per job.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from ones.core.job import JobId
from ones.core.ordered_index import Key, OrderedIndex


class WaitingJobs:
    """The waiting jobs and the limits of owners. Kept by `State`, read through a `View`."""

    __slots__ = ("_common", "_jobs", "_limited", "limits", "use")

    def __init__(self) -> None:
        self._common = OrderedIndex()
        self._limited: dict[str, OrderedIndex] = {}
        self._jobs: dict[JobId, tuple[str, Key]] = {}
        self.limits: dict[str, int] = {}  # GPUs for all jobs of an owner together
        self.use: dict[str, int] = {}  # GPUs assigned to an owner's jobs

    def add(self, job: JobId, owner: str, key: Key) -> None:
        self._jobs[job] = (owner, key)
        self._index_of(owner).add(key)

    def discard(self, job: JobId) -> None:
        entry = self._jobs.pop(job, None)
        if entry is not None:
            self._index_of(entry[0]).remove(entry[1])

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def __len__(self) -> int:
        """Number of waiting jobs, hidden ones included."""
        return len(self._jobs)

    def room(self, owner: str) -> int | None:
        """Additional GPUs that the owner's jobs may take together; below 0: over its limit; None:
        no limit."""
        limit = self.limits.get(owner)
        return None if limit is None else limit - self.use.get(owner, 0)

    def set_limit(self, owner: str, max_gpus: int | None) -> None:
        moved = [(job, key) for job, (name, key) in self._jobs.items() if name == owner]
        for job, _ in moved:
            self.discard(job)
        if max_gpus is None:
            self.limits.pop(owner, None)
            self._limited.pop(owner, None)
        else:
            self.limits[owner] = max_gpus
            self._limited.setdefault(owner, OrderedIndex())
        for job, key in moved:
            self.add(job, owner, key)

    def visible(self) -> Iterator[Key]:
        """Keys in order, without those of owners that have reached their limit."""
        if not self._limited:
            return iter(self._common)
        open_queues = [q for owner, q in self._limited.items() if (self.room(owner) or 0) > 0]
        return merge(self._common, *open_queues)

    def _index_of(self, owner: str) -> OrderedIndex:
        return self._limited.get(owner, self._common)
