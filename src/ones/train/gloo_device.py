"""gloo as the communication library of a GPU: `ONES_BACKEND=gloo`.

Slow, because tensors go through host memory. NCCL refuses two workers on one GPU and MIG devices
of one GPU; gloo accepts both. An aborted operation raises an error, unlike NCCL's.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ones.train.connection_tracking import shut_down, track_connections

dist: Any = torch.distributed
_CONNECT_SECONDS = 120.0
_COLLECTIVE_TIMEOUT = timedelta(hours=12)  # a hanging worker is found by the membership pings


class GlooDeviceGroup:
    """The operations of NCCL that `ProcessGroup` uses, by gloo."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._gloo: Any = None
        self._connections: set[str] = set()

    def eager_connect_single_device(self, device: torch.device) -> None:
        with track_connections() as connections:
            options = dist.ProcessGroupGloo._Options()
            host = os.environ.get("ONES_HOST", "127.0.0.1")
            options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            options._timeout = timedelta(seconds=_CONNECT_SECONDS)
            self._gloo = dist.ProcessGroupGloo(self._store, self._rank, self._size, options)
            self._gloo._set_default_timeout(_COLLECTIVE_TIMEOUT)
        self._connections = connections

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:
        return self._gloo.allreduce(tensors, options)

    def broadcast(self, tensors: list[Tensor], options: Any) -> Any:
        return self._gloo.broadcast(tensors, options)

    def abort(self) -> None:
        """Ends the connections, so that operations under way fail here and in other members."""
        shut_down(self._connections)
