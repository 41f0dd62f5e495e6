"""Slots on the nodes of a Ray cluster.

    controller: RayLauncher ──socket──▶ bridge, the Ray driver ──Ray──▶ NodeManager of each node
                                                                            └─▶ ones-exec ─▶ workers

Ray places the managers, keeps their GPUs from others, and carries launches, exits and output.
It ends a driver whose head is gone, so the driver is a process of its own that may die at any
time. A manager owns a `LocalLauncher` on its node, so workers are under `ones-exec` as on one
machine.

**Fencing.** Workers run as long as their node's lease says. A manager renews it only while the
head of the cluster answers and still holds the node's licence, a key in its table. To take a
node's slots away the bridge deletes the licence and waits for the time of a lease: frozen, cut
off or thawed, nothing runs there any more. Only then are the slots lost, and jobs go on elsewhere.
"""

from __future__ import annotations

from ones.launchers.ray.launcher import RayLauncher
from ones.launchers.ray.options import RayOptions

__all__ = ["RayLauncher", "RayOptions"]
