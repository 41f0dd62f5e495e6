"""From allocations to a schedule, with a reason for each job; texts are in `ones.core.reasons`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ones.core import reasons
from ones.core.job import JobId
from ones.core.schedule import Allocation, Schedule
from ones.core.view import JobView, View


def deploy(
    view: View,
    jobs: Sequence[JobView],
    allocations: Mapping[JobId, Allocation | None],
    limits: Mapping[JobId, int],
    *,
    update: bool,
) -> tuple[Schedule, dict[JobId, str]]:
    """The schedule with these allocations, and a note for each changed or waiting job.

    `limits`: the batch size limit of each job. `update`: jobs without an allocation lose their
    GPUs; otherwise they stay as they are.
    """
    edit = view.schedule.edit()
    notes: dict[JobId, str] = {}
    gained = {
        job.id: set(after.gpus).difference(job.wanted.gpus if job.wanted else ())
        for job in jobs
        if (after := allocations.get(job.id)) is not None
    }
    for job in jobs:
        after = allocations.get(job.id)
        if after is None and job.wanted is None:
            if job.note.startswith(reasons.PREEMPTED):
                continue  # the reason why it waits stays true
            notes[job.id] = reasons.waiting_by_rule(reasons.SHORTER_FIRST, job.job.min_gpus)
        elif after is None:
            if update and job.wanted is not None:
                edit.drop(job.id)
                given = {other: gpus for other, gpus in gained.items() if gpus}
                notes[job.id] = reasons.preempted(reasons.takers(job.wanted.gpus, given))
        elif after != job.wanted:
            edit.put(job.id, after)
            pause = job.switch_cost.rescale_seconds
            notes[job.id] = reasons.changed(
                job.wanted, after, _why(job, after, limits[job.id]), pause=pause
            )
    return edit.done(), notes


def _why(job: JobView, after: Allocation, limit: int) -> str:
    if not job.job.elastic:
        return reasons.FIXED_SIZE
    if job.wanted is not None and after.n_gpus < job.wanted.n_gpus:
        return reasons.OTHERS_GAIN_MORE
    return reasons.batch_limit(limit) if job.profile else reasons.NOT_MEASURED
