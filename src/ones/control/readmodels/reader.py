"""Jobs and reasons for one reader: jobs that the reader may not see are not named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ones.control.readmodels.job_board import JobBoard
from ones.control.readmodels.job_cards import JobCard
from ones.core.reason_markers import render


class Reader:
    """The view of one reader. `may_see`: whether the reader may see the jobs of an owner. `used`:
    what the workers of a job use, as keys of its card."""

    def __init__(
        self,
        board: JobBoard,
        may_see: Callable[[str], bool],
        used: Callable[[JobCard], Mapping[str, Any]] = lambda card: {},
    ) -> None:
        self._board, self._may_see, self._used = board, may_see, used

    def sees(self, job: str) -> bool:
        card = self._board.cards.get(job)
        return card is not None and self._may_see(card.owner)

    def card(self, card: JobCard, now: float) -> dict[str, Any]:
        """The card as plain values, with the reason for this reader."""
        plain = card.at(now)
        plain["note"] = self.note(card, now)
        plain.update(self._used(card))
        return plain

    def note(self, card: JobCard, now: float) -> str:
        if "⟨" not in card.note:
            return card.note
        return render(card.note, self.sees, self._board.line().live(card.id, now, self.sees))

    def text(self, stored: str) -> str:
        """A reason from the history, without the parts that change while a job waits."""
        return render(stored, self.sees)
