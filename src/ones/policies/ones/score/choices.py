"""Sizes that a job may get, each with its batch and its speed.

A size is a number of GPUs. Sizes are limited by those that the job's kind has tried; the batch of
each size is the one with the best goodput.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ones.core.view import JobView, View
from ones.models.goodput import efficiency
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.score.flow import usual_sizes
from ones.policies.ones.score.limits import largest_batch, largest_batches
from ones.policies.ones.settings import OnesSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: a size counts as slower than another below this share of its speed: measurements have noise
CLEARLY_SLOWER = 0.9


class Choices(NamedTuple):
    """Sizes of a job in ascending order, with a batch and a speed for each."""

    sizes: Ints
    batches: Ints  # 0: the batch of the script
    rates: Floats  # effective samples per second, rising except at the held size
    present: float = 0.0  # rate with the present GPUs and batch; 0: not running

    def at(self, gpus: int) -> int:
        """Returns the index of the largest size within `gpus`; 0 if there is none."""
        return max(0, int(self.sizes.searchsorted(gpus, "right")) - 1)


def most_gpus(
    view: View,
    job: JobView,
    known: Knowledge,
    status: JobStatus,
    settings: OnesSettings,
    gpus: int,
) -> int:
    """Returns the largest number of GPUs that a job may get now; 0 if it may not run.

    The limit is a multiple of the largest size that the job's kind has tried. A job that has not
    joined gets at most the tried size.
    """
    least, owner_room = job.job.min_gpus, view.room(job.job.owner)
    most, tried = least, known.speeds.largest_tried(job)
    shape = known.effective_work.shape(job)
    if job.description is not None:
        most = max(least, int(settings.exploration * max(tried, 1)))
    elif shape is not None:  # it starts with its own batch: one sample per worker
        most = max(least, min(tried, shape.base_batch))
    # a worker needs a sample, so the user's largest batch is also a number of GPUs
    most = min(most, settings.most_gpus, gpus, job.max_gpus or gpus, job.job.max_batch or gpus)
    if status.most_gpus is not None:
        most = min(most, max(least, status.most_gpus))
    if owner_room is not None:
        most = min(most, (job.wanted.n_gpus if job.wanted else 0) + owner_room)
    return most if most >= least else 0


def choices_of(
    view: View,
    job: JobView,
    most: int,
    held: int,
    known: Knowledge,
    status: JobStatus,
    settings: OnesSettings,
) -> Choices:
    """Returns the sizes of a job up to `most`, and its held size.

    A job that has not joined is treated as the last job of its kind and starts with its own batch.
    """
    joined = job.description is not None
    if joined:
        limit = largest_batch(job, settings)
    else:
        job = known.effective_work.as_if_joined(job)
        limit = max(job.job.requested_batch or 1, known.speeds.largest_batch(job))
    per_node = max(1, view.cluster.width)
    up_to = max(1, most, held)
    usual = usual_sizes(up_to, per_node).tolist()
    sizes = np.array(sorted({*usual, held, job.job.min_gpus} - {0}), np.int64)
    highest = largest_batches(job, sizes, limit, status.smallest_batch, settings)
    if job.description is not None:
        noise = known.effective_work.noise(job)
        batches, rates = known.speeds.best_batches(job, sizes, highest, per_node, noise)
        if not joined:  # measurements of the kind precede the model
            proven = known.speeds.proven(job, sizes, job.description.base_batch, noise)
            rates = np.where(np.isnan(proven), rates, proven)
    else:
        batches, rates = highest, known.speeds.samples_per_second(job, sizes, highest, per_node)
    slower = _proven_slower(sizes, rates, known.speeds.tried(job, sizes), job.job.min_gpus)
    rates = np.where(slower, rates, np.maximum.accumulate(rates))
    useful = ~slower | (sizes == held)
    if not joined:
        batches = np.zeros_like(batches)
    sizes, batches, rates = sizes[useful], batches[useful], rates[useful]
    return Choices(sizes, batches, rates, _present_rate(job, held, known, per_node))


def _present_rate(job: JobView, held: int, known: Knowledge, per_node: int) -> float:
    if not held or job.wanted is None or job.wanted.n_gpus != held or job.description is None:
        return 0.0
    rate = known.speeds.rate(job, held, job.wanted.batch, per_node)
    base, noise = job.description.base_batch, known.effective_work.noise(job)
    return rate * efficiency(job.wanted.batch or base, base, noise)


def _proven_slower(
    sizes: Ints, rates: Floats, tried: NDArray[np.bool_], least: int
) -> NDArray[np.bool_]:
    """Marks sizes that were measured to be slower than a smaller allowed size.

    A job does not grow to such a size again. Both sizes must have been measured, because the model
    may be wrong; otherwise more GPUs count as at least as fast.
    """
    proven = np.where(tried & (sizes >= least), rates, -np.inf)
    before = np.append(-np.inf, np.maximum.accumulate(proven)[:-1])
    slower: NDArray[np.bool_] = tried & (rates < CLEARLY_SLOWER * before)
    return slower
