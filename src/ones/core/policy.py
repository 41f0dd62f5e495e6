"""The policy interface, and the check of a policy's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from ones.core.cluster import Gpu, NodeState
from ones.core.events import Event
from ones.core.job import Forecast, JobId
from ones.core.plan import Change, PlanAdopted
from ones.core.schedule import Allocation, Schedule
from ones.core.state import State
from ones.core.view import JobView, View
from ones.errors import BrokenPolicyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    schedule: Schedule
    wake_at: float = inf  # `decide` is called again by then, even if nothing happens
    notes: Mapping[JobId, str] = field(default_factory=dict)  # reasons, for users
    forecasts: Mapping[JobId, Forecast] = field(default_factory=dict)
    #: waiting jobs that are not admitted, and why: they end at once
    refused: Mapping[JobId, str] = field(default_factory=dict)


class Policy(Protocol):
    """Turns a view into a schedule.

    Every policy must guarantee (`ones.testing` has the tests):

    * the same seed, events and views give the same decisions;
    * `decide` learns nothing, so calling it twice gives the same decision;
    * a decision names unfinished jobs only, leaves pinned jobs as they are `wanted`, puts no new
      worker on a draining node or GPU, and respects memory, sizes and limits of owners;
    * with no unfinished job, `wake_at` is infinite, so that a run can end;
    * after `load` of what `save` returned, the same decisions follow.
    """

    #: the events after which `decide` is called
    @property
    def decides_on(self) -> frozenset[type[Event]]: ...
    #: how the policy's publication rescales a job: "elastic" (between two steps), "checkpoint" or
    #: "suspend" (the state stays in the memory of the host)
    @property
    def native_mechanism(self) -> str: ...

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        """Learn from an event. `view` already includes its effect."""

    def decide(self, view: View) -> Decision:
        """The schedule that should be. To change nothing, return `view.schedule`."""
        ...

    def save(self) -> dict[str, Any]:
        """All that was learned, as plain JSON values, with the state of the random generator."""
        ...

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore what `save` returned."""


def check(state: State, changes: tuple[Change, ...]) -> None:
    """Raise BrokenPolicyError for a decision that no engine could carry out.

    The cost grows with the changed jobs and their workers only.
    """
    after = {change.job: change.after for change in changes}
    taken: dict[Gpu, JobId] = {}
    growth: dict[str, int] = {}
    for change in changes:
        job = change.job
        if job not in state.records:
            raise BrokenPolicyError(f"job {job} got GPUs and is not an unfinished job")
        view = state.job_view(job)
        if view.pinned:
            raise BrokenPolicyError(f"job {job} is pinned and its allocation was changed")
        growth[view.job.owner] = (
            growth.get(view.job.owner, 0)
            + (change.after.n_gpus if change.after else 0)
            - (change.before.n_gpus if change.before else 0)
        )
        if change.after is None:
            continue
        _check_size(view, change.after)
        _check_batch(view, change.after)
        before = frozenset(change.before.gpus) if change.before else frozenset()
        for gpu in change.after.gpus:
            condition = state.cluster.state_of(gpu)
            if condition is None or condition is NodeState.DOWN:
                raise BrokenPolicyError(f"job {job} got GPU {gpu}, which does not exist or is down")
            if condition is NodeState.DRAINING and gpu not in before:
                raise BrokenPolicyError(f"job {job} got GPU {gpu}, which is draining")
            other = taken.setdefault(gpu, job)
            holder = state.assigned.get(gpu)
            if other == job and holder is not None and holder != job:
                theirs = after.get(holder, state.schedule.get(holder))
                other = holder if theirs is not None and gpu in theirs.gpus else job
            if other != job:
                raise BrokenPolicyError(f"GPU {gpu} was given to job {job} and to job {other}")
    for owner, more in growth.items():
        room = state.waiting.room(owner)
        if room is not None and more > max(0, room):
            raise BrokenPolicyError(
                f"owner {owner!r} got {more} more GPUs; its limit allows {max(0, room)} more"
            )


def _check_size(view: JobView, allocation: Allocation) -> None:
    gpus, job = allocation.n_gpus, view.job
    if len(set(allocation.gpus)) != gpus:
        gpus_text = ", ".join(map(str, allocation.gpus))
        raise BrokenPolicyError(f"job {job.id} got a GPU twice: {gpus_text}")
    if gpus < job.min_gpus or (job.max_gpus is not None and gpus > job.max_gpus):
        maximum = "any" if job.max_gpus is None else job.max_gpus
        raise BrokenPolicyError(f"job {job.id} got {gpus} GPUs, not in {job.min_gpus}..{maximum}")


def _check_batch(view: JobView, allocation: Allocation) -> None:
    job = view.job.id
    if any(w.micro_steps < 1 for w in allocation.workers):
        raise BrokenPolicyError(f"job {job}: micro_steps is not at least 1")
    if view.description is None:  # only the user's request is known
        if allocation.batch not in (0, view.job.requested_batch):
            raise BrokenPolicyError(
                f"job {job} got batch {allocation.batch} before it has joined;"
                f" requested: {view.job.requested_batch}"
            )
        if allocation.batch == 0:
            return
    if any(w.batch < 1 for w in allocation.workers):
        raise BrokenPolicyError(f"job {job} has a worker with batch 0")
    limit = view.local_limit
    if limit is not None and allocation.largest_part > limit:
        raise BrokenPolicyError(
            f"job {job}: {allocation.largest_part} samples on one GPU at once, limit {limit}"
        )
