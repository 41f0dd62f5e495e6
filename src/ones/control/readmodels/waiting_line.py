"""The line of waiting jobs: positions and expected starts, computed when they are shown.

The forecasts of the running jobs give the times at which GPUs become free. The waiting jobs take
their minimum number of GPUs one after the other: by the position that the policy has stored in the
job's reason, else by priority and submission.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from ones.control.readmodels.job_cards import JobCard
from ones.core.lifecycle import Phase
from ones.core.reason_markers import NAMED_JOBS, Live, Sees, names, stored_place
from ones.core.user_units import duration

#: number of jobs at the head of the line for which a start is estimated
ESTIMATED = 100
#: a start in less than this many seconds is shown as "soon"
SOON_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WaitingLine:
    positions: dict[str, int] = field(default_factory=dict)  # by job, from 1
    starts: dict[str, float] = field(default_factory=dict)  # expected, by job; absent: not known
    running: tuple[str, ...] = ()  # jobs with GPUs, the oldest first

    @classmethod
    def of(cls, cards: Iterable[JobCard], n_gpus: int) -> WaitingLine:
        """The line from the cards of all jobs that have not ended. `n_gpus`: GPUs in service."""
        waiting: list[tuple[tuple[float, ...], JobCard]] = []
        running: list[JobCard] = []
        for card in cards:
            if card.state == Phase.WAITING:
                place = stored_place(card.note) or inf
                waiting.append(((place, card.penalty - card.priority, card.submitted_at), card))
            elif card.workers:
                running.append(card)
        waiting.sort(key=lambda entry: entry[0])
        line = [card for _, card in waiting]
        return cls(
            {card.id: i + 1 for i, card in enumerate(line)},
            _starts(line[:ESTIMATED], running, n_gpus),
            tuple(card.id for card in running),
        )

    def live(self, job: str, now: float, sees: Sees) -> Live:
        """A function that fills in the marks of a waiting job's reason."""

        def filled(kind: str, number: int) -> str:
            if kind == "running":
                return self._users_of_gpus(sees)
            if kind == "time":
                return f"in {duration(max(1.0, number - now))}"
            return self._position(job, now)

        return filled

    def _position(self, job: str, now: float) -> str:
        position = self.positions.get(job)
        if position is None:  # the job does not wait any more
            return ""
        text = f"Position {position} of {len(self.positions):,}."
        start = self.starts.get(job)
        if start is None:
            return text
        seconds = start - now
        when = f"in about {duration(seconds)}" if seconds >= SOON_SECONDS else "soon"
        return f"{text} Expected start {when}."

    def _users_of_gpus(self, sees: Sees) -> str:
        named = self.running[:NAMED_JOBS]
        more = len(self.running) - len(named)
        if not named:
            return ""
        return f"GPUs are used by {names(named, sees)}{f' and {more} more' if more else ''}."


def _starts(line: list[JobCard], running: list[JobCard], n_gpus: int) -> dict[str, float]:
    """Expected start by job, up to the first job that the forecasts leave without enough GPUs.

    A job that could start at once has no entry, because the time of the next decision is not known.
    """
    used = sum(len(card.workers) for card in running)
    free, at = n_gpus - used, 0.0
    ends = sorted((card.eta, len(card.workers)) for card in running if card.eta is not None)
    starts: dict[str, float] = {}
    for card in line:
        while free < card.min_gpus and ends:
            at, freed = ends.pop(0)
            free += freed
        if free < card.min_gpus:
            break
        free -= card.min_gpus
        if at:
            starts[card.id] = at
    return starts
