"""Tokens of users (random, only their hash is kept) and of jobs (derived).

A job's token is derived from the service's key and the job's id. So every worker that starts later
gets the same token, also after a restart, and no token is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

KEY_BYTES = 32


def new_token() -> str:
    return secrets.token_urlsafe(KEY_BYTES)


def hash_of(token: str) -> str:
    """Hash of a token. Tokens are 32 random bytes and cannot be guessed: a fast hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class JobTokens:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._jobs: dict[str, str] = {}  # hash of an issued token -> job

    @classmethod
    def kept_in(cls, path: Path) -> JobTokens:
        """Tokens with the key of this file, which is made if it does not exist."""
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(path.read_bytes())
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        return cls(path.read_bytes())

    def of(self, job: str) -> str:
        token = hmac.new(self._key, job.encode(), hashlib.sha256).hexdigest()
        self._jobs[hash_of(token)] = job
        return token

    def job_of(self, token: str) -> str | None:
        """The job of an issued token, or None. Needs nothing else, so that a request can be refused
        before its body is read."""
        return self._jobs.get(hash_of(token))
