"""Checks that a node sees the same directory as the controller, when the node joins.

The controller writes a random string to a file, and the node reads it. If the path does not exist
there, is another directory or is not readable, the node reports so in one line. Paths are those of
fsspec.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ones.errors import WorldError

NAME = ".ones-probe"


@dataclass(frozen=True, slots=True)
class Probe:
    directory: str
    content: str  # of the file NAME in it


def write_probe(directory: str) -> Probe:
    """Writes the file. Raises WorldError if the directory cannot be written to."""
    import fsspec

    content = secrets.token_hex(8)
    try:
        files, root = fsspec.core.url_to_fs(directory)
        files.makedirs(root, exist_ok=True)
        with files.open(f"{root}/{NAME}", "w") as file:
            file.write(content)
    except Exception as problem:  # each file system has errors of its own
        raise WorldError(f"{directory}: cannot be written to: {reason_of(problem)}") from problem
    return Probe(directory, content)


def check_probe(probe: Probe) -> str:
    """Why this node cannot use the directory; empty: it can."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(probe.directory)
        files.invalidate_cache()
        with files.open(f"{root}/{NAME}", "r") as file:
            found = file.read()
    except Exception as problem:  # as above
        return f"{probe.directory}: {reason_of(problem)}"
    if found != probe.content:
        return f"{probe.directory}: is another directory than the controller's"
    return ""


def reason_of(problem: Exception) -> str:
    """One line: the system's message without the path, or the first line of the exception."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
