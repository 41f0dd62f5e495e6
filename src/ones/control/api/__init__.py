"""The HTTP API: validates every request and decides nothing.

The names below are loaded when they are used: the types of requests and responses, which
`ones.client` shares, need no web server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.control.api.app import create_app
    from ones.control.api.gate import Gate
    from ones.control.api.worker_api import WorkerApi

__all__ = ["Gate", "WorkerApi", "create_app"]

_MODULES = {"create_app": "app", "Gate": "gate", "WorkerApi": "worker_api"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
