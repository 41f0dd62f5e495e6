"""What a scheduling policy is, what it promises, and the check that stops a broken one."""

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
    wake_at: float = inf  # ask again no later than this, even if nothing happens
    notes: Mapping[JobId, str] = field(default_factory=dict)  # why, in words and numbers
    forecasts: Mapping[JobId, Forecast] = field(default_factory=dict)


class Policy(Protocol):
    """Turns a view into a schedule.

    Its promises, to which tests/contracts/test_policy.py holds every policy:

    * the same seed, events and views give the same decisions;
    * `decide` learns nothing, so asking twice gives one answer;
    * a decision names unfinished jobs only, leaves pinned ones as they are wanted, puts nobody
      new on a draining node, and keeps within memory, sizes and owners' limits;
    * with no unfinished job it asks for no waking, so that a run can end;
    * what `save` gives, `load` takes: after it, the same decisions follow.
    """

    #: the events after which `decide` is asked; on all others it is not
    @property
    def decides_on(self) -> frozenset[type[Event]]: ...
    #: how its own publication re-scales a job: "elastic" (between two steps) or "checkpoint"
    @property
    def native_mechanism(self) -> str: ...

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        """Learn from something that happened. `view` already includes it."""

    def decide(self, view: View) -> Decision:
        """Say what should run. To change nothing, return `view.schedule`."""
        ...

    def save(self) -> dict[str, Any]:
        """What was learned, as plain JSON values, the generator's state included."""
        ...

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take up what `save` gave."""


def check(state: State, changes: tuple[Change, ...]) -> None:
    """Refuse a decision that no engine could carry out: a policy's bug stops here.

    Costs the changed jobs and their workers.
    """
    after = {change.job: change.after for change in changes}
    taken: dict[Gpu, JobId] = {}
    growth: dict[str, int] = {}
    for change in changes:
        job = change.job
        if job not in state.records:
            raise BrokenPolicyError(f"{job} got GPUs but is not an unfinished job")
        view = state.job_view(job)
        if view.pinned:
            raise BrokenPolicyError(f"{job} is in transition and was to be changed")
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
                raise BrokenPolicyError(f"{job} got GPU {gpu}, which is not there")
            if condition is NodeState.DRAINING and gpu not in before:
                raise BrokenPolicyError(f"{job} got GPU {gpu}, which is draining")
            other = taken.setdefault(gpu, job)
            holder = state.assigned.get(gpu)
            if other == job and holder is not None and holder != job:
                theirs = after.get(holder, state.schedule.get(holder))
                other = holder if theirs is not None and gpu in theirs.gpus else job
            if other != job:
                raise BrokenPolicyError(f"GPU {gpu} went to {job} and to {other}")
    for owner, more in growth.items():
        room = state.waiting.room(owner)
        if room is not None and more > max(0, room):
            raise BrokenPolicyError(f"owner {owner!r} got {more} GPUs more, with room for {room}")


def _check_size(view: JobView, allocation: Allocation) -> None:
    gpus, job = allocation.n_gpus, view.job
    if len(set(allocation.gpus)) != gpus:
        raise BrokenPolicyError(f"{job.id} got a GPU twice: {', '.join(map(str, allocation.gpus))}")
    if gpus < job.min_gpus or (job.max_gpus is not None and gpus > job.max_gpus):
        most = "any" if job.max_gpus is None else job.max_gpus
        raise BrokenPolicyError(f"{job.id} got {gpus} GPUs, not in {job.min_gpus}..{most}")


def _check_batch(view: JobView, allocation: Allocation) -> None:
    job = view.job.id
    if any(w.micro_steps < 1 for w in allocation.workers):
        raise BrokenPolicyError(f"{job}: micro_steps is not at least 1")
    if view.description is None:
        # nothing is known of it yet but what its user said
        if allocation.batch not in (0, view.job.requested_batch):
            raise BrokenPolicyError(
                f"{job} got batch {allocation.batch} before it has joined;"
                f" requested: {view.job.requested_batch}"
            )
        if allocation.batch == 0:
            return
    if any(w.batch < 1 for w in allocation.workers):
        raise BrokenPolicyError(f"{job} has a worker without samples")
    limit = view.local_limit
    if limit is not None and allocation.largest_part > limit:
        raise BrokenPolicyError(
            f"{job}: {allocation.largest_part} samples on one GPU at once, limit {limit}"
        )
