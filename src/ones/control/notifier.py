"""Tells users about their jobs: calls webhooks and runs commands, with retries.

The scheduler's thread only compares a job's new card with what was told of the job, and queues.
Deliveries are in memory: a controller that is killed loses those that it has not made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from ones.control import logs
from ones.control.notifications import Notification, Notifications, is_open_address
from ones.control.readmodels.job_cards import JobCard
from ones.core.job import EndReason
from ones.errors import UserError
from ones.wire.backoff import Backoff

TRIES = 6
PAUSES = (1.0, 60.0)  # first and longest pause between two tries of a delivery
SECONDS = 10.0  # for a response
COMMAND_SECONDS = 60.0
MOST_WAITING = 10_000  # deliveries; further ones are dropped
THREADS = 4

log = logs.logger(__name__)


class DeliveryError(UserError):
    """A delivery failed; the message says why, without the content of a response."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What of a job users know already."""

    started: bool = False
    preemptions: int = 0
    over: bool = False

    @classmethod
    def of(cls, card: JobCard) -> _Told:
        return cls(card.started_at is not None, card.preemptions, card.over)


@dataclass(frozen=True, slots=True)
class Delivery:
    target: Notification
    event: str
    body: bytes
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Notifier:
    """`may_run`: whether a user may let the controller run commands and call any address; None:
    there is no such user."""

    def __init__(
        self,
        wishes: Notifications,
        may_run: Callable[[str], bool | None],
        *,
        pauses: tuple[float, float] = PAUSES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._wishes, self._may_run, self._now = wishes, may_run, now
        self._pauses = pauses
        self._told: dict[str, _Told] = {}
        self.last: dict[int, str] = {}  # number of a notification -> result of its last delivery
        self._changed = threading.Condition()  # for the three fields below
        self._closing = False
        self._waiting = 0  # deliveries that are not made
        #: (time of the next try, order, delivery, tries made, its pauses)
        self._later: list[tuple[float, int, Delivery, int, Backoff]] = []
        self._order = count()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ones-notify")
        self._thread = threading.Thread(target=self._run_later, name="ones-notify", daemon=True)
        self._thread.start()

    def fill(self, cards: Iterable[JobCard]) -> None:
        """After a restart: nothing is reported of what happened before."""
        self._told = {card.id: _Told.of(card) for card in cards if not card.over}

    def take(self, card: JobCard) -> None:
        """A job has a new card. To be called in the scheduler's thread."""
        before = self._told.get(card.id, _Told())
        after = _Told.of(card)
        if card.over:
            self._told.pop(card.id, None)
        else:
            self._told[card.id] = after
        if before == after:
            return
        wishes = [w for w in self._wishes.of(card.owner) if not w.tag or w.tag in card.tags]
        for event in _events(before, after, card) if wishes else ():
            for wish in wishes:
                # an end that is a failure is one message
                if event in wish.events or (event == "failure" and "end" in wish.events):
                    self.send(Delivery(wish, event, body_of(event, card, self._now())))

    def warn(self, card: JobCard, text: str) -> None:
        """A job has a problem that does not change its state."""
        body = body_of("warning", card, self._now(), f"warning: {text}")
        for wish in self._wishes.of(card.owner):
            if "warning" in wish.events and (not wish.tag or wish.tag in card.tags):
                self.send(Delivery(wish, "warning", body))

    def send(self, delivery: Delivery) -> None:
        with self._changed:
            if self._closing:
                return
            if self._waiting >= MOST_WAITING:
                number = delivery.target.number
                log.warning("notification dropped", number=number, why="too many wait")
                return
            self._waiting += 1
            self._pool.submit(self._try, delivery, 1, Backoff(*self._pauses))

    def _run_later(self) -> None:
        """Hand deliveries to the pool when their next try is due."""
        with self._changed:
            while not self._closing:
                due = self._later[0][0] - time.monotonic() if self._later else None
                if due is not None and due <= 0:
                    _, _, delivery, tries, backoff = heappop(self._later)
                    self._pool.submit(self._try, delivery, tries + 1, backoff)
                else:
                    self._changed.wait(due)

    def _try(self, delivery: Delivery, attempt: int, backoff: Backoff) -> None:
        number = delivery.target.number
        try:
            self.deliver_once(delivery)
        except DeliveryError as problem:
            self.last[number] = str(problem)
            if attempt < TRIES:
                with self._changed:
                    due = time.monotonic() + backoff.next()
                    heappush(self._later, (due, next(self._order), delivery, attempt, backoff))
                    self._changed.notify_all()
                return
            log.warning("notification failed", number=number, reason=str(problem))
        except Exception:
            log.exception("notification failed", number=number)
        else:
            self.last[number] = "delivered"
        with self._changed:
            self._waiting -= 1

    def deliver_once(self, delivery: Delivery) -> None:
        """Raises DeliveryError if it failed."""
        target = delivery.target
        trusted = self._may_run(target.owner)
        if trusted is None:
            return  # the user was removed
        if target.url:
            if not trusted:
                _check_address(target.url)
            _post(delivery, self._now())
        elif trusted:
            _run(delivery)
        else:
            raise DeliveryError(f"{target.owner} is not an admin any more: the command is not run")

    def close(self) -> None:
        """Drop what waits, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)


def _events(before: _Told, after: _Told, card: JobCard) -> list[str]:
    found = []
    if after.started and not before.started:
        found.append("start")
    if after.preemptions > before.preemptions:
        found.append("preemption")
    if after.over and not before.over:
        found.append("failure" if card.state == EndReason.FAILED else "end")
    return found


#: words of the message, by event
_WORDS = {"start": "has started", "preemption": "was preempted: its work is saved, and it waits"}


def body_of(event: str, card: JobCard, now: float, words: str = "") -> bytes:
    """The message as JSON. `text` is a sentence, which chat services show."""
    words = words or _WORDS.get(event) or f"has ended: {card.state}"
    why = f" ({card.message})" if card.message else ""
    shown = card.at(now)
    job = {name: shown[name] for name in JOB_KEYS}
    return json.dumps(
        {"event": event, "at": now, "text": f"{card.id} {words}{why}", "job": job}
    ).encode()


JOB_KEYS = (
    *("id", "name", "owner", "state", "tags", "gpus", "epochs", "loss", "accuracy", "message"),
    *("submitted_at", "started_at", "ended_at", "queue_seconds", "run_seconds", "gpu_seconds"),
    *("preemptions", "array"),
)


def signature(secret: str, at: str, body: bytes) -> str:
    """`sha256=` and the HMAC of the time, a dot and the body."""
    digest = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256)
    return f"sha256={digest.hexdigest()}"


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise DeliveryError(f"{parts.hostname}: {problem.strerror or problem}") from problem
    if not all(is_open_address(str(address[4][0])) for address in found):
        why = "only admins may call the controller's machine or link-local addresses"
        raise DeliveryError(f"{parts.hostname}: {why}")


def _post(delivery: Delivery, now: float) -> None:
    import httpx

    at = str(int(now))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "ones",
        "X-ONES-Event": delivery.event,
        "X-ONES-Delivery": delivery.id,
        "X-ONES-Time": at,
        "X-ONES-Signature": signature(delivery.target.secret, at, delivery.body),
    }
    try:
        answer = httpx.post(
            delivery.target.url, content=delivery.body, headers=headers, timeout=SECONDS
        )
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as problem:
        raise DeliveryError(f"no answer: {type(problem).__name__}") from problem
    if not answer.is_success:
        raise DeliveryError(f"answered with HTTP status {answer.status_code}")


def _run(delivery: Delivery) -> None:
    """The message is on standard input; the environment has its main values."""
    job: Mapping[str, Any] = json.loads(delivery.body)["job"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONES_")}
    env |= {
        "ONES_EVENT": delivery.event,
        "ONES_JOB": str(job["id"]),
        "ONES_STATE": str(job["state"]),
        "ONES_OWNER": str(job["owner"]),
    }
    try:
        done = subprocess.run(
            delivery.target.command, input=delivery.body, env=env, timeout=COMMAND_SECONDS,
            check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise DeliveryError(f"{delivery.target.command[0]}: {problem}") from problem
    if done.returncode:
        raise DeliveryError(f"{delivery.target.command[0]}: exit code {done.returncode}")
