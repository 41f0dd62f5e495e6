"""Memory of a worker's device: its maximum in use, and errors that say it ran out."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from ones.train.device import module_of

_USABLE = 0.9  # of a device's memory: the rest is lost between blocks
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # written to clear_refs (man 5 proc)


def samples_that_fit(peaks: Mapping[int, int], available: int) -> int | None:
    """The largest micro-batch that fits, by the maxima of two sizes; None: not known.

    At most twice the largest that was measured: the line through two points may be wrong.

    >>> samples_that_fit({8: 3_000, 16: 5_000}, 10_000)  # 1,000 bytes and 250 for each sample
    32
    >>> samples_that_fit({8: 3_000, 16: 5_000}, 7_500)
    23
    """
    if len(peaks) < 2:
        return None
    small, large = min(peaks), max(peaks)
    per_sample = (peaks[large] - peaks[small]) / (large - small)
    if per_sample <= 0.0 or not available:
        return None
    more = int((_USABLE * available - peaks[large]) / per_sample)
    return large + min(max(more, 0), large)


def available_bytes(device: torch.device) -> int:
    """Memory of the device that this process has or can get; 0: not known."""
    if device.type == "cpu":
        return 0
    module = module_of(device)
    return int(module.mem_get_info(device)[0] + module.memory_reserved(device))


def peak_bytes(device: torch.device) -> int:
    """Maximum in use since the last `reset_peak`, where the system can reset it."""
    if device.type != "cpu":
        return int(module_of(device).max_memory_allocated(device))
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak(device: torch.device) -> None:
    """Call when the micro-batch changes: a maximum is of one micro-batch."""
    if device.type != "cpu":
        module_of(device).reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def free_memory(device: torch.device) -> None:
    """Returns cached memory of the device, so that smaller parts find room."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
