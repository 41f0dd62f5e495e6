"""Decides whether a GPU fails, or only the scripts that ran on it.

Most workers die because of their own script. A death counts against the GPU only by these rules:

1. A death before the script has joined does not count: it may be an import error or a missing
   file. A death that ONES caused does not count (stopped, never started, killed with its supervisor
   or its node).
2. A later death counts if the same job trains on another GPU, or did before; or if the worker
   was killed by a signal that is typical of a device fault (SIGBUS, SIGSEGV, SIGABRT, SIGILL,
   SIGFPE).
3. If workers of the job died on other GPUs too, its deaths do not count: the job is the cause.
4. A GPU is taken out of service after IN_A_ROW such deaths of at least JOBS jobs, if no worker
   left the GPU in good order in between.

A fixed-size job never joins: its death counts only if an earlier run of the same job left another
GPU in good order. A GPU that the driver does not find any more is out of service at once: see
`launchers.devices`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from ones.core.cluster import Gpu

IN_A_ROW = 3  # minimum number of counted deaths since a worker left the GPU in good order
JOBS = 2  # minimum number of different jobs among these deaths
REMEMBERED = 1000  # maximum number of jobs that are remembered, the newest ones

#: signals by which a process dies when a device, its driver or its library fails
DEVICE_SIGNALS = frozenset(
    int(number)
    for number in (signal.SIGBUS, signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
)


@dataclass(frozen=True, slots=True)
class _Death:
    job: str
    by_device: bool  # killed by a signal that is typical of a device fault


@dataclass(slots=True)
class GpuHealth:
    #: by GPU, since a worker left it in good order
    _deaths: dict[Gpu, list[_Death]] = field(default_factory=dict)
    _died_on: dict[str, set[Gpu]] = field(default_factory=dict)  # job -> GPUs
    _trained_on: dict[str, set[Gpu]] = field(default_factory=dict)  # job -> GPUs

    def trains(self, gpu: Gpu, job: str) -> None:
        """Note that a worker of the job trains on the GPU."""
        _remember(self._trained_on, job, gpu)

    def died(self, gpu: Gpu, job: str, *, signal: int | None = None) -> str:
        """Note that a worker was lost after it had joined.

        Returns why the GPU should not be used any more; empty if it may be used.
        """
        deaths = self._deaths.setdefault(gpu, [])
        deaths.append(_Death(job, signal in DEVICE_SIGNALS))
        del deaths[:-REMEMBERED]
        _remember(self._died_on, job, gpu)
        alone = [death for death in deaths if self._died_on.get(death.job) == {gpu}]
        elsewhere = [d for d in alone if self._trained_on.get(d.job, set()) - {gpu}]
        counted = [death for death in alone if death.by_device or death in elsewhere]
        jobs = len({death.job for death in counted})
        if len(counted) < IN_A_ROW or jobs < JOBS:
            return ""
        if len(elsewhere) >= IN_A_ROW:
            return f"{len(counted)} workers of {jobs} jobs that train on other GPUs died there"
        return f"{len(counted)} workers of {jobs} jobs died there by signals of a device fault"

    def did_well(self, gpu: Gpu, job: str, *, trained: bool = True) -> None:
        """Note that a worker left the GPU in good order.

        `trained`: the worker had joined, or belongs to a fixed-size job, which never joins.
        """
        self.clear(gpu)
        self._died_on.get(job, set()).discard(gpu)
        if trained:
            _remember(self._trained_on, job, gpu)

    def clear(self, gpu: Gpu) -> None:
        self._deaths.pop(gpu, None)


def _remember(table: dict[str, set[Gpu]], job: str, gpu: Gpu) -> None:
    """Add the GPU to the job's entry; the oldest job is dropped if there are too many."""
    table.setdefault(job, set()).add(gpu)
    if len(table) > REMEMBERED:
        table.pop(next(iter(table)))
