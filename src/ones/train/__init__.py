"""Elastic training: what a user's script imports as `ones.join`.

Loaded only when asked for, so that neither `import ones` nor the small processes of a
job (`ones.train.store`, `ones.train.zygote`) pay for what they do not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train.job import Job, join

__all__ = ["Job", "join"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from ones.train import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
