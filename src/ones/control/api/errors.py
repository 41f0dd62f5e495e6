"""What is wrong, as HTTP says it."""

from __future__ import annotations

from ones.errors import BugError, OnesError, UnknownNameError, UserError

LARGEST_REQUEST = 4 << 20
TOO_LARGE = f"a request may have {LARGEST_REQUEST} bytes"


def status_of(problem: OnesError) -> int:
    if isinstance(problem, UnknownNameError):
        return 404
    if isinstance(problem, UserError):
        return 422
    return 500 if isinstance(problem, BugError) else 503
