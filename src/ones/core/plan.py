"""From what should be to what must be done.

`diff` names the jobs whose allocation changes. `next_step` says, for one job, the
order that can be given now. A move takes two strokes: first every job that loses a
GPU goes on with its survivors; then, when the GPU has been seen to be free, its new
owner takes it. Leaving never waits for anybody, so no circle of waiting can form.

Stroke two is not in the plan that begins the move: it is a later plan of its own,
which the core makes when the last `WorkerLeft` arrives. So engines know nothing of
strokes, and each configuration of a job has its own plan number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec import field

from ones.core.cluster import Gpu
from ones.core.job import EndReason, Forecast, JobId
from ones.core.schedule import Allocation, Schedule
from ones.wire.bounds import Number, Positive, Tagged, Time


class Start(Tagged, frozen=True):
    """Begin (or, after a stop, resume from the checkpoint) on GPUs that are free."""

    job: JobId
    allocation: Allocation
    #: what the script's learning rate was tuned for; None: not known
    base_batch: Positive | None = None


class Rescale(Tagged, frozen=True):
    """Switch between two steps to these workers and batches: newcomers join, others leave."""

    job: JobId
    allocation: Allocation
    base_batch: Positive | None = None


class Prepare(Tagged, frozen=True):
    """This is where the job will go once the GPUs are free: newcomers may warm up on the CPU."""

    job: JobId
    allocation: Allocation


class Withdraw(Tagged, frozen=True):
    """What was prepared will not come: newcomers that warm up may go."""

    job: JobId


class Stop(Tagged, frozen=True):
    """Checkpoint at the next step, then all workers leave."""

    job: JobId


class Finish(Tagged, frozen=True):
    """The job is over: all workers leave, and the engine reports `JobEnded` with this reason."""

    job: JobId
    reason: EndReason
    message: str = ""


Action = Start | Rescale | Prepare | Withdraw | Stop | Finish


class Plan(Tagged, frozen=True, kw_only=True):
    """Orders that may be carried out at once and side by side; `number` is their generation."""

    number: Number
    at: Time
    actions: tuple[Action, ...] = ()
    notes: Mapping[JobId, str] = field(default_factory=dict)  # why, where the reason changed
    forecasts: Mapping[JobId, Forecast] = field(default_factory=dict)

    @property
    def says_nothing(self) -> bool:
        return not (self.actions or self.notes or self.forecasts)


@dataclass(frozen=True, slots=True)
class PlanAdopted:
    """Told to `observe` when the core has taken a plan for true. Not logged: the plan is."""

    at: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Change:
    job: JobId
    before: Allocation | None
    after: Allocation | None


def diff(current: Schedule, target: Schedule) -> tuple[Change, ...]:
    """The jobs that change, by id. Costs the touched jobs if both go back to one schedule."""
    if current is target:
        return ()
    if current.related(target):
        jobs = sorted(current.touched | target.touched)
    else:
        jobs = sorted({*current, *target})
    changes = []
    for job in jobs:
        before, after = current.get(job), target.get(job)
        if before != after:
            changes.append(Change(job, before, after))
    return tuple(changes)


def next_step(
    job: JobId,
    held: Allocation | None,
    goal: Allocation | None,
    *,
    is_free: Callable[[Gpu], bool],
    is_claimed: Callable[[Gpu], bool],
    base_batch: int | None = None,
    local_limit: int | None = None,
    in_place: bool = True,
) -> Action | None:
    """The order that takes a settled job nearer to its goal, or None while it must wait.

    `is_free`: nobody is on that GPU. `is_claimed`: another job is to have it. `in_place`: who
    stays goes on; else other GPUs mean a stop and a start, as in systems without elasticity.
    """
    if held == goal:
        return None
    if held is None:
        assert goal is not None
        return Start(job, goal, base_batch) if all(map(is_free, goal.gpus)) else None
    if goal is None:
        return Stop(job)
    held_gpus, goal_gpus = frozenset(held.gpus), frozenset(goal.gpus)
    survivors = held_gpus & goal_gpus
    if not survivors or not (in_place or held_gpus == goal_gpus):
        return Stop(job)  # nobody hands the state over: through a checkpoint
    newcomers_fit = all(is_free(gpu) for gpu in goal_gpus - held_gpus)
    leavers = held_gpus - goal_gpus
    if newcomers_fit and not (goal_gpus - held_gpus and any(map(is_claimed, leavers))):
        return Rescale(job, goal, base_batch)
    if leavers:
        return Rescale(job, held.survivors(survivors, local_limit), base_batch)
    return None
