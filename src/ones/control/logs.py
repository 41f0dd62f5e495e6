"""Structured logs of the service, on top of stdlib logging.

A log event has a level, a short name and fields, and never a secret:

    log = logs.logger(__name__)
    log.info("job submitted", job="a-1", owner="ann")

`configure` sets the format, text (default) or one JSON object per line, and the destination,
stderr. If stderr is the controller's log file, as with `ones up`, the file is rotated at 10 MB and
five older ones are kept; other output to the descriptors 1 and 2 follows the rotation. Records of
other libraries (uvicorn) go the same way.

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
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from ones.errors import UnknownNameError
from ones.exec.logs import fields_of, text_line, without_secrets

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")
FILE_BYTES = 10 << 20
OLDER_FILES = 5

#: attribute names of stdlib records, not usable as fields
_TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_ERROR = re.compile(r' error=("(?:[^"\\]|\\.)*"|\S+)')


class EventLogger:
    """A stdlib logger for events with fields. Without `configure` (tests, benchmarks) stdlib
    decides: warnings go to stderr."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self.isEnabledFor = self._logger.isEnabledFor

    def debug(self, event: str, /, **fields: Any) -> None:
        self._log(logging.DEBUG, event, **fields)

    def info(self, event: str, /, **fields: Any) -> None:
        self._log(logging.INFO, event, **fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        self._log(logging.WARNING, event, **fields)

    def error(self, event: str, /, **fields: Any) -> None:
        self._log(logging.ERROR, event, **fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._log(logging.ERROR, event, exc_info=True, **fields)

    def _log(
        self, level: int, event: str, /, *, exc_info: BaseException | bool = False, **fields: Any
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {f"{name}_" if name in _TAKEN else name: v for name, v in fields.items()}
            self._logger.log(level, event, exc_info=exc_info, extra=extra, stacklevel=3)


def logger(name: str) -> EventLogger:
    return EventLogger(name)


def check(log_format: str, level: str) -> None:
    """Raise UnknownNameError for an unknown format or level."""
    if log_format not in FORMATS:
        raise UnknownNameError("log_format", log_format, FORMATS)
    if level not in LEVELS:
        raise UnknownNameError("log_level", level, LEVELS)


def configure(log_format: str, level: str, file: Path) -> None:
    """Set up logging of this process. `file`: the controller's log, rotated if it is stderr."""
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
    """Passes records to a writer thread. A write releases the interpreter's lock, and the
    scheduler's thread would wait to get it back."""

    def __init__(self, handler: logging.Handler) -> None:
        records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        super().__init__(records)
        self._writer: QueueListener | None = QueueListener(records, handler)
        self._writer.start()
        atexit.register(self.close)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # formatted by the writer thread, in this process

    def close(self) -> None:
        """Write all pending records."""
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
    """A rotating file that the descriptors 1 and 2 of this process always point to."""

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
    """One line per event; a traceback follows below it."""

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        line = text_line(self._at(record), level, record.getMessage(), self._fields(record))
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(_Formatter):
    """One JSON object per line, with a traceback as text in `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": self._at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in self._fields(record).items():
            line[f"{name}_" if name in line else name] = _plain(value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _plain(value: object) -> object:
    """The value for JSON: nan, infinities and values of other types as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def last_error(text: str) -> str:
    """The last `error` field of a log in either format; else its last line; else "".

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
