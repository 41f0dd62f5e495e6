"""Packs the code of a new job, uploads it, and makes the job use it.

The steps are a generator of requests, which a client sends in its own way.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.client.working_tree import PackedTree, pack

PART_BYTES = 2 << 20
_SYS_PATH = "import json, sys; print(json.dumps(sys.path[1:]))"


@dataclass(frozen=True, slots=True)
class Step:
    """A request; its answer is sent to the generator as plain JSON."""

    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What differs in the request of a job that uses a snapshot."""

    tree: PackedTree
    changes: dict[str, Any]


def upload(
    command: Sequence[str], cwd: str | os.PathLike[str], env: Mapping[str, str]
) -> Generator[Step, Any, Uploaded]:
    """Pack and upload the working tree of `cwd`."""
    directory = Path(os.path.realpath(cwd))
    limit = yield Step("GET", "/api/snapshots")
    tree = pack(directory, limit["max_mb"])
    path, total = f"/api/snapshots/{tree.digest}", len(tree.data)
    known = yield Step("GET", path)
    if not known["complete"]:
        for offset in range(0, total, PART_BYTES):
            part = tree.data[offset : offset + PART_BYTES]
            yield Step("PUT", path, {"offset": offset, "total": total}, part)
    changes = {
        "command": [tree.relative(argument, directory) for argument in command],
        "cwd": str(directory),
        "env": _with_python_path(dict(env), command, tree),
        "snapshot": {"digest": tree.digest, "root": str(tree.root)},
    }
    return Uploaded(tree, changes)


def finished(steps: Generator[Step, Any, Uploaded], send: Callable[[Step], Any]) -> Uploaded:
    """What the steps lead to, if each is sent by `send`, which returns the answer."""
    step, uploaded = advance(steps, None)
    while step is not None:
        step, uploaded = advance(steps, send(step))
    assert uploaded is not None
    return uploaded


def advance(
    steps: Generator[Step, Any, Uploaded],
    answer: Any,  # noqa: ANN401
) -> tuple[Step | None, Uploaded | None]:
    """The next step, or what the last one has led to. `answer`: of the step before, or None."""
    try:
        return steps.send(answer), None
    except StopIteration as end:
        return None, end.value


def _with_python_path(
    env: dict[str, str], command: Sequence[str], tree: PackedTree
) -> dict[str, str]:
    """The environment with packed directories first in PYTHONPATH that the command's Python
    imports from: those of packages installed in editable mode, too."""
    if not os.path.basename(command[0]).startswith("python"):
        return env
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [command[0], "-c", _SYS_PATH],
            cwd="/", env=env, capture_output=True, timeout=30, check=True,
        )  # fmt: skip
        given = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
        packed = [path for path in json.loads(done.stdout) if tree.has_directory(path)]
        paths = [path for path in dict.fromkeys((*given, *packed)) if path]
        if paths:
            env["PYTHONPATH"] = os.pathsep.join(paths)
    return env
