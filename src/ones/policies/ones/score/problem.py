"""Input of the search: the jobs, the GPUs, and the cost of each job at each number of GPUs.

All arrays have one entry for each job, in the order of submission. `problem_builder` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ones.models.allocation import exact

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Keys = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: cost of an idle GPU that some job could use, above any other cost (Eq. 4)
IDLE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Minimise the sum over jobs of work x cost, at the number of GPUs each one gets.

    A job gets none, or between `least` and `most`; with `most` 0 it may not run now.
    Arrays are converted to one type and layout, so that kernels are compiled once.
    """

    gpus: int
    keys: Keys  # identify jobs from one search to the next
    least: Ints
    most: Ints
    held: Ints  # GPUs it has now
    processed: Floats  # T_processed: seconds that it has run
    cost: Floats  # [job, GPUs]: per unit of work; [job, 0]: while it waits
    work: Floats  # [draw, job]: Y_j (Eq. 7), the same draws for all candidates
    use_all: bool = True  # Eq. 4: use every GPU that a job could use; False: only if it pays

    def __post_init__(self) -> None:
        kinds = {
            "keys": np.int64, "least": np.int32, "most": np.int32, "held": np.int32,
            "processed": np.float64, "cost": np.float64, "work": np.float64,
        }  # fmt: skip
        for name, kind in kinds.items():
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), kind))
        self._check_shapes()
        self._check_values()

    def _check_shapes(self) -> None:
        jobs = len(self.keys)
        for name in ("keys", "least", "most", "held", "processed"):
            shape = getattr(self, name).shape
            if shape != (jobs,):
                raise ValueError(f"{name} has shape {shape}, not {(jobs,)}")
        if self.cost.ndim != 2 or len(self.cost) != jobs:
            raise ValueError(f"cost has shape {self.cost.shape}: {jobs} jobs")
        if self.work.ndim != 2 or len(self.work) < 1 or self.work.shape[1] != jobs:
            raise ValueError(f"work has shape {self.work.shape}, not (draws, {jobs})")

    def _check_values(self) -> None:
        if self.gpus < 1 or not len(self.keys):
            raise ValueError(f"{len(self.keys)} jobs on {self.gpus} GPUs: nothing to search")
        if len(np.unique(self.keys)) != len(self.keys):
            raise ValueError("two jobs have the same key")
        if (self.least < 1).any() or (self.held < 0).any():
            raise ValueError("a job with less than one GPU at least, or less than none held")
        if ((self.most != 0) & (self.most < self.least)).any():
            raise ValueError("a job with most GPUs below least")
        if self.most.max() >= self.cost.shape[1]:
            raise ValueError(f"no cost for {self.most.max()} GPUs")
        for name in ("cost", "work"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} is not finite")

    @property
    def mean_work(self) -> Floats:
        """The work by which candidates are ranked: the cost is linear in the work, so the mean cost
        over draws is the cost at mean work."""
        work: Floats = self.work.mean(axis=0)
        return work

    @property
    def usable(self) -> int:
        """Largest number of GPUs that these jobs could use."""
        return min(self.gpus, int(self.most.sum()))

    def table(self, work: Floats) -> Floats:
        """Returns the cost of each job with 0, 1, 2, ... GPUs and this remaining work."""
        table: Floats = work[:, None] * self.cost
        return table

    def idle_charge(self) -> float:
        """Returns the cost of an idle GPU: above the cost difference of any two schedules."""
        if not self.use_all:
            return 0.0
        largest = np.abs(self.work).max(axis=0)[:, None] * np.abs(self.cost)
        return max(IDLE, 2.0 * float(largest.max(axis=1).sum()))

    @property
    def frame(self) -> str:
        """Fingerprint of jobs and limits; equal fingerprints allow the same populations."""
        digest = blake2b(str(self.gpus).encode(), digest_size=16)
        for values in (self.keys, self.least, self.most, self.held):
            digest.update(values.tobytes())
        return digest.hexdigest()


def optimum(problem: Problem) -> Ints:
    """Returns the exact division at mean work."""
    table = problem.table(problem.mean_work)
    return exact(table, problem.least, problem.most, problem.gpus, use_all=problem.use_all)
