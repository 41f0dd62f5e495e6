"""Logging of the training library in a user's script: stdlib loggers below `ones`.

Unless the script has set up logging, warnings are written as one line to stderr: `ones: ...`.
"""

from __future__ import annotations

import logging
import sys
import traceback


class _StderrHandler(logging.Handler):
    """Writes only if the script has set up no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            print(f"ones: {record.getMessage()}", file=sys.stderr, flush=True)
            if record.exc_info:
                traceback.print_exception(*record.exc_info)
        except (OSError, ValueError):  # stderr is closed
            self.handleError(record)


def describe(error: BaseException) -> str:
    """The text of an error, with its type where the text alone says little: `KeyError: 'step'`."""
    text = str(error)
    if isinstance(error, RuntimeError | OSError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def logger(name: str) -> logging.Logger:
    """The logger of a module of the training library."""
    root = logging.getLogger("ones")
    if not root.handlers:  # the controller sets up its own
        root.addHandler(_StderrHandler(logging.WARNING))
    return logging.getLogger(name)
