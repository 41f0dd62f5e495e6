"""Fingerprints of the code and data that the result of a run depends on.

A stored result is used again only if they are unchanged. The packages below the laboratory count
for every run; of the policies only the run's own, because policies do not import each other.
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
from ones.lab.runs import GENERATED
from ones.policies import OURS, create

_ROOT = Path(ones.__file__).parent
_PACKAGES = ("core", "models", "sim", "workload", "wire")
_FILES = ("stopping.py", "lab/runs.py", "lab/comparison/tasks.py", "report/metrics.py")
_LIBRARIES = ("numpy", "scipy", "numba")


@cache
def fingerprint(policy: str) -> str:
    """Fingerprint of the code and libraries of a run under this policy."""
    parts = [__version__, *(f"{name} {version(name)}" for name in _LIBRARIES)]
    paths = [*_ROOT.joinpath("policies").glob("__init__.py"), *_of_policy(policy)]
    for package in _PACKAGES:
        paths.extend((_ROOT / package).rglob("*"))
    paths.extend(_ROOT / name for name in _FILES)
    for path in sorted(set(paths)):
        if path.is_file() and "__pycache__" not in path.parts:
            parts.append(f"{path.name} {sha256(path.read_bytes()).hexdigest()}")
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _of_policy(policy: str) -> list[Path]:
    """Files of the policy: its module or folder, and data of the same name."""
    if policy not in OURS:
        module = type(create(policy)).__module__
        file = import_module(module).__file__
        return [] if file is None else [Path(file)]
    name = OURS[policy].split(":")[0].split(".")[2]
    found: list[Path] = []
    for path in _ROOT.joinpath("policies").glob(f"{name}*"):
        if path.is_dir() or path.stem == name or path.stem.startswith(f"{name}_"):
            found.extend(path.rglob("*") if path.is_dir() else [path])
    return found


@cache
def workload_fingerprint(workload: str) -> str:
    """Fingerprint of the workload's file; a generated one is identified by its description."""
    if workload in GENERATED:
        return workload
    try:
        return sha256(Path(workload).read_bytes()).hexdigest()[:16]
    except OSError as problem:
        raise InvalidFileError(workload, f"cannot be read: {problem.strerror}") from problem
