"""ONES: shares GPUs among training jobs by changing their GPUs and batch sizes while they train."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train.fixed_progress import progress
    from ones.train.joining import join

__version__ = "0.2.0"

__all__ = ["__version__", "join", "progress"]


def __getattr__(name: str) -> object:
    """Import `ones.join` and `ones.progress` on first use: `join` imports torch."""
    if name == "join":
        from ones.train import join

        return join
    if name == "progress":
        from ones.train.fixed_progress import progress

        return progress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
