"""The HTTP API: validates every request and decides nothing."""

from __future__ import annotations

from ones.control.api.app import create_app
from ones.control.api.gate import Gate
from ones.control.api.worker_api import WorkerApi

__all__ = ["Gate", "WorkerApi", "create_app"]
