"""What the training library has to say in a user's script: stdlib logging, below `ones`.

Unless the script has set up logging of its own, warnings are one line on stderr: `ones: ...`.
"""

from __future__ import annotations

import logging
import sys


class _Plain(logging.Handler):
    """For scripts without logging of their own; else their handlers get it, and this is silent."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        try:
            print(f"ones: {record.getMessage()}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # stderr is closed
            self.handleError(record)


def logger(name: str) -> logging.Logger:
    """Of a module of the training library."""
    root = logging.getLogger("ones")
    if not root.handlers:  # of a zygote's fork, too; the controller sets up its own
        root.addHandler(_Plain(logging.WARNING))
    return logging.getLogger(name)
