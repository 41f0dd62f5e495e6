"""Counts the moments in which the host waits for the device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from ones.train import emulation


class WaitCounter:
    """`total` is the number of waits within `counting`."""

    def __init__(self) -> None:
        self.total = 0

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        if emulation.is_requested():
            before = torch.ops.ones_emulated.host_waits()
            yield
            self.total += torch.ops.ones_emulated.host_waits() - before
            return
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
            self.total += sum("synchronizing CUDA operation" in str(w.message) for w in found)
