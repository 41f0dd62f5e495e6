"""HTTP route of the cluster's history: which job had which GPUs when."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query, Request

from ones.control.api.access import TheService, TheUser
from ones.control.api.response_models import PROBLEMS, SegmentShown, TimelineShown
from ones.control.readmodels.timeline import Timeline

router = APIRouter(tags=["service"], responses=PROBLEMS)

HOUR = 3600.0
#: maximum number of segments in one response
MOST = 20_000


@router.get("/api/timeline")
def timeline(
    service: TheService,
    user: TheUser,
    request: Request,
    since: Annotated[
        float | None, Query(ge=0, le=1e12, allow_inf_nan=False, description="default: an hour ago")
    ] = None,
) -> TimelineShown:
    """Which job had which GPU when, with which part of its batch. For jobs of other users only the
    owner is shown."""
    now = service.clock.now()
    begin = now - HOUR if since is None else since
    cards = service.board.cards
    live = [card.id for card in service.board.live()]
    past = cast(Timeline, request.app.state.timeline)
    shown = []
    for segment in past.since(begin, live, MOST):
        card = cards.get(segment.job)
        owner = card.owner if card is not None else None
        visible = user.is_admin or owner == user.name
        shown.append(
            SegmentShown(
                gpu=segment.gpu,
                job=segment.job if visible else None,
                owner=owner,
                batch=segment.batch or None,
                begin=segment.begin,
                end=segment.end,
            )
        )
    gpus = [slot.id for slot in service.launcher.slots()]
    return TimelineShown(now=now, since=begin, gpus=gpus, segments=shown)
