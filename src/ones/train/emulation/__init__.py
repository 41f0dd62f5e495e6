"""An emulated GPU, for tests and `ones doctor --gpu --emulate`: no GPU is needed.

* `device.cpp`: a torch device of its own, in host memory, with one stream.
* `strict_group`: a communication library that keeps to the rules of NCCL.

A worker uses both if `ONES_EMULATED_GPU` names the compiled device (`extension.build`).
"""

from __future__ import annotations

import os

DEVICE = "emulated"  # the name of the torch device
VARIABLE = "ONES_EMULATED_GPU"


def is_requested() -> bool:
    """Whether this process is to train on the emulated device."""
    return bool(os.environ.get(VARIABLE))


__all__ = ["DEVICE", "VARIABLE", "is_requested"]
