"""ONES: shares a group of GPUs among training jobs by choosing their sizes and batches online."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train import join

__version__ = "0.1.0"

__all__ = ["__version__", "join"]


def __getattr__(name: str) -> object:
    """`ones.join` brings torch with it: only for scripts that use it."""
    if name == "join":
        from ones.train import join

        return join
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
