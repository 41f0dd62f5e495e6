"""The examples are scripts of users: they import their neighbours by bare names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def neighbour(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of examples/paper as its scripts do; forgotten again after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES / "paper"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(EXAMPLES)):
            del sys.modules[name]
