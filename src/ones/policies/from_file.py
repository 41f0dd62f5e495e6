"""Policies in files: `--policy mine.py`, without installation or registration."""

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
    """The name, or the absolute path of a file: for logs and for a service elsewhere."""
    return str(_path_of(name)) if is_file(name) else name


def factory_in(name: str) -> Callable[..., Any]:
    """The policy class in a file. A file is loaded once."""
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
        names = ", ".join(sorted(policy.__name__ for policy in found))
        raise InvalidFileError(
            name, f"has several policies ({names}): let all but one begin with _"
        )
    return found[0]


def _path_of(name: str) -> Path:
    return Path(name).expanduser().resolve()


def _loaded(path: Path, name: str) -> ModuleType:
    # a unique module name, so that two files of one name are two; dataclasses need it
    module_name = f"ones_policy_{path.stem}_{sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = spec_from_file_location(module_name, path)
    assert spec is not None  # because of its suffix
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except OSError as problem:
        del sys.modules[module_name]
        raise InvalidFileError(name, f"cannot be read: {problem.strerror}") from problem
    except Exception as problem:  # the file may raise anything
        del sys.modules[module_name]
        raise InvalidFileError(name, described(problem)) from problem
    return module
