"""Prints what torch knows of this machine's GPUs: `python -m ones.train.acceptance.facts`."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed

_torch: Any = torch  # parts of it have no types


def facts() -> dict[str, Any]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    dist: Any = torch.distributed
    has_nccl = count and dist.is_nccl_available()
    properties = [torch.cuda.get_device_properties(i) for i in range(count)]
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _torch.backends.cudnn.version() if count else None,
        "nccl": _nccl_version() if has_nccl else None,
        "triton": find_spec("triton") is not None,
        "gpus": [
            f"{p.name} (sm {p.major}.{p.minor}, {p.total_memory >> 20} MB)" for p in properties
        ],
        "p2p": [
            [i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)]
            for i in range(count)
        ],
    }


def _nccl_version() -> str:
    return ".".join(map(str, _torch.cuda.nccl.version()))


if __name__ == "__main__":
    print(json.dumps(facts()))
