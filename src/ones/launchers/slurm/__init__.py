"""Slots in allocations of Slurm, which starts one agent on each node; the rest is ours.

`allocation` runs once in each allocation and keeps an agent on every node (`srun --overlap`);
`agent` holds a node's slots and starts workers under ones-exec; `launcher` is the controller's
side, where agents come in by its `door`. They meet in the state directory, which all nodes must
share:

    runs/agents.json, agents.key    where agents find the controller, and how they know each other
    runs/allocations/ID.json        an allocation: its nodes, its end
    runs/nodes/NODE                 `here`, or `lost`: the last word on a node that does not answer
"""

from __future__ import annotations
