"""Reasons of one decision for each job: why it started, changed, was preempted or waits.

The texts are in `ones.core.reasons`; this module finds their numbers and the other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import inf

import numpy as np

from ones.core import reasons
from ones.core.cluster import Gpu
from ones.core.job import JobId
from ones.core.reason_markers import stored_place
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.policies.ones.score.choices import Choices
from ones.policies.ones.score.problem_builder import PosedProblem

#: ratio of two ranks from which on jobs change places in the line
CLEARLY = 4 / 3


class Reasons:
    """`places`: the GPUs of each job after the decision. `batch_seconds`: pause of a change of
    the batch alone."""

    def __init__(
        self,
        view: View,
        posed: PosedProblem,
        places: Mapping[JobId, tuple[Gpu, ...]],
        batch_seconds: float,
    ) -> None:
        self._view, self._posed, self._places = view, posed, places
        self._batch_seconds = batch_seconds
        least = np.array([choices.rates[0] for choices in posed.choices])
        self._seconds = posed.remaining / least
        # flow time prefers the largest weight
        self._order = -posed.problem.mean_work
        self._sorted = np.sort(self._order)

    def preempted(self, i: int) -> str:
        job = self._posed.jobs[i]
        lost = job.wanted.gpus if job.wanted else ()
        gained = {
            self._posed.jobs[k].id: gpus
            for k in self._running
            if (gpus := self._gained(self._posed.jobs[k]))
        }
        jobs = reasons.takers(lost, gained)
        named = {self._index[JobId(job)] for job in jobs}
        return reasons.preempted(jobs, self._advantage(i, named))

    def waits(self, i: int) -> str:
        """A text that stays the same while other jobs change: it is stored whenever it differs."""
        problem = self._posed.problem
        needs = int(problem.least[i])
        if needs > self._shareable:
            return reasons.waiting_too_large(needs)
        if not problem.most[i] and needs <= problem.gpus:
            return reasons.waiting_over_limit(needs)
        position = self._positions.get(i)
        if position is None:
            return reasons.waiting_far_behind(self._rule(i), needs)
        # Jobs that are being changed are not in the problem: without them nothing is known about
        # the order.
        is_whole = problem.gpus >= self._view.cluster.n_gpus
        if is_whole and not any(self._order[k] < self._order[i] for k in self._running):
            return reasons.waiting_not_worth(position)
        return reasons.waiting_by_rule(self._rule(i), needs, position)

    def _rule(self, i: int) -> str:
        if self._posed.jobs[i].priority < self._least_priority:
            return reasons.PRIORITY_FIRST
        return reasons.SHORTER_OR_OLDER_FIRST

    def changed(self, i: int, allocation: Allocation) -> str:
        job = self._posed.jobs[i]
        is_move = job.wanted is None or job.wanted.gpus != allocation.gpus
        before = job.wanted.n_gpus if job.wanted else 0
        measured = self._posed.measured[i]
        speed = _speed(self._posed.choices[i], allocation.n_gpus) if measured else 0.0
        why = self._why(i, gains=allocation.n_gpus > before)
        if allocation.n_gpus < before:
            why = reasons.FASTER_WITH_FEWER if speed > 1 else reasons.OTHERS_GAIN_MORE
        return reasons.changed(
            job.wanted,
            allocation,
            why,
            speed=speed,
            pause=job.switch_cost.rescale_seconds if is_move else self._batch_seconds,
        )

    def _why(self, i: int, *, gains: bool) -> str:
        if not self._posed.jobs[i].job.elastic:
            return reasons.FIXED_SIZE
        if not self._posed.measured[i]:
            return reasons.NOT_MEASURED
        ahead = int(np.searchsorted(self._sorted, self._order[i]))
        is_ahead = self._order < self._order[i]
        return reasons.precedence(
            ahead,
            shorter=bool((self._seconds[is_ahead] < self._seconds[i]).all()),
            competing=len(self._posed.jobs),
            shared_gpus=self._posed.problem.gpus,
            gains=gains,
        )

    def _advantage(self, i: int, others: set[int]) -> str:
        """Why all of these jobs come before a job; empty: not all for one reason."""
        jobs = self._posed.jobs
        if others and all(jobs[k].priority > jobs[i].priority for k in others):
            return reasons.HIGHER_PRIORITY
        if others and all(self._seconds[k] < self._seconds[i] for k in others):
            return reasons.SOONER
        return ""

    def _gained(self, job: JobView) -> tuple[Gpu, ...]:
        held = set(job.wanted.gpus) if job.wanted else set()
        return tuple(gpu for gpu in self._places[job.id] if gpu not in held)

    @cached_property
    def _index(self) -> dict[JobId, int]:
        return {job.id: i for i, job in enumerate(self._posed.jobs)}

    @cached_property
    def _running(self) -> list[int]:
        """Jobs with GPUs after the decision, the oldest first: their names change least."""
        return [i for i, job in enumerate(self._posed.jobs) if self._places.get(job.id)]

    @cached_property
    def _least_priority(self) -> float:
        """The least priority of all jobs with GPUs."""
        priorities = {job.priority for job in self._posed.jobs}
        if len(priorities) == 1:
            return -inf  # most clusters do not use them
        return min((self._view.job(job).priority for job in self._view.schedule), default=-inf)

    @cached_property
    def _shareable(self) -> int:
        """GPUs that elastic jobs could have."""
        view = self._view
        fixed = (view.job(job) for job in view.schedule if not view.job(job).job.elastic)
        return view.cluster.n_gpus - sum(job.wanted.n_gpus for job in fixed if job.wanted)

    @cached_property
    def _positions(self) -> dict[int, int]:
        """Positions of the first waiting jobs, from 1. Two jobs change places only if their ranks
        differ clearly: estimates vary from one decision to the next."""
        waits = np.ones(len(self._posed.jobs), np.bool_)
        waits[self._running] = False
        waiting = np.flatnonzero(waits)
        by_rank = waiting[np.argsort(self._order[waiting], kind="stable")]
        first = [int(i) for i in by_rank[: reasons.NUMBERED_PLACES]]
        first.sort(key=lambda i: stored_place(self._posed.jobs[i].note) or inf)
        line: list[int] = []
        for i in first:
            at = len(line)
            while at and self._is_clearly_before(i, line[at - 1]):
                at -= 1
            line.insert(at, i)
        return {i: n + 1 for n, i in enumerate(line)}

    def _is_clearly_before(self, i: int, other: int) -> bool:
        mine, theirs = abs(self._order[i]), abs(self._order[other])
        # weights are negative in the order: the largest comes first
        better, worse = (mine, theirs) if self._order[i] < 0 else (theirs, mine)
        return bool(better > CLEARLY * worse)


def rebatched(before: Allocation, after: Allocation, choices: Choices, limit: int) -> str:
    """Reason of a change of the batch between two updates."""
    speed = _speed(choices, after.n_gpus)
    why = reasons.batch_limit(limit) if after.batch >= limit else reasons.BETTER_GOODPUT
    return reasons.rebatched(before.batch, after.batch, after.n_gpus, why, speed=speed)


def _speed(choices: Choices, size: int) -> float:
    """Speed relative to the present one, in progress and not in samples; 0: not known."""
    return float(choices.rates[choices.at(size)]) / choices.present if choices.present else 0.0
