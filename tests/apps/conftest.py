"""The running service of tests/control, for tests of applications."""

from __future__ import annotations

from tests.control.conftest import make_world, world

__all__ = ["make_world", "world"]
