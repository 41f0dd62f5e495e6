"""HTTP route of the use of the cluster over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from ones.control.api.access import TheService, TheUser
from ones.control.api.response_models import PROBLEMS

router = APIRouter(tags=["service"], responses=PROBLEMS)

DAY = 86_400.0


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


@router.get("/api/history")
def history(
    service: TheService,
    user: TheUser,
    since: Annotated[
        float | None, Query(ge=0, le=1e12, allow_inf_nan=False, description="default: a day ago")
    ] = None,
    points: Annotated[int, Query(ge=2, le=5000, description="maximum number of intervals")] = 500,
) -> HistoryShown:
    """GPUs used, waiting jobs and decisions over time, of all users. The last 25 hours are
    kept in minutes, eight days in quarters of an hour, 100 days in steps of two hours."""
    now = service.clock.now()
    begin = now - DAY if since is None else since
    step, found = service.history.points(begin, points)
    shown = [
        HistoryPoint(
            at=point.at,
            gpus=point.gpus,
            gpus_used=point.gpus_used,
            utilisation=point.utilisation,
            waiting=point.waiting,
            most_waiting=point.most_waiting,
            running=point.running,
            decisions_per_hour=point.decisions_per_hour,
        )
        for point in found
    ]
    return HistoryShown(now=now, since=begin, step_seconds=step, points=shown)
