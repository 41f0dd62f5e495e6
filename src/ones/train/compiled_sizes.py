"""torch.compile and batches of changing size: one graph for all sizes above 1."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def mark_batch(data: Any, size: int) -> Any:
    """Lets torch.compile treat the first dimension of the tensors with `size` samples as dynamic.

    Otherwise it compiles for the first size, and again when a rescale changes it. Scripts that set
    `torch._dynamo.config.automatic_dynamic_shapes = False` keep static shapes. torch makes code of
    its own for size 1 in any case.
    """
    dynamo = sys.modules.get("torch._dynamo")  # imported by torch.compile
    if dynamo is None or size < 2 or not dynamo.config.automatic_dynamic_shapes:
        return data
    for leaf in tree_leaves(dict(data) if isinstance(data, Mapping) else data):
        if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size:
            dynamo.maybe_mark_dynamic(leaf, 0)
    return data
