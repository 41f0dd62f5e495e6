"""Logging of the training library in a user's script: stdlib loggers below `ones`.

Unless the script has set up logging, warnings are written as one line to stderr: `ones: ...`.
"""

from __future__ import annotations

import logging
import sys


class _StderrHandler(logging.Handler):
    """Writes only if the script has set up no handler of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            print(f"ones: {record.getMessage()}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # stderr is closed
            self.handleError(record)


def logger(name: str) -> logging.Logger:
    """The logger of a module of the training library."""
    root = logging.getLogger("ones")
    if not root.handlers:  # the controller sets up its own
        root.addHandler(_StderrHandler(logging.WARNING))
    return logging.getLogger(name)
