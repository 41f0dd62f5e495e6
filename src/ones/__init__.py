"""ONES: shares GPUs among training jobs by changing their GPUs and batch sizes while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train import join

__version__ = "0.2.0"

__all__ = ["__version__", "join"]


def __getattr__(name: str) -> object:
    """Import `ones.join` on first use, because it imports torch."""
    if name == "join":
        from ones.train import join

        return join
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
