"""The jobs that may be changed now, as arrays: what the operators and the score work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ones.policies.ones_paper.genome import Flags, Floats, Ints

#: minimum charge of an idle GPU that a job could use: more than any cost (Eq. 4)
IDLE_CHARGE = 1e9


class Problem(NamedTuple):
    """One entry for each job, in the order of submission."""

    gpus: int  # ‖C‖
    least: Ints  # GPUs that the job needs at least
    most: Ints  # GPUs that its limit allows now (floor(R_j c_j / B_j)); 0: it may not run
    # GPUs that it may have if no other job can use them; the same in the paper; 0: no idle GPUs
    later: Ints
    first: Ints  # new jobs that must run, by order of submission (refresh, step 3)
    new: Flags  # never deployed
    processed: Floats  # T_processed, in seconds
    cost: Floats  # [job, GPUs]: GPU-seconds per sample, c_j / X_j of Eq. 8; 0 without GPUs
    work: Floats  # [draw, job]: Y_j (Eq. 7); the first draw is that of Algorithm 1
    idle_charge: float  # of an idle GPU, so that Eq. 4 holds as far as limits allow

    @property
    def jobs(self) -> int:
        return len(self.least)

    @property
    def usable(self) -> int:
        """GPUs that these jobs can use at most."""
        return min(self.gpus, int(self.later.sum()))


def first_jobs(new: Flags, least: Ints, most: Ints, gpus: int) -> Ints:
    """The new jobs that fit the cluster together, by order of submission."""
    chosen = []
    for job in np.flatnonzero(new & (most > 0)).tolist():
        if least[job] <= gpus:
            gpus -= int(least[job])
            chosen.append(job)
    return np.array(chosen, np.int32)


def idle_charge(cost: Floats, work: Floats) -> float:
    """A charge above the difference of any two schedules."""
    return max(IDLE_CHARGE, 2.0 * float((work.max(axis=0) * cost.max(axis=1)).sum()))
