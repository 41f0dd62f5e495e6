"""Contract suites: pytest classes that test a policy, launcher or store against its promises.

Subclass one in a test file, define the subject of the test, and run pytest. Only this
package imports pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ones.testing.launcher import LauncherContract
    from ones.testing.policy import PolicyContract
    from ones.testing.store import StoreContract

__all__ = ["LauncherContract", "PolicyContract", "StoreContract"]

_MODULES = {
    "LauncherContract": "ones.testing.launcher",
    "PolicyContract": "ones.testing.policy",
    "StoreContract": "ones.testing.store",
}
pytest.register_assert_rewrite(
    *_MODULES.values(), "ones.testing.launcher_processes", "ones.testing.invariants"
)


def __getattr__(name: str) -> object:
    """Imports a suite on demand: the one for stores needs SQLAlchemy, the others do not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
