"""Shortest remaining time first: an oracle, at the sizes that users asked for.

The policy knows how long every job will still take, so it bounds what prediction alone can win.
"""

from __future__ import annotations

from typing import ClassVar

from ones.core.view import JobView
from ones.models.shortest_first import ShortestFirst


class Srtf(ShortestFirst):
    counts_gpus: ClassVar[bool] = False

    def start_note(self, job: JobView, nodes: int) -> str:
        return f"its turn: {self.remaining(job):.0f} s are left of it, the least of those that fit"

    def wait_note(self, job: JobView) -> str:
        return f"waits for shorter ones: {self.remaining(job):.0f} s are left of it"
