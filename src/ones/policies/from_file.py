"""A policy from a file: `--policy mine.py`, with nothing to install or register."""

from __future__ import annotations

import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from ones.errors import InvalidFileError, described

SUFFIX = ".py"


def is_file(name: str) -> bool:
    return name.endswith(SUFFIX)


def located(name: str) -> str:
    """The same from wherever one looks: for logs, and for a service in a directory of its own."""
    return str(_path_of(name)) if is_file(name) else name


def factory_in(name: str) -> Callable[..., Any]:
    """The class in it that is a policy. A file is read once, however it is named."""
    module = _loaded(_path_of(name), name)
    found = [
        value
        for key, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
        if not key.startswith("_") and hasattr(value, "decide")
    ]
    if not found:
        raise InvalidFileError(name, "has no class with a method `decide`: no policy is there")
    if len(found) > 1:
        told = ", ".join(sorted(policy.__name__ for policy in found))
        raise InvalidFileError(name, f"has several policies ({told}): let all but one begin with _")
    return found[0]


def _path_of(name: str) -> Path:
    return Path(name).expanduser().resolve()


def _loaded(path: Path, name: str) -> ModuleType:
    # its own name among modules, so that two files called alike are two, and dataclasses find it
    known_as = f"ones_policy_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if known_as in sys.modules:
        return sys.modules[known_as]
    spec = spec_from_file_location(known_as, path)
    assert spec is not None  # by its suffix
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[known_as] = module
    try:
        spec.loader.exec_module(module)
    except OSError as problem:
        del sys.modules[known_as]
        raise InvalidFileError(name, f"cannot be read: {problem.strerror}") from problem
    except Exception as problem:  # it may do what it likes
        del sys.modules[known_as]
        raise InvalidFileError(name, described(problem)) from problem
    return module
