"""HTTP routes of usage and budgets."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from ones.control.api.access import TheAdmin, TheRecord, TheService, TheUser
from ones.control.api.past_models import BudgetShown, ShareShown, SharesShown, UsageShown
from ones.control.api.request_models import Strict
from ones.control.api.response_models import ADMINS, NOT_FOUND, PROBLEMS
from ones.control.usage import ALL, HOUR

router = APIRouter(tags=["usage"], responses=PROBLEMS)

Group = Literal["user", "tag", "day"]
MONTH = 30 * 86_400.0


class Budget(Strict):
    gpu_hours: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="GPU hours that the user may use in a calendar month; null: no budget"
    )


@router.get("/api/usage")
def usage(
    service: TheService,
    user: TheUser,
    by: Annotated[
        list[Group] | None, Query(description="keys of the rows; none: user", max_length=3)
    ] = None,
    since: Annotated[float | None, Query(ge=0, le=1e11, description="default: 30 days ago")] = None,
    until: Annotated[float | None, Query(ge=0, le=1e11)] = None,
    owner: Annotated[str | None, Query(description="only jobs of this user")] = None,
) -> list[UsageShown]:
    """GPU hours by user, tag and day, of whole days. A job with several tags counts for each of
    them. Users see their own."""
    now = service.clock.now()
    keys = by or ["user"]
    found: dict[tuple[str | None, str | None, str | None], float] = {}
    for row in service.usage.rows(
        service.board.live(),
        since=now - MONTH if since is None else since,
        until=now if until is None else until,
        user=owner if user.is_admin else user.name,
    ):
        if (row.tag != ALL) == ("tag" in keys):
            place = (
                row.user if "user" in keys else None,
                row.tag if "tag" in keys else None,
                row.day if "day" in keys else None,
            )
            found[place] = found.get(place, 0.0) + row.gpu_hours
    if not user.is_admin and owner not in (None, user.name):
        return []
    return [
        UsageShown(user=name, tag=tag, day=day, gpu_hours=hours)
        for (name, tag, day), hours in found.items()
    ]


@router.get("/api/shares")
def shares(service: TheService, user: TheUser) -> SharesShown:
    """Past use that counts in the order of jobs (`service.fair_share_half_life_hours`), the largest
    first. Users see their own."""
    counted = service.shares()
    return SharesShown(
        half_life_hours=service.scheduler.state.fair_share.half_life / HOUR,
        users=[
            ShareShown(
                user=each.owner,
                gpu_hours=each.gpu_seconds / HOUR,
                share_gpu_hours=each.share / HOUR,
                ratio=each.ratio,
                penalty=each.penalty,
            )
            for each in counted
            if service.may_see(user, each.owner)
        ],
    )


@router.get("/api/budgets")
def budgets(service: TheService, user: TheUser) -> list[BudgetShown]:
    """The budget of the user, or those of all users for an admin."""
    names = [each.name for each in service.accounts.all()] if user.is_admin else [user.name]
    live = service.board.live()
    return [
        BudgetShown(
            user=name,
            gpu_hours=service.usage.budget(name),
            used=service.usage.used_this_month(name, live),
        )
        for name in names
    ]


@router.put("/api/users/{name}/budget", responses={**ADMINS, **NOT_FOUND})
async def set_budget(
    name: str, new: Budget, service: TheService, admin: TheAdmin, record: TheRecord
) -> BudgetShown:
    """Set or remove a user's budget. Without GPU hours left, new jobs are refused; present jobs
    continue."""
    service.accounts.get(name)
    await asyncio.to_thread(service.usage.set_budget, name, new.gpu_hours)
    what = "none" if new.gpu_hours is None else f"{new.gpu_hours:g} GPU hours a month"
    record("budget set", name, what)
    used = service.usage.used_this_month(name, service.board.live())
    return BudgetShown(user=name, gpu_hours=new.gpu_hours, used=used)
