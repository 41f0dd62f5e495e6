"""Shortest remaining service first: an oracle, at the sizes that users asked for.

Service is time multiplied by GPUs, so a wide job ranks behind a narrow one of the same length.
`tiresias` approximates this policy without knowing the length of any job.
"""

from __future__ import annotations

from typing import ClassVar

from ones.core import reasons
from ones.core.view import JobView
from ones.models.rigid_jobs import size_of
from ones.models.shortest_first import ShortestFirst


class Srsf(ShortestFirst):
    counts_gpus: ClassVar[bool] = True

    def start_why(self, job: JobView) -> str:
        return "it needs the least GPU time of the jobs that fit"

    def wait_note(self, job: JobView) -> str:
        return reasons.waiting_by_rule("jobs that need less GPU time use the GPUs", size_of(job))
