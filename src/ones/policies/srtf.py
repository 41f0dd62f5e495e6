"""Shortest remaining time first: an oracle, at the sizes that users asked for.

The policy knows how long every job will still take, so it bounds what prediction alone can win.
"""

from __future__ import annotations

from typing import ClassVar

from ones.core import reasons
from ones.core.view import JobView
from ones.models.rigid_jobs import size_of
from ones.models.shortest_first import ShortestFirst


class Srtf(ShortestFirst):
    counts_gpus: ClassVar[bool] = False

    def start_why(self, job: JobView) -> str:
        return "it finishes soonest of the jobs that fit"

    def wait_note(self, job: JobView) -> str:
        return reasons.waiting_by_rule("jobs that finish sooner use the GPUs", size_of(job))
