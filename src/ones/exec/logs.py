"""Log lines of processes beside the controller: ones-exec, node agents, the Ray driver.

Stdlib logging. A record is an event (`message`) with fields (`extra`), written as one line of text:

    2026-11-17T20:54:10 warning lease expired, worker killed launch=a-1~3~n0.1

Values with anything but printable ASCII without spaces are quoted as JSON, so that no worker, node
name or error text can forge a second line or send escape sequences to a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping

#: fields with secret values, which are never written
SECRETS = frozenset({"token", "env", "environment", "authorization", "cookie", "password", "link"})
HIDDEN = "(hidden)"
#: maximum length of a value, in characters
MAX_VALUE = 4000

_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")  # printable, without space, quote, equals sign, backslash
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


def without_secrets(fields: Mapping[str, object]) -> dict[str, object]:
    """The fields, with secret values hidden.

    >>> without_secrets({"job": "a-1", "token": "t0"})
    {'job': 'a-1', 'token': '(hidden)'}
    """
    return {name: HIDDEN if name in SECRETS else value for name, value in fields.items()}


def text_line(at: str, level: str, event: str, fields: Mapping[str, object]) -> str:
    """A log line.

    >>> text_line("2026-01-01T00:00:00", "info", "job submitted", {"job": "a-1", "why": "x\\ny"})
    '2026-01-01T00:00:00 info job submitted job=a-1 why="x\\\\ny"'
    """
    text = "".join(f" {name}={_quoted(value)}" for name, value in fields.items())
    return f"{at} {level} {_one_line(event)}{text}"


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    text = text if len(text) <= MAX_VALUE else text[:MAX_VALUE] + "..."
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _one_line(event: str) -> str:
    return event if event.isascii() and event.isprintable() else json.dumps(event)[1:-1]


class LineFormatter(logging.Formatter):
    """One line for an event, followed by the traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        fields = without_secrets(fields_of(record))
        line = text_line(at, record.levelname.lower(), record.getMessage(), fields)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class LogLimiter:
    """Limits how often an event that others can cause is logged: `burst` times per `seconds`.

    >>> clock = iter([0.0, 0.1, 0.2, 1.5])
    >>> limiter = LogLimiter(1.0, 1, lambda: next(clock))
    >>> [limiter.suppressed() for _ in range(4)]
    [0, None, None, 2]
    """

    def __init__(
        self, seconds: float = 1.0, burst: int = 20, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._burst, self._clock = seconds, burst, clock
        self._ends, self._written, self._suppressed = float("-inf"), 0, 0

    def suppressed(self) -> int | None:
        """The number of events suppressed before this one; None: do not log this one."""
        now = self._clock()
        if now >= self._ends:
            self._ends, self._written = now + self._seconds, 0
        if self._written >= self._burst:
            self._suppressed += 1
            return None
        self._written += 1
        count, self._suppressed = self._suppressed, 0
        return count


def log_to_stderr() -> None:
    """Writes log records of `ones` from level info on to stderr, as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("ones")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
