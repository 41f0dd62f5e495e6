"""Plans and actions, and the steps from the current schedule to the target schedule.

`diff` returns the jobs with a changed allocation. `next_step` returns the action for one job that
can begin now. A move of a GPU takes two steps. First the job that loses the GPU continues with its
staying workers. When the GPU is reported free, the job that gets it starts or grows there. Workers
leave without waiting for other jobs, so no deadlock can form.

The second step is not in the plan that begins the move. The core makes a later plan for it when
the last `WorkerLeft` arrives. So engines need not know the steps, and each configuration of a job
has its own plan number.
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
    """Start the job on free GPUs; after a stop, resume it from its checkpoint."""

    job: JobId
    allocation: Allocation
    #: global batch that the script's learning rate was tuned for; None: not known
    base_batch: Positive | None = None


class Rescale(Tagged, frozen=True):
    """Change to these workers and batches between two training steps."""

    job: JobId
    allocation: Allocation
    base_batch: Positive | None = None


class Prepare(Tagged, frozen=True):
    """Announce the allocation that follows when its GPUs are free, so that joining workers may
    warm up on the CPU."""

    job: JobId
    allocation: Allocation


class Withdraw(Tagged, frozen=True):
    """Withdraw a prepared allocation: workers that warm up for it may exit."""

    job: JobId


class Stop(Tagged, frozen=True):
    """Save a checkpoint at the next training step, then all workers leave."""

    job: JobId


class Finish(Tagged, frozen=True):
    """End the job: all workers leave, and the engine reports `JobEnded` with this reason."""

    job: JobId
    reason: EndReason
    message: str = ""


Action = Start | Rescale | Prepare | Withdraw | Stop | Finish


class Plan(Tagged, frozen=True, kw_only=True):
    """Actions that may be carried out at once and in parallel; `number` is their generation."""

    number: Number
    at: Time
    actions: tuple[Action, ...] = ()
    notes: Mapping[JobId, str] = field(default_factory=dict)  # reasons of jobs, where they changed
    forecasts: Mapping[JobId, Forecast] = field(default_factory=dict)

    @property
    def says_nothing(self) -> bool:
        return not (self.actions or self.notes or self.forecasts)


@dataclass(frozen=True, slots=True)
class PlanAdopted:
    """Passed to `observe` when the core has applied a plan. Not logged, because the plan is."""

    at: float
    plan: Plan


@dataclass(frozen=True, slots=True)
class Change:
    """The allocation of one job before and after; None: no GPUs."""

    job: JobId
    before: Allocation | None
    after: Allocation | None


def diff(current: Schedule, target: Schedule) -> tuple[Change, ...]:
    """The changes from one schedule to another, by job id.

    Takes time proportional to the touched jobs if both schedules have the same root.
    """
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
    """The next action towards the goal of a job without an action in flight; None: it must wait.

    `is_free`: no worker is on the GPU. `is_claimed`: the GPU is planned for another job.
    `in_place`: staying workers continue through a change of GPUs; if False, every change of GPUs
    is a stop and a start, as in systems without elasticity.
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
        return Stop(job)  # no worker stays to transfer the state: it goes through a checkpoint
    joining, leaving = goal_gpus - held_gpus, held_gpus - goal_gpus
    joining_fit = all(map(is_free, joining))
    if joining_fit and not (joining and any(map(is_claimed, leaving))):
        return Rescale(job, goal, base_batch)
    if leaving:
        return Rescale(job, held.survivors(survivors, local_limit), base_batch)
    return None
