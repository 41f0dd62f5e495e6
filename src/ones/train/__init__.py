"""Elastic training: what a user's script imports as `ones.join`.

Loaded only when asked for, so that neither `import ones` nor the small processes of a
job (`ones.train.store`, `ones.train.zygote`) pay for what they do not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train.job import Job
    from ones.train.joining import join

__all__ = ["Job", "join"]


def __getattr__(name: str) -> object:
    if name == "Job":
        from ones.train.job import Job

        return Job
    if name == "join":
        from ones.train.joining import join

        return join
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
