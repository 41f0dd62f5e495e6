"""The queue: jobs without GPUs, by priority and then by submission.

Owners with a limit have queues of their own, so that hiding all the jobs of an
owner who has no room left costs nothing per job.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from ones.core.job import JobId
from ones.core.ordered_index import Key, OrderedIndex


class WaitingJobs:
    """Who waits, and who of them may be seen. Kept by `State`, read through a `View`."""

    __slots__ = ("_common", "_jobs", "_limited", "limits", "use")

    def __init__(self) -> None:
        self._common = OrderedIndex()
        self._limited: dict[str, OrderedIndex] = {}
        self._jobs: dict[JobId, tuple[str, Key]] = {}
        self.limits: dict[str, int] = {}  # GPUs for all jobs of an owner together
        self.use: dict[str, int] = {}  # GPUs that an owner's jobs have or are to have

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
        """All who wait, hidden ones too."""
        return len(self._jobs)

    def room(self, owner: str) -> int | None:
        """GPUs that the owner's jobs may still take together, or, below 0, have too many;
        None: no limit."""
        limit = self.limits.get(owner)
        return None if limit is None else limit - self.use.get(owner, 0)

    def limit(self, owner: str, max_gpus: int | None) -> None:
        mine = [(job, key) for job, (who, key) in self._jobs.items() if who == owner]
        for job, _ in mine:
            self.discard(job)
        if max_gpus is None:
            self.limits.pop(owner, None)
            self._limited.pop(owner, None)
        else:
            self.limits[owner] = max_gpus
            self._limited.setdefault(owner, OrderedIndex())
        for job, key in mine:
            self.add(job, owner, key)

    def visible(self) -> Iterator[Key]:
        """Keys in order, without those of owners who have no room."""
        if not self._limited:
            return iter(self._common)
        open_queues = [q for owner, q in self._limited.items() if (self.room(owner) or 0) > 0]
        return merge(self._common, *open_queues)

    def _index_of(self, owner: str) -> OrderedIndex:
        return self._limited.get(owner, self._common)
