"""Memory of a worker's device: its maximum in use, and errors that say it ran out."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # written to clear_refs (man 5 proc)


def peak_bytes() -> int:
    """Maximum in use since the last `reset_peak`, where the system can reset it."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = _STATUS.read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    """Call when the micro-batch changes: a maximum is of one micro-batch."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
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
