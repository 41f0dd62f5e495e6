"""HTTP routes of notifications."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path
from pydantic import BaseModel, Field

from ones.control.accounts import User
from ones.control.api.access import TheRecord, TheService, TheUser
from ones.control.api.request_models import Strict, Text, Word
from ones.control.api.response_models import ADMINS, NOT_FOUND, PROBLEMS, Sendable
from ones.control.notifications import Notification
from ones.control.notifier import Delivery, body_of
from ones.control.readmodels.job_cards import JobCard
from ones.control.service import Service
from ones.errors import UserError

router = APIRouter(prefix="/api/notifications", tags=["notifications"], responses=PROBLEMS)

Number = Annotated[int, Path(ge=1, le=2**53)]


class NewNotification(Strict):
    """Give either `url` or `command`."""

    url: Text = Field("", description="is called with POST", examples=["https://chat.example/hook"])
    command: Annotated[list[Text], Field(max_length=100)] = Field(
        default_factory=list, description="is run by the controller; admins only"
    )
    events: Annotated[list[Word], Field(max_length=10)] = Field(
        default_factory=list, description="start, end, failure, preemption, warning; empty: all"
    )
    tag: Text = Field("", description="only jobs with this tag")


class NotificationShown(BaseModel):
    number: int
    owner: str
    url: Sendable
    command: list[Sendable]
    events: list[str]
    tag: Sendable
    last: Sendable = Field(description="result of the last delivery; empty: there was none")


class NotificationAdded(NotificationShown):
    secret: str = Field(description="key of the signature; shown once")


@router.get("")
def notifications(service: TheService, user: TheUser) -> list[NotificationShown]:
    """The user's notifications; an admin sees those of all users."""
    found = service.notifications.of(None if user.is_admin else user.name)
    return [NotificationShown.model_validate(_plain(each, service)) for each in found]


@router.post("", status_code=201, responses=ADMINS)
async def add(
    new: NewNotification, service: TheService, user: TheUser, record: TheRecord
) -> NotificationAdded:
    """Add a notification about the user's own jobs. `failure` is the end of a job that failed; it
    also counts as an `end`."""
    if new.command and not user.is_admin:
        raise HTTPException(403, "only admins may let the controller run a command")
    made = await asyncio.to_thread(
        service.notifications.add,
        user.name,
        url=new.url,
        command=tuple(new.command),
        events=tuple(new.events),
        tag=new.tag,
    )
    record("notification added", str(made.number), " ".join(new.command) or new.url)
    return NotificationAdded.model_validate({**_plain(made, service), "secret": made.secret})


@router.delete("/{number}", responses=NOT_FOUND)
async def remove(
    number: Number, service: TheService, user: TheUser, record: TheRecord
) -> NotificationShown:
    """Remove a notification."""
    found = await asyncio.to_thread(service.notifications.remove, number, _scope(user))
    record("notification removed", str(number))
    return NotificationShown.model_validate(_plain(found, service))


@router.post("/{number}/test", responses=NOT_FOUND)
async def test(number: Number, service: TheService, user: TheUser) -> NotificationShown:
    """Deliver a message about a job that does not exist, once, and say whether that worked."""
    found = service.notifications.get(number, _scope(user))
    body = body_of("end", _example(found.owner), service.clock.now())
    try:
        await asyncio.to_thread(service.notifier.deliver_once, Delivery(found, "end", body))
    except UserError as problem:
        raise UserError(f"notification {number}: {problem}") from problem
    return NotificationShown.model_validate({**_plain(found, service), "last": "delivered"})


def _scope(user: User) -> str | None:
    return None if user.is_admin else user.name


def _plain(found: Notification, service: Service) -> dict[str, object]:
    return {
        "number": found.number,
        "owner": found.owner,
        "url": found.url,
        "command": list(found.command),
        "events": list(found.events),
        "tag": found.tag,
        "last": service.notifier.last.get(found.number, ""),
    }


def _example(owner: str) -> JobCard:
    return JobCard(
        id="example-0", name="example", owner=owner, state="finished", elastic=True, kind="example",
        command=("true",), tags=(), priority=0.0, min_gpus=1, max_gpus=1, workers=(), batch=None,
        dataset_size=None, eta=None, eta_low=None, eta_high=None, note="",
        message="a test of this notification", submitted_at=0.0, ended_at=0.0, booked_at=0.0,
    )  # fmt: skip
