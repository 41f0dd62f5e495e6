"""What the workers of an acceptance job note, one JSON object per line."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ones.train.device import module_of


class Notes:
    """The notes of one worker."""

    def __init__(self, out: Path, worker: str) -> None:
        name = f"notes-{worker.replace('/', '-')}-{os.getpid()}.jsonl"
        self._file = (out / name).open("a")
        self._worker = worker

    def write(self, kind: str, **values: Any) -> None:
        line = {"kind": kind, "worker": self._worker, "pid": os.getpid(), **values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def state_digest(model: nn.Module, optimizer: Optimizer) -> str:
    """A digest of all bits of parameters, optimizer state and buffers."""
    total = hashlib.sha256()
    for p in model.parameters():
        _add(total, p.detach())
        state = optimizer.state.get(p, {})
        for name in sorted(state):
            if isinstance(state[name], Tensor):
                _add(total, state[name])
    for buffer in model.buffers():
        _add(total, buffer)
    return total.hexdigest()[:16]


def _add(total: Any, tensor: Tensor) -> None:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    total.update(flat.view(torch.uint8).numpy().tobytes())


def memory_used(device: torch.device) -> dict[str, int]:
    """Bytes of the device in use: by tensors of this process, and in all (NCCL's buffers, too)."""
    tensors = int(module_of(device).memory_allocated(device))
    if device.type != "cuda":
        return {"tensors": tensors, "device": tensors}
    free, total = torch.cuda.mem_get_info(device)
    return {"tensors": tensors, "device": total - free}


class StepTimer:
    """Seconds of each step, the device's work included. The first one after a switch is marked."""

    def __init__(self, device: torch.device) -> None:
        self._module = module_of(device)
        self._began = 0.0

    def begin(self) -> None:
        self._module.synchronize()
        self._began = time.perf_counter()

    def end(self) -> float:
        self._module.synchronize()
        return time.perf_counter() - self._began
