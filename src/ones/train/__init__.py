"""Elastic training: `ones.join` for training scripts.

Submodules are imported lazily, so that `import ones` and the small processes of a job
(`ones.train.store`, `ones.train.zygote`) load only what they use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ones.train.elastic_job import ElasticJob
    from ones.train.joining import join

__all__ = ["ElasticJob", "join"]


def __getattr__(name: str) -> object:
    if name == "ElasticJob":
        from ones.train.elastic_job import ElasticJob

        return ElasticJob
    if name == "join":
        from ones.train.joining import join

        return join
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
