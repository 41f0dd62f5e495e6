"""HTTP routes of what-if replays: the last hours under another policy, beside what happened."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from pydantic import Field

from ones.control.accounts import User
from ones.control.api.access import TheService, TheUser
from ones.control.api.past_models import ReplayResult, ReplayShown
from ones.control.api.request_models import Strict
from ones.control.api.response_models import NOT_FOUND, PROBLEMS
from ones.control.service import Service
from ones.control.whatif import Replay
from ones.errors import UnknownNameError
from ones.policies import names

router = APIRouter(tags=["service"], responses=PROBLEMS)

MOST_HOURS = 24.0 * 31


class NewReplay(Strict):
    policy: str = Field(max_length=100, description="name of an installed policy")
    hours: Annotated[float, Field(gt=0, le=MOST_HOURS, allow_inf_nan=False)] = 6.0


@router.post("/api/whatif", status_code=202, responses=NOT_FOUND)
async def start(new: NewReplay, service: TheService, user: TheUser) -> ReplayShown:
    """Replay the jobs of the last hours under another policy, in the background: a process of the
    lowest priority simulates them twice, under the policy that ran and under the other. One replay
    at a time for each user."""
    if new.policy not in names():
        raise UnknownNameError("policy", new.policy, names())
    replay = await asyncio.to_thread(service.whatif.start, user.name, new.policy, new.hours)
    return _shown(replay, service, user)


@router.get("/api/whatif", responses=NOT_FOUND)
def show(service: TheService, user: TheUser) -> ReplayShown:
    """The user's last replay: its progress, or its result. A restart of the service forgets it."""
    return _shown(service.whatif.of(user.name), service, user)


@router.post("/api/whatif/cancel", responses=NOT_FOUND)
def cancel(service: TheService, user: TheUser) -> ReplayShown:
    """End the user's replay. One that has ended does not change."""
    return _shown(service.whatif.cancel(user.name), service, user)


def _shown(replay: Replay | None, service: Service, user: User) -> ReplayShown:
    if replay is None:
        raise HTTPException(404, f"{user.name} has not started a replay since the service started")
    return ReplayShown(
        policy=replay.policy,
        hours=replay.hours,
        state=replay.state,
        started_at=replay.started_at,
        done=replay.done,
        total=replay.total,
        problem=replay.problem,
        result=None if replay.result is None else _visible(replay.result, service, user),
    )


def _visible(result: Mapping[str, Any], service: Service, user: User) -> ReplayResult:
    """The result without the jobs that the user may not see."""
    jobs = [row for row in result["jobs"] if service.may_see(user, row["owner"])]
    others = len(result["jobs"]) - len(jobs)
    return ReplayResult.model_validate({**result, "jobs": jobs, "jobs_of_others": others})
