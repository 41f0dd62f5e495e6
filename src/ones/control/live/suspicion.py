"""Is it the GPU? A small rule that tells a device that fails from scripts that do.

A worker that dies says little: most die of their own script. But when the last workers on one
GPU all died, and their jobs lost none anywhere else, the GPU is what they have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ones.core.cluster import Gpu

IN_A_ROW = 3  # workers that died there since one did well
JOBS = 2  # of so many jobs at least
REMEMBERED = 1000  # jobs that have lost workers, the last ones


@dataclass(slots=True)
class Suspicion:
    _died: dict[Gpu, list[str]] = field(default_factory=dict)  # whose workers, since one did well
    _places: dict[str, set[Gpu]] = field(default_factory=dict)  # where a job's workers have died

    def died(self, gpu: Gpu, job: str) -> bool:
        """A worker was lost. True: the GPU should not be used any more."""
        self._died.setdefault(gpu, []).append(job)
        self._places.setdefault(job, set()).add(gpu)
        if len(self._places) > REMEMBERED:
            self._places.pop(next(iter(self._places)))
        # who dies elsewhere, too, dies of itself
        blameless = [who for who in self._died[gpu] if self._places.get(who) == {gpu}]
        return len(blameless) >= IN_A_ROW and len(set(blameless)) >= JOBS

    def did_well(self, gpu: Gpu, job: str) -> None:
        """A worker has left there as it should."""
        self.clear(gpu)
        self._places.get(job, set()).discard(gpu)

    def clear(self, gpu: Gpu) -> None:
        self._died.pop(gpu, None)
