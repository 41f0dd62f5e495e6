"""Can a node see what the controller sees? Found out when the node comes, not when a job must save.

The controller writes a word into a file, and the node reads it: a path that does not exist there,
that is another directory of the same name, or that its user may not read is told in one line.
Paths are whatever fsspec understands.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from ones.errors import WorldError

NAME = ".ones-probe"


@dataclass(frozen=True, slots=True)
class Probe:
    directory: str
    word: str


def place(directory: str) -> Probe:
    """Write the word. Raises WorldError if that cannot be done: then nobody could save there."""
    import fsspec

    word = secrets.token_hex(8)
    try:
        files, root = fsspec.core.url_to_fs(directory)
        files.makedirs(root, exist_ok=True)
        with files.open(f"{root}/{NAME}", "w") as file:
            file.write(word)
    except Exception as problem:  # each file system has errors of its own
        raise WorldError(f"{directory}: cannot be written to: {said(problem)}") from problem
    return Probe(directory, word)


def trouble(probe: Probe) -> str:
    """Why a node cannot work with that directory; empty: it can."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(probe.directory)
        files.invalidate_cache()
        with files.open(f"{root}/{NAME}", "r") as file:
            found = file.read()
    except Exception as problem:  # as above
        return f"{probe.directory}: {said(problem)}"
    if found != probe.word:
        return f"{probe.directory}: is another directory than the controller's"
    return ""


def said(problem: Exception) -> str:
    """One line: what the system says, without the path, or whatever the library does."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__
