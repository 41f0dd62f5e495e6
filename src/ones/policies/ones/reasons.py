"""Why a job was started, grown, shrunk, sent away or left waiting, in the terms of the score.

The score weighs what is left of a job, how much faster more GPUs make it, what a change costs
it, and what its end is worth to those behind it. These are the words of `ones why`.
"""

from __future__ import annotations

import numpy as np

from ones.core.schedule import Allocation
from ones.core.view import JobView
from ones.policies.ones.choices import Choices
from ones.policies.ones.question import Question


class Reasons:
    """Of one decision; what all jobs share is worked out once."""

    def __init__(self, question: Question, batch_seconds: float) -> None:
        """`batch_seconds`: what a change of nothing but the batch costs."""
        self._question, self._batch_seconds = question, batch_seconds
        least = np.array([choices.rates[0] for choices in question.choices])
        self._seconds = question.remaining / least
        # by the paper's score who has the least left comes first; by flow time who weighs most
        by_flow = not question.problem.use_all
        self._order = -question.problem.work.mean(axis=0) if by_flow else self._seconds

    def preempted(self, i: int) -> str:
        return f"preempted, its GPUs are worth more to others: {self._standing(i)}"

    def waits(self, i: int) -> str:
        problem = self._question.problem
        least = int(problem.least[i])
        if not problem.most[i]:
            needs = f"waits, it needs {least} {_gpus(least)}"
            if least > problem.gpus:
                return (
                    f"{needs} and {problem.gpus} can be had: the others are out of service, or"
                    " jobs have them whose size is fixed"
                )
            return f"{needs}, more than its owner or a setting allows"
        why = "GPUs are worth more to others"
        if not self._ahead(i):
            why = "to make room would cost those who run more than it gains"
        return f"waits, {why}: {self._standing(i)}"

    def changed(self, i: int, allocation: Allocation) -> str:
        job = self._question.jobs[i]
        return f"{_what(job, allocation)}{self._effect(i, job, allocation)}: {self._standing(i)}"

    def _effect(self, i: int, job: JobView, allocation: Allocation) -> str:
        """How much faster or slower that makes it, and what the change costs."""
        choices = self._question.choices[i]
        if not choices.present:
            return ""
        pace = _pace(choices, allocation.n_gpus)
        moves = job.wanted is None or job.wanted.gpus != allocation.gpus
        cost = job.switch_cost.rescale_seconds if moves else self._batch_seconds
        return f", {pace}" + (f" for {cost:.2g} s of standing still" if cost >= 0.01 else "")

    def _ahead(self, i: int) -> int:
        return int((self._order < self._order[i]).sum())

    def _standing(self, i: int) -> str:
        """What is left of it, and its place among those who compete."""
        gpus = self._question.problem.gpus
        to_share = f"{gpus} {_gpus(gpus)}"
        line = f"place {self._ahead(i) + 1} of {len(self._question.jobs)} in line for {to_share}"
        if len(self._question.jobs) == 1:
            line = f"nobody else for {to_share}"
        least = int(self._question.choices[i].sizes[0])
        on = "one GPU" if least == 1 else f"{least} GPUs"
        left = f"about {_long(float(self._seconds[i]))} left on {on}"
        if not self._question.measured[i]:
            left = "its length is not known yet"
        return f"{left}, {line}"


def rebatched(before: Allocation, after: Allocation, choices: Choices, limit: int) -> str:
    """Of a job that takes another batch on the GPUs that it has."""
    pace = f", {_pace(choices, after.n_gpus)}" if choices.present else ""
    return f"batch {before.batch} to {after.batch}{pace}; at most {limit} for now"


def _pace(choices: Choices, size: int) -> str:
    """In progress, not in samples: what a sample of a large batch is worth less is in it."""
    times = float(choices.rates[choices.at(size)]) / choices.present
    return f"{times:.1f} times as fast" if times >= 1 else f"{times:.0%} of its speed"


def _long(seconds: float) -> str:
    """
    >>> _long(86.0), _long(2712.0), _long(198_000.0)
    ('86 s', '45 min', '55 h')
    """
    if seconds < 200:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 200 * 60 else f"{seconds / 3600:,.0f} h"


def _gpus(number: int) -> str:
    return "GPU" if number == 1 else "GPUs"


def _what(job: JobView, allocation: Allocation) -> str:
    gpus = f"{allocation.n_gpus} {_gpus(allocation.n_gpus)}"
    batch = f", batch {allocation.batch}" if allocation.batch else ""
    before = job.wanted.n_gpus if job.wanted else 0
    if not before:
        return f"starts on {gpus}{batch}"
    if before == allocation.n_gpus:
        return f"stays on {gpus}{batch}"
    return f"{'grows' if allocation.n_gpus > before else 'shrinks'} from {before} to {gpus}{batch}"
