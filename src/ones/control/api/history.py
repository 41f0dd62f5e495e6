"""HTTP route of the use of the cluster over time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ones.control.api.access import TheService, TheUser
from ones.control.api.past_models import HistoryPoint, HistoryShown
from ones.control.api.response_models import PROBLEMS

router = APIRouter(tags=["service"], responses=PROBLEMS)

DAY = 86_400.0


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
