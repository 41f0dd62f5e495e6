"""HTTP status and headers of errors."""

from __future__ import annotations

from ones.control.limits import LimitError
from ones.errors import BugError, OnesError, UnknownNameError, UserError

LARGEST_REQUEST = 4 << 20
BUG = "internal error of ONES; see the controller's log"
TOO_LARGE = f"the request is too large; the limit is {LARGEST_REQUEST} bytes"


def headers_of(problem: OnesError) -> dict[str, str]:
    return problem.headers if isinstance(problem, LimitError) else {}


def status_of(problem: OnesError) -> int:
    if isinstance(problem, LimitError):
        return problem.status
    if isinstance(problem, UnknownNameError):
        return 404
    if isinstance(problem, UserError):
        return 422
    return 500 if isinstance(problem, BugError) else 503
