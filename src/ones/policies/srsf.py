"""Shortest remaining service first: an oracle, at the sizes that users asked for.

Service is time multiplied by GPUs, so a wide job ranks behind a narrow one of the same length.
`tiresias` approximates this policy without knowing the length of any job.
"""

from __future__ import annotations

from typing import ClassVar

from ones.core.view import JobView
from ones.models.shortest_first import ShortestFirst


class Srsf(ShortestFirst):
    counts_gpus: ClassVar[bool] = True

    def start_note(self, job: JobView, nodes: int) -> str:
        left = self.remaining(job)
        return f"its turn: {left:.0f} GPU-seconds are left, the least of those that fit"

    def wait_note(self, job: JobView) -> str:
        return f"waits for smaller ones: {self.remaining(job):.0f} GPU-seconds are left of it"
