"""Slots on the nodes of a Ray cluster.

    controller: RayLauncher ──socket──▶ driver ──Ray──▶ agent of each node ─▶ ones-exec ─▶ workers

Ray places the agents (one actor per node), reserves their GPUs, and carries launches, exits and
output. Ray ends a driver process whose head is gone, so the driver is a process of its own that may
die at any time. An agent owns a `LocalLauncher`, so that workers run under `ones-exec` as on one
machine.

**Fencing.** Workers run as long as their node's lease says. An agent renews it only while the head
of the cluster answers and holds the node's licence, a key in its table. To take a node's slots
away, the driver deletes the licence and waits for the duration of a lease: then no worker runs
there, whether the node was frozen, cut off or is back. Only then are its slots lost, and jobs go on
elsewhere.
"""

from __future__ import annotations
