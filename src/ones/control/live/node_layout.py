"""The nodes of a fixed-size job, and the variables by which its processes find each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from ones.core.cluster import Gpu, NodeId

#: below the ports that Linux gives to outgoing connections
_FIRST_PORT, _PORTS = 20_000, 12_000


@dataclass(frozen=True, slots=True)
class NodeLayout:
    gpus: Mapping[NodeId, int]  # in the order of the nodes' ranks
    address: str  # of the first node
    port: int

    @classmethod
    def of(cls, gpus: Iterable[Gpu], hosts: Mapping[str, str], plan: int) -> Self:
        """The layout of a start. Plans have numbers of their own, and so the port is the job's."""
        counts = Counter(gpu.node for gpu in gpus)
        first = next(iter(counts))
        return cls(counts, hosts.get(first, "127.0.0.1"), _FIRST_PORT + plan % _PORTS)

    def environment(self, node: NodeId) -> dict[str, str]:
        """The variables of the process on this node: options of torchrun, with one process for
        each GPU, and on several nodes what other launchers need."""
        here = {"PET_NPROC_PER_NODE": str(self.gpus[node])}
        if len(self.gpus) == 1:  # two jobs on one node would meet on torchrun's usual port
            return {**here, "PET_STANDALONE": "1"}
        rank, port = str(list(self.gpus).index(node)), str(self.port)
        return {
            **here,
            "PET_NNODES": str(len(self.gpus)),
            "PET_NODE_RANK": rank,
            "PET_MASTER_ADDR": self.address,
            "PET_MASTER_PORT": port,
            "MASTER_ADDR": self.address,
            "MASTER_PORT": port,
            "NNODES": str(len(self.gpus)),
            "NODE_RANK": rank,
            "WORLD_SIZE": str(sum(self.gpus.values())),
            "LOCAL_WORLD_SIZE": str(self.gpus[node]),
        }
