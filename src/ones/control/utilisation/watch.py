"""Warns of idle GPUs and slow workers, and ends idle jobs if a setting says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ones.control import logs
from ones.control.live.jobs import NOW
from ones.control.readmodels.job_cards import JobCard
from ones.control.utilisation.board import UtilisationBoard
from ones.core import events as ev
from ones.core import reasons
from ones.core.job import JobId
from ones.wire.samples import SAMPLE_SECONDS

log = logs.logger(__name__)


class UtilisationWatch:
    """`check` looks at all jobs; `start` calls it in a thread of its own, once for each sample."""

    def __init__(
        self,
        board: UtilisationBoard,
        live: Callable[[], list[JobCard]],
        tell: Callable[[ev.Event], object],
        notify: Callable[[JobCard, str], object],
    ) -> None:
        """`tell` takes events for the scheduler, `notify` warnings for users."""
        self._board, self._live = board, live
        self._tell, self._notify = tell, notify
        self._warned: set[tuple[str, str]] = set()  # (job, what about) that hold now
        self._ended: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ones-utilisation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            try:
                self.check()
            except Exception:  # a warning less must not end the others
                log.exception("utilisation not checked")

    def check(self) -> None:
        running = [card for card in self._live() if card.workers]
        for card in running:
            self._check_job(card)
        there = {card.id for card in running}
        self._warned = {pair for pair in self._warned if pair[0] in there}
        self._ended &= there

    def _check_job(self, card: JobCard) -> None:
        board, limits = self._board, self._board.limits
        board.find_slow(card.id)
        uses = board.uses(card.id)
        idle, slow = board.idle_slots(card.id), board.slow_slots(card.id)
        times = limits.idle_warn_seconds, limits.idle_end_seconds
        idle_text = reasons.idle_workers(idle, len(uses), *times) if idle else ""
        self._warn(card, "idle", idle_text)
        slowdowns = {slot: uses[slot].slowdown for slot in slow if slot in uses}
        slow_text = reasons.slow_workers(slowdowns, limits.slow_seconds) if slowdowns else ""
        self._warn(card, "slow", slow_text)
        if card.id not in self._ended and board.is_all_idle(card.id):
            self._ended.add(card.id)
            why = reasons.idle_limit(limits.idle_end_seconds)
            self._tell(ev.CancelRequested(NOW, JobId(card.id), why))

    def _warn(self, card: JobCard, about: str, text: str) -> None:
        """Warns once, until no worker of the job is idle (or slow) any more."""
        if not text:
            self._warned.discard((card.id, about))
        elif (card.id, about) not in self._warned:
            self._warned.add((card.id, about))
            self._tell(ev.JobWarned(NOW, JobId(card.id), about, text))
            self._notify(card, text)
            log.warning("job warned", job=card.id, about=about, reason=text)
