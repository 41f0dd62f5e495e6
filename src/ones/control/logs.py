"""Structured logs of the service: structlog on top of stdlib logging.

An event has a level, a short name and fields, and never a secret:

    log = logs.logger(__name__)
    log.info("job submitted", job="a-1", owner="ann")

`configure` says where events go and how they look: as text (default) or as one JSON object to a
line. They go to stderr. Where stderr is the controller's log file, as `ones up` starts the
service, that file is rotated at 10 MB and five older ones are kept; whatever the process writes to
its descriptors 1 and 2 by itself follows. Records of other libraries (uvicorn) go the same way.

Common fields: `job`, `plan`, `node`, `launch`, `gpu`, `reason`, `error`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import re
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

import structlog

from ones.errors import UnknownNameError
from ones.exec.logs import fields_of, text_line, without_secrets

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")
FILE_BYTES = 10 << 20
OLDER_FILES = 5

_Fields = MutableMapping[str, Any]
#: names that a stdlib record has for itself
_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_ERROR = re.compile(r' error=("(?:[^"\\]|\\.)*"|\S+)')


def _to_stdlib(logger: object, method: str, event: _Fields) -> dict[str, Any]:
    """The event as arguments of a stdlib logger: its name, and its fields as `extra`."""
    message, exc_info = event.pop("event", ""), event.pop("exc_info", None)
    extra = {f"{name}_" if name in _TAKEN else name: value for name, value in event.items()}
    return {"msg": str(message), "extra": extra, "exc_info": exc_info}


# Whoever does not call `configure` (tests, benchmarks) has stdlib's own ways: warnings on stderr.
structlog.configure(
    processors=[structlog.stdlib.filter_by_level, _to_stdlib],
    logger_factory=structlog.stdlib.LoggerFactory(),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=True,
)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    return structlog.stdlib.get_logger(name)


def check(log_format: str, level: str) -> None:
    """Raises UnknownNameError."""
    if log_format not in FORMATS:
        raise UnknownNameError("log_format", log_format, FORMATS)
    if level not in LEVELS:
        raise UnknownNameError("log_level", level, LEVELS)


def configure(log_format: str, level: str, file: Path) -> None:
    """For the whole process. `file`: the controller's log, rotated if stderr goes there."""
    check(log_format, level)
    handler = LogFile(file) if _is_stderr(file) else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root, ours = logging.getLogger(), logging.getLogger("ones")
    for before in root.handlers:
        if isinstance(before, _Enqueue):
            before.close()
    root.handlers[:] = [_Enqueue(handler)]
    root.setLevel(logging.WARNING)
    ours.handlers[:] = []
    ours.setLevel(level.upper())
    ours.propagate = True


class _Enqueue(QueueHandler):
    """Gives records to a thread that writes them. A write releases the interpreter's lock, and the
    scheduler's thread would wait for other threads to get it back."""

    def __init__(self, handler: logging.Handler) -> None:
        records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(records)
        self._writer: QueueListener | None = QueueListener(records, handler)
        self._writer.start()
        atexit.register(self.close)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # it stays in this process, and is formatted by the other thread

    def close(self) -> None:
        """Write what is there."""
        writer, self._writer = self._writer, None
        if writer is not None:
            atexit.unregister(self.close)
            writer.stop()
        super().close()


def _is_stderr(file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(2), file.stat())
    except OSError:
        return False


class LogFile(RotatingFileHandler):
    """The file that descriptors 1 and 2 of this process lead to, and go on leading to."""

    def __init__(self, path: Path, most: int = FILE_BYTES, older: int = OLDER_FILES) -> None:
        super().__init__(
            path, maxBytes=most, backupCount=older, encoding="utf-8", errors="backslashreplace"
        )

    def _open(self) -> Any:  # noqa: ANN401
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        handle = os.open(self.baseFilename, flags, 0o600)
        return os.fdopen(handle, "a", encoding=self.encoding, errors=self.errors)

    def doRollover(self) -> None:  # noqa: N802  # stdlib's name
        super().doRollover()
        if self.stream is None:
            self.stream = self._open()
        for standard in (sys.stdout, sys.stderr):
            _flush(standard)
        for descriptor in (1, 2):
            os.dup2(self.stream.fileno(), descriptor)


def _flush(stream: TextIO | None) -> None:
    if stream is not None:
        try:
            stream.flush()
        except (OSError, ValueError):
            return


class _Formatter(logging.Formatter):
    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        return without_secrets(fields_of(record))

    def _at(self, record: logging.LogRecord) -> str:
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class TextFormatter(_Formatter):
    """One line for an event; a traceback follows below it."""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        line = text_line(self._at(record), level, record.getMessage(), self._fields(record))
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(_Formatter):
    """One JSON object to a line, with a traceback as text in `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "at": self._at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in self._fields(record).items():
            told[f"{name}_" if name in told else name] = _plain(value)
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def _plain(value: object) -> object:
    """As JSON can have it: numbers that are none, and everything unknown, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def last_error(text: str) -> str:
    """The last `error` that a log tells of, in either format; else its last line; else nothing.

    >>> last_error('2026-01-01T00:00:00Z error service failed error="no \\\\"x\\\\""\\nmore')
    'no "x"'
    >>> last_error('{"event": "service failed", "error": "no x"}')
    'no x'
    >>> last_error("Traceback\\nValueError: y")
    'ValueError: y'
    """
    lines = text.strip().splitlines()
    for line in reversed(lines):
        try:
            found = json.loads(line)["error"]
        except (ValueError, TypeError, KeyError, RecursionError):
            match = _ERROR.search(line)
            found = match and (json.loads(match[1]) if match[1].startswith('"') else match[1])
        if isinstance(found, str) and found:
            return found
    return lines[-1] if lines else ""
