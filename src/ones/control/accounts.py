"""Users, their tokens and their browser sessions: kept in the database, cached in memory."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, replace

import sqlalchemy as sa

from ones.control.schema import sessions, submissions, users
from ones.control.store import Operation, Store, delete, insert, upsert
from ones.control.tokens import hash_of, new_token
from ones.errors import InvalidSettingError, UnknownNameError

ROLES = ("admin", "user")
LINK_SECONDS = 600.0
SESSION_SECONDS = 30 * 86400.0
_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    name: str
    role: str
    token_hash: str
    max_gpus: int | None = None
    created_at: float = 0.0
    unix: str | None = None  # Unix user: identifies the user on this machine, and runs the jobs

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


class Accounts:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._users = {row.name: User(**row._mapping) for row in store.rows(sa.select(users))}
        self._links: dict[str, tuple[str, float]] = {}  # hash of a one-time code -> user, expiry
        self._sessions = {
            row.hash: (row.user, row.expires_at) for row in store.rows(sa.select(sessions))
        }

    def all(self) -> list[User]:
        return sorted(self._users.values(), key=lambda user: user.name)

    def get(self, name: str) -> User:
        if name not in self._users:
            raise UnknownNameError("user", name, self._users)
        return self._users[name]

    def add(self, name: str, role: str, unix: str | None = None) -> tuple[User, str]:
        """The new user and its token. Only the token's hash is kept."""
        self._check_unix(unix)
        if not _NAME.fullmatch(name):
            raise InvalidSettingError(f"name: {name!r} is not a name (a-z, 0-9, _, -, .)")
        if role not in ROLES:
            raise InvalidSettingError(f"role: {role!r} is not one of {', '.join(ROLES)}")
        if name in self._users:
            raise InvalidSettingError(f"name: user {name!r} exists already")
        if self._store.rows(
            sa.select(submissions.c.job).where(submissions.c.owner == name).limit(1)
        ):
            raise InvalidSettingError(
                f"name: {name!r} belongs to jobs of a removed user;"
                f" choose another name, such as {name + '2'!r}"
            )
        token = new_token()
        user = User(name=name, role=role, token_hash=hash_of(token), created_at=time.time(),
                    unix=unix)  # fmt: skip
        self._store.write_now(insert(users, _row(user)))
        self._users[name] = user
        return user, token

    def renew(self, name: str) -> str:
        """A new token for the user. The old token, all sessions and unused links become invalid."""
        old = self.get(name)
        token = new_token()
        user = User(
            name=name, role=old.role, token_hash=hash_of(token), max_gpus=old.max_gpus,
            created_at=old.created_at, unix=old.unix,
        )  # fmt: skip
        self._store.write_now(upsert(users, _row(user)), delete(sessions, {"user": name}))
        self._users[name] = user
        self._end_sessions(name)
        return token

    def remove(self, name: str, by: str) -> User:
        """Remove a user. Admins cannot remove themselves, so at least one admin is left."""
        user = self.get(name)
        if name == by:
            raise InvalidSettingError(
                f"name: {name!r} is your own account; ask another admin to remove it"
            )
        self._store.write_now(delete(users, {"name": name}), delete(sessions, {"user": name}))
        self._users.pop(name, None)
        self._end_sessions(name)
        return user

    def _end_sessions(self, name: str) -> None:
        self._sessions = {h: s for h, s in self._sessions.items() if s[0] != name}
        self._links = {h: s for h, s in self._links.items() if s[0] != name}

    def is_current(self, user: User) -> bool:
        """Whether the user still exists with the same token."""
        now = self._users.get(user.name)
        return now is not None and now.token_hash == user.token_hash

    def set_limit(self, name: str, max_gpus: int | None) -> Operation:
        """Set a user's GPU limit. The returned row must be written with the scheduler's event."""
        old = self.get(name)
        user = User(
            name=name, role=old.role, token_hash=old.token_hash, max_gpus=max_gpus,
            created_at=old.created_at, unix=old.unix,
        )  # fmt: skip
        self._users[name] = user
        return upsert(users, _row(user))

    def set_unix(self, name: str, unix: str | None) -> User:
        """Set or remove the Unix user. Jobs that were submitted before keep theirs."""
        user = self.get(name)
        if unix != user.unix:
            self._check_unix(unix)
            user = replace(user, unix=unix)
            self._store.write_now(upsert(users, _row(user)))
            self._users[name] = user
        return user

    def _check_unix(self, unix: str | None) -> None:
        known = self.by_unix(unix) if unix is not None else None
        if known is not None:
            raise InvalidSettingError(f"unix: {unix!r} is the Unix user of {known.name} already")

    def by_unix(self, unix: str) -> User | None:
        """The user with this Unix user."""
        return next((user for user in self._users.values() if user.unix == unix), None)

    def by_token(self, token: str) -> User | None:
        wanted = hash_of(token)
        for user in self._users.values():
            if secrets.compare_digest(user.token_hash, wanted):
                return user
        return None

    # browser sessions

    def new_link(self, user: User) -> str:
        """A one-time code that logs in one browser."""
        now = time.time()
        self._links = {h: (u, until) for h, (u, until) in self._links.items() if until > now}
        code = new_token()
        self._links[hash_of(code)] = (user.name, now + LINK_SECONDS)
        return code

    def redeem(self, code: str) -> tuple[str, str] | None:
        """The user's name and the secret of a new session, for the browser's cookie; None if the
        code is unknown or has expired."""
        name, until = self._links.pop(hash_of(code), ("", 0.0))
        if until < time.time() or name not in self._users:
            return None
        secret = new_token()
        row = {"hash": hash_of(secret), "user": name, "expires_at": time.time() + SESSION_SECONDS}
        self._store.write_now(insert(sessions, row))
        self._sessions[hash_of(secret)] = (name, time.time() + SESSION_SECONDS)
        return name, secret

    def log_out(self, secret: str) -> None:
        """End a browser session."""
        if self._sessions.pop(hash_of(secret), None) is not None:
            self._store.write_now(delete(sessions, {"hash": hash_of(secret)}))

    def by_session(self, secret: str) -> User | None:
        name, until = self._sessions.get(hash_of(secret), ("", 0.0))
        return self._users.get(name) if until > time.time() else None


def _row(user: User) -> dict[str, object]:
    return {
        "name": user.name,
        "role": user.role,
        "token_hash": user.token_hash,
        "max_gpus": user.max_gpus,
        "created_at": user.created_at,
        "unix": user.unix,
    }
