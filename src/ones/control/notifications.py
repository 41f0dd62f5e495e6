"""What users want to be told of, and where: kept in the database, cached in memory."""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control.schema import meta
from ones.control.store import Store, upsert
from ones.errors import InvalidSettingError, UnknownNameError
from ones.wire.bounds import Value
from ones.wire.decoding import Decoder
from ones.wire.encoding import to_json

EVENTS = ("start", "end", "failure", "preemption", "warning")
MOST_PER_USER = 50
_KEY = "notifications"  # in `meta`


class Notification(Value, frozen=True, kw_only=True):
    """One wish: call this URL, or run this command, at these events of the owner's jobs."""

    number: int
    owner: str
    events: tuple[str, ...]
    secret: str
    url: str = ""
    command: tuple[str, ...] = ()
    tag: str = ""  # only jobs with this tag


class _All(Value, frozen=True):
    items: tuple[Notification, ...] = ()
    last: int = 0


_DECODER: Decoder[_All] = Decoder(_All, logs=True)


class Notifications:
    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        rows = store.rows(sa.select(meta.c.value).where(meta.c.key == _KEY))
        self._kept = _DECODER.decode(rows[0].value) if rows else _All()

    def of(self, owner: str | None = None) -> list[Notification]:
        """Those of an owner; None: all."""
        return [each for each in self._kept.items if owner in (None, each.owner)]

    def get(self, number: int, owner: str | None) -> Notification:
        known = {each.number: each for each in self.of(owner)}
        if number not in known:
            raise UnknownNameError("notification", str(number), map(str, known))
        return known[number]

    def add(
        self,
        owner: str,
        *,
        url: str = "",
        command: tuple[str, ...] = (),
        events: tuple[str, ...] = (),
        tag: str = "",
    ) -> Notification:
        if bool(url) == bool(command):
            raise InvalidSettingError("give either a url or a command")
        for event in events:
            if event not in EVENTS:
                known = ", ".join(EVENTS)
                raise InvalidSettingError(f"events: {event!r} is not one of {known}")
        if url:
            check_url(url)
        if len(self.of(owner)) >= MOST_PER_USER:
            raise InvalidSettingError(
                f"{owner} has {MOST_PER_USER} notifications; remove one first"
            )

        def added(kept: _All) -> _All:
            new = Notification(
                number=kept.last + 1,
                owner=owner,
                events=events or EVENTS,
                secret=secrets.token_urlsafe(32),
                url=url,
                command=command,
                tag=tag,
            )
            return _All((*kept.items, new), kept.last + 1)

        return self._change(added).items[-1]

    def remove(self, number: int, owner: str | None) -> Notification:
        found = self.get(number, owner)
        self._change(
            lambda kept: replace(
                kept, items=tuple(each for each in kept.items if each.number != number)
            )
        )
        return found

    def _change(self, change: Callable[[_All], _All]) -> _All:
        with self._lock:
            kept = change(self._kept)
            self._store.write_now(upsert(meta, {"key": _KEY, "value": to_json(kept)}))
            self._kept = kept
            return kept


def check_url(url: str) -> None:
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.username is not None:
        raise InvalidSettingError(f"url: {url!r} is not a URL such as https://host/path")


def is_open_address(address: str) -> bool:
    """Whether users may let the controller call this address: not the controller's own machine, and
    not the link-local range, where clouds keep their credentials."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    closed = found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast
    return not closed
