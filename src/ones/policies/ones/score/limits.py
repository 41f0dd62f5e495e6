"""The largest batch of a job (§3.3.2), by its user, its data, its memory and its recent batches.

The limit R_j of the paper grows and shrinks by rules of its own; `ones` chooses the batch with the
best goodput, and needs only the rule against sudden growth. docs/paper.md, items 30 to 36.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ones.core.view import JobView
from ones.policies.ones.settings import OnesSettings

Ints = NDArray[np.int64]

#: micro-steps of a step at most: what does not fit into memory is accumulated, if that is faster
MAX_PARTS = 32
#: steps of an epoch at least
LEAST_STEPS = 10


def largest_batch(job: JobView, settings: OnesSettings) -> int:
    """With any number of GPUs."""
    assert job.description is not None
    base, samples = job.description.base_batch, job.description.dataset_size
    local = job.local_limit or base
    most = min(
        MAX_PARTS * settings.most_gpus * local,
        samples // LEAST_STEPS,
        settings.most_base_batches * base,
    )
    most = max(min(base, local), most, job.job.min_batch or 1)
    return min(most, job.job.max_batch or most)


def largest_batches(
    job: JobView, sizes: Ints, limit: int, smallest: int, settings: OnesSettings
) -> Ints:
    """Returns the largest batch of each size, up to `limit`.

    `smallest`: the smallest batch since the last epoch ended; 0 if the job has not trained since.
    """
    if job.description is None:
        return np.zeros(len(sizes), np.int64)
    local = job.local_limit or job.description.base_batch
    most = np.minimum(min(limit, job.job.max_batch or limit), MAX_PARTS * sizes * local)
    if smallest:
        most = np.minimum(most, int(settings.epoch_growth * smallest))
    return np.maximum(most, np.maximum(sizes, job.job.min_batch or 1)).astype(np.int64)
