"""Slots in allocations of Slurm, with one agent on each node.

`allocation` runs once in each allocation and keeps an agent on every node (`srun --overlap`).
`agent` holds a node's slots and starts workers under ones-exec. `launcher` is the controller's
side; agents connect to its `agent_server`. They share the state directory:

    runs/agents.json, agents.key    address of the controller, and the key of the connections
    runs/allocations/ID.json        an allocation: its nodes, its end
    runs/nodes/NODE                 `here`, or `lost`: the controller has given the node up
"""

from __future__ import annotations
