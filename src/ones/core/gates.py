"""What keeps a job from starting besides GPUs: jobs that must end before, and its array's limit.

Kept by `State`, built from the records. The end of a job costs the jobs that wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from ones.core.job import Dependency, JobId
from ones.core.record import JobRecord


@dataclass(slots=True)
class _Array:
    admitted: int = 0  # unfinished tasks that may start
    line: deque[JobId] = field(default_factory=deque)  # tasks that may not, by submission


class Gates:
    __slots__ = ("_arrays", "_dependents")

    def __init__(self) -> None:
        self._dependents: dict[JobId, dict[JobId, None]] = {}  # job -> jobs that wait for its end
        self._arrays: dict[str, _Array] = {}  # arrays with a limit and unfinished tasks

    def is_full(self, array: str, limit: int) -> bool:
        """Whether a new task of the array must wait for the end of another."""
        known = self._arrays.get(array)
        return known is not None and known.admitted >= limit

    def add(self, record: JobRecord) -> None:
        for dependency in record.awaits:
            self._dependents.setdefault(dependency.job, {})[record.id] = None
        if record.job.array_limit is not None:
            array = self._arrays.setdefault(record.job.array, _Array())
            if record.in_line:
                array.line.append(record.id)
            else:
                array.admitted += 1

    def dependents(self, job: JobId) -> tuple[JobId, ...]:
        """The jobs that wait for the end of this one; forgets them."""
        return tuple(self._dependents.pop(job, ()))

    def next_tasks(self, record: JobRecord) -> Iterator[JobId]:
        """The tasks of an array that may start after the end of this one, in order.

        The caller skips those that have ended and calls `admit` for one that has not.
        """
        array = self._arrays.get(record.job.array) if record.job.array_limit else None
        if array is None:
            return
        array.admitted -= not record.in_line
        while array.line and array.admitted < (record.job.array_limit or 0):
            yield array.line.popleft()
        if not (array.line or array.admitted):
            del self._arrays[record.job.array]

    def admit(self, array: str) -> None:
        self._arrays[array].admitted += 1


def without(awaits: tuple[Dependency, ...], job: JobId) -> tuple[Dependency, ...]:
    """The dependencies that are left after the end of a job."""
    return tuple(dependency for dependency in awaits if dependency.job != job)
