"""Counts the moments in which the host waits for the device."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from ones.train import emulation


class WaitCounter:
    """`counts` has the number of waits of each `counting`."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        if emulation.is_requested():
            before = torch.ops.ones_emulated.host_waits()
            yield
            self.counts.append(torch.ops.ones_emulated.host_waits() - before)
            return
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
            waits = [w for w in found if "synchronizing CUDA operation" in str(w.message)]
            self.counts.append(len(waits))
