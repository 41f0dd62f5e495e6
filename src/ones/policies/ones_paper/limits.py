"""R_j, the batch size limit of each job: Start, Resume, Scale-up and Scale-down.

Parts `limits` and `batch`: when R_j doubles, and which batch a job has on its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core.job import JobId
from ones.core.view import JobView
from ones.policies.ones_paper.scale_downs import SCALE_DOWNS

#: maximum growth of the batch from one epoch to the next, as a factor
EPOCH_GROWTH = 2
#: minimum number of steps in an epoch
EPOCH_STEPS = 10


class BatchLimits:
    """The paper gives no upper bound of R_j; here it is `most_base_batches` times the base batch,
    what all GPUs can hold, and a tenth of the data set."""

    def __init__(
        self, *, growth: str, batch: str, scale_down: str, warmup_steps: int, most_base_batches: int
    ) -> None:
        self._growth, self._batch = growth, batch
        self._scale_down = SCALE_DOWNS[scale_down]
        self._warmup_steps, self._most_base_batches = warmup_steps, most_base_batches
        self._limits: dict[JobId, int] = {}  # R_j
        self._warm: set[JobId] = set()  # jobs that have done their warm-up steps
        self._least_batch: dict[JobId, int] = {}  # smallest batch since the last epoch ended

    def of(self, job: JobView) -> int:
        """R_j now."""
        return self._limits.get(job.id, _single(job))

    # policies

    def joined(self, job: JobView) -> None:
        """Start: R_j is what one GPU accommodates."""
        self._limits.setdefault(job.id, _single(job))

    def stepped(self, job: JobView, steps: int) -> None:
        """End of the warm-up steps. Until then the job stays on one GPU."""
        if steps >= self._warmup_steps:
            self._warm.add(job.id)

    def finished_epoch(self, job: JobView, *, pressure: float, gpus: int) -> None:
        """Scale-up or Scale-down after each epoch of a running job; `pressure`: σ T_processed."""
        self._warm.add(job.id)
        if job.held is None or job.description is None:
            return
        self._least_batch[job.id] = job.held.batch
        limit = self.of(job)
        changed = self._scale_down(limit, pressure, job.held.n_gpus / max(gpus, 1))
        if self._growth == "held" and changed > limit and job.held.batch < limit:
            return  # the job has not tried its present limit yet
        self._limits[job.id] = min(max(changed, _single(job)), self._bound(job, gpus))

    def rejected(self, job: JobView) -> None:
        """Resume: a job that an update leaves waiting asks for half of its limit next time."""
        if job.description is not None:
            self._limits[job.id] = max(self.of(job) // 2, _single(job))

    def ordered(self, job: JobId, batch: int) -> None:
        """A plan gives the job this batch (0: the script's own)."""
        if batch:
            self._least_batch[job] = min(self._least_batch.get(job, batch), batch)

    def forget(self, job: JobId) -> None:
        self._limits.pop(job, None)
        self._warm.discard(job)
        self._least_batch.pop(job, None)

    # consequences

    def most_gpus(self, job: JobView) -> int:
        """floor(R_j c_j / B_j): GPUs at the local batch b_j of a single GPU."""
        if job.description is None or job.id not in self._warm:
            return 1
        return max(1, self._largest_batch(job) // _single(job))

    def batches(self, job: JobView, most: int) -> NDArray[np.int64]:
        """B_j with 1 .. `most` GPUs (Eq. 2); 0: the script's own, before it has joined."""
        gpus = np.arange(1, most + 1)
        if job.description is None:
            return np.zeros(most, np.int64)
        local = (job.local_limit or 0) if self._batch == "largest" else 0
        found = np.minimum(self._largest_batch(job), gpus * max(local, _single(job)))
        return np.maximum(found, gpus)

    def _largest_batch(self, job: JobView) -> int:
        """R_j, but no sudden growth: "scaled within a limited range at each time"."""
        before = self._least_batch.get(job.id)
        limit = self.of(job)
        return limit if before is None else min(limit, EPOCH_GROWTH * max(before, _single(job)))

    def _bound(self, job: JobView, gpus: int) -> int:
        assert job.description is not None
        base, size = job.description.base_batch, job.description.dataset_size
        bounds = (gpus * (job.local_limit or base), size // EPOCH_STEPS)
        return max(_single(job), min(*bounds, self._most_base_batches * base))

    def save(self) -> dict[str, Any]:
        return {
            "limits": dict(self._limits),
            "warm": sorted(self._warm),
            "least_batch": dict(self._least_batch),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._limits = {JobId(job): int(n) for job, n in saved["limits"].items()}
        self._warm = set(map(JobId, saved["warm"]))
        self._least_batch = {JobId(job): int(n) for job, n in saved["least_batch"].items()}


def _single(job: JobView) -> int:
    """The batch of a job on a single GPU: its base batch, as far as memory allows."""
    base = job.base_batch or 1
    return min(base, job.local_limit or base)
