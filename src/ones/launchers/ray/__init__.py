"""Slots on the nodes of a Ray cluster.

    controller: RayLauncher ──socket──▶ driver ──Ray──▶ agent of each node ─▶ ones-exec ─▶ workers

Ray places the agents (one actor per node), reserves their GPUs, and carries launches, exits and
output. Ray kills a driver process when it loses the head of the cluster, so the driver is a process
of its own that may die at any time. An agent owns a `LocalLauncher`, so that workers run under
`ones-exec` as on one machine.

**Fencing.** Workers run until the lease of their node expires. An agent renews the lease only while
the head of the cluster answers and has the node's licence, a key in its table. To take a node's
slots away, the driver deletes the licence and waits for the duration of a lease. After that no
worker runs there, whether the node was frozen, is cut off or has come back. Only then are its slots
reported lost, and the jobs continue on other nodes.
"""

from __future__ import annotations
