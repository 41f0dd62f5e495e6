"""The line of a process's output that says why it failed."""

from __future__ import annotations

import re
from pathlib import Path

from ones.exec.output import read_output

TAIL_BYTES = 16 << 10  # of the output that is searched
MAX_CHARACTERS = 300

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\s*$")
#: the line after a traceback: the class, perhaps with its module, and the message
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: .*)?$")
_FAILURE = re.compile(r"error|cannot|can't|not found|no such|denied|killed|fatal", re.IGNORECASE)
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")


def last_error(directory: Path) -> str:
    """The last line of the last exception in the output of a launch, in one short line.

    Without an exception: the last line, if it reports a failure. Empty if nothing does.
    """
    return error_line(read_output(directory, -TAIL_BYTES, TAIL_BYTES).data)


def error_line(output: bytes) -> str:
    r"""The line of the end of an output that says why the process failed.

    >>> error_line(b"x\nTraceback (most recent call last):\n  File 'a'\n    f()\nKeyError: 'lr'\n")
    "KeyError: 'lr'"
    >>> error_line(b"loading\ntrain.py: error: unrecognized arguments: --lrr\n")
    'train.py: error: unrecognized arguments: --lrr'
    >>> error_line(b"epoch 1\nepoch 2\n")
    ''
    """
    lines = [_plain(line) for line in output.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line.strip()]
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.search(line)]
    if starts:
        for line in lines[starts[-1] + 1 :]:
            if _EXCEPTION.match(line):
                return _short(line)
    if lines and _FAILURE.search(lines[-1]):
        return _short(lines[-1])
    return ""


def _plain(line: str) -> str:
    """The line without escape sequences and control characters."""
    return "".join(c if c.isprintable() else " " for c in _ESCAPES.sub("", line)).rstrip()


def _short(line: str) -> str:
    line = " ".join(line.split()).rstrip(".")
    return line if len(line) <= MAX_CHARACTERS else f"{line[: MAX_CHARACTERS - 3]}..."
