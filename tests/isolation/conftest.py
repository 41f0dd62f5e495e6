"""One machine of several Unix users for all tests: making and removing users takes seconds."""

from __future__ import annotations

from tests.unix_users import machine, shared_machine

__all__ = ["machine", "shared_machine"]
