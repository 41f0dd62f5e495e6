"""The faults of the drills. Each happens once, in one worker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from ones.train import emulation
from ones.train.acceptance.case import DEVICE_ASSERT, KILL, OUT_OF_MEMORY, STOP, Drill

_SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP}
_TOO_MUCH = 1 << 50  # bytes: no device has them


def happen(drill: Drill | None, out: Path, *, step: int, workers: int, worker: str) -> None:
    """Call in each step, before backward."""
    if drill is None or worker != drill.worker or step < drill.step or workers < 2:
        return
    mark = out / "fault-happened"
    if mark.exists():
        return
    mark.touch()
    if drill.fault in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[drill.fault])
    elif drill.fault == OUT_OF_MEMORY:
        _run_out_of_memory()
    elif drill.fault == DEVICE_ASSERT:
        _fail_device()


def _run_out_of_memory() -> None:
    if emulation.is_requested():
        torch.ops.ones_emulated.limit_bytes(1)
        torch.empty(1 << 20, device=emulation.DEVICE)
    torch.empty(_TOO_MUCH, dtype=torch.uint8, device="cuda")


def _fail_device() -> None:
    """An index out of range: from here on, every call of this process to its device fails."""
    if emulation.is_requested():
        torch.ops.ones_emulated.fail("device-side assert triggered")
        torch.zeros(4, device=emulation.DEVICE)
    wrong = torch.full((1,), 99, device="cuda")
    torch.zeros(4, device="cuda")[wrong]
    torch.cuda.synchronize()
