"""What a run's result depends on beside its description: the code, and the numbers it reads.

A kept result is used again only if all of this is as it was. The rooms below the lab count
for every run; of the policies only the run's own, since they are strangers to one another.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import ones
from ones import __version__
from ones.errors import InvalidFileError
from ones.policies import OURS

_HERE = Path(ones.__file__).parent
_ROOMS = ("core", "models", "sim", "workload", "wire")
_FILES = ("stopping.py", "lab/runs.py", "lab/tasks.py", "report/metrics.py")
_LIBRARIES = ("numpy", "scipy", "numba")


@cache
def fingerprint(policy: str) -> str:
    """Of the code that a run under this policy goes through, and of the libraries it uses."""
    parts = [__version__, *(f"{name} {version(name)}" for name in _LIBRARIES)]
    paths = [*_HERE.joinpath("policies").glob("__init__.py"), *_of_policy(policy)]
    for room in _ROOMS:
        paths.extend((_HERE / room).rglob("*"))
    paths.extend(_HERE / name for name in _FILES)
    for path in sorted(set(paths)):
        if path.is_file() and "__pycache__" not in path.parts:
            parts.append(f"{path.name} {sha256(path.read_bytes()).hexdigest()}")
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _of_policy(policy: str) -> list[Path]:
    """Its module or folder, and data beside it of the same name."""
    if policy not in OURS:
        module = type(_made(policy)).__module__
        file = import_module(module).__file__
        return [] if file is None else [Path(file)]
    room = OURS[policy].split(":")[0].split(".")[2]
    found: list[Path] = []
    for path in _HERE.joinpath("policies").glob(f"{room}*"):
        if path.is_dir() or path.stem == room or path.stem.startswith(f"{room}_"):
            found.extend(path.rglob("*") if path.is_dir() else [path])
    return found


def _made(policy: str) -> object:
    from ones.policies import create

    return create(policy)


@cache
def content(workload: str) -> str:
    """Of the workload's file; a generated one is told by its description."""
    if workload == "paper":
        return workload
    try:
        return sha256(Path(workload).read_bytes()).hexdigest()[:16]
    except OSError as problem:
        raise InvalidFileError(workload, f"cannot be read: {problem.strerror}") from problem
