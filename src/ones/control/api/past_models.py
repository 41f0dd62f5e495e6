"""Answers about time that has passed: usage, history of the cluster, curves of jobs, replays."""

from __future__ import annotations

from pydantic import BaseModel, Field

from ones.control.api.response_models import Curves, Sendable
from ones.control.readmodels.progress_curves import Axis
from ones.control.whatif import State


class UsageShown(BaseModel):
    """A key by which the rows are not grouped is null."""

    user: str | None
    tag: Sendable | None
    day: str | None = Field(description="as 2026-01-31, in UTC")
    gpu_hours: float


class ShareShown(BaseModel):
    user: str
    gpu_hours: float = Field(description="past use, halved with every half-life")
    share_gpu_hours: float = Field(description="an equal share of what can be used and remembered")
    ratio: float = Field(description="past use as a multiple of the share")
    penalty: float = Field(description="taken from the priority of the user's jobs, below 1")


class SharesShown(BaseModel):
    half_life_hours: float = Field(description="0: past use does not count")
    users: list[ShareShown]


class BudgetShown(BaseModel):
    user: str
    gpu_hours: float | None
    used: float = Field(description="GPU hours since the first day of the month")


class HistoryPoint(BaseModel):
    """Means of an interval, which begins at `at`."""

    at: float
    gpus: float = Field(description="of the cluster, without nodes that are down")
    gpus_used: float = Field(description="GPUs with a worker, also one that starts or leaves")
    utilisation: float | None = Field(
        description="share of the GPUs that are allocated, 0 to 1; null: there was no GPU"
    )
    waiting: float = Field(description="jobs without GPUs, also those on hold or after others")
    most_waiting: int
    running: float = Field(description="jobs with GPUs")
    decisions_per_hour: float = Field(description="decisions that changed a job")


class HistoryShown(BaseModel):
    now: float
    since: float
    step_seconds: int = Field(description="length of an interval")
    points: list[HistoryPoint] = Field(
        description="oldest first; intervals in which no controller ran are left out"
    )


class CurvesOfJob(BaseModel):
    id: str
    name: Sendable
    owner: str
    state: str
    curves: Curves = Field(description="pairs of (position on the axis, value)")


class CurvesShown(BaseModel):
    against: Axis
    jobs: list[CurvesOfJob] = Field(description="in the order of the request")


class JobTimes(BaseModel):
    completion_seconds: float
    waiting_seconds: float


class ReplayedJob(BaseModel):
    job: str
    owner: str
    submitted_at: float
    began_before: bool = Field(
        description="submitted before the window: times are from the window's begin"
    )
    assumed: str = Field(description="what its length is assumed to be; empty: as recorded")
    happened: JobTimes | None = Field(description="null: it has not ended")
    simulated: JobTimes | None = Field(description="under the policy that ran")
    whatif: JobTimes | None = Field(description="null: refused, or never started")


class Means(BaseModel):
    """Over the jobs that ended in all three, and over all jobs."""

    jobs: int
    mean_completion_seconds: float | None
    mean_waiting_seconds: float | None
    mean_completion_of_all: float | None = Field(description="null: not all have ended")
    mean_waiting_of_all: float | None


class ReplayResult(BaseModel):
    policy: str
    policy_then: str = Field(description="the policy that ran")
    since: float
    until: float
    gpus: int
    happened: Means
    simulated: Means = Field(
        description="the same jobs simulated under the policy that ran: its distance from"
        " `happened` is the error of the simulation"
    )
    whatif: Means = Field(description="the same jobs simulated under the other policy")
    jobs: list[ReplayedJob] = Field(description="jobs that the user may see")
    jobs_of_others: int = Field(description="further jobs, which count in the means")
    left_out: dict[str, int] = Field(description="jobs that cannot be simulated, by reason")
    assumptions: list[Sendable]


class ReplayShown(BaseModel):
    policy: str
    hours: float
    state: State
    started_at: float
    done: int = Field(description="jobs that have ended in both simulations")
    total: int = Field(description="0: the run log is being read")
    problem: Sendable
    result: ReplayResult | None
