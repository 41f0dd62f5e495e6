"""The current card (read model) of every job, updated by the scheduler's thread.

Any thread may read without a lock: cards are in a dictionary, and a card is replaced, never
changed. Followers get every new card as it comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control import logs
from ones.control.readmodels.job_cards import (
    WAITING_STATES,
    JobCard,
    WorkerPlaces,
    card_from,
    card_of,
    card_of_ended,
)
from ones.control.readmodels.out_of_service import out_of_service
from ones.control.readmodels.waiting_line import WaitingLine
from ones.control.schema import ended_cards
from ones.control.store import Store, upsert
from ones.control.stored_submissions import submissions_of
from ones.control.submission import Submission
from ones.core import reasons
from ones.core.cluster import Cluster, Gpu, NodeState
from ones.core.job import Job, JobId
from ones.core.record import JobRecord
from ones.core.state import State
from ones.wire.decoding import CodecError
from ones.wire.encoding import to_json

_LOG = logging.getLogger(__name__)

#: called with every new card
Follower = Callable[[JobCard], None]

log = logs.logger(__name__)

#: with at least LONG_LINE waiting jobs, their order may be up to LINE_SECONDS old
LONG_LINE, LINE_SECONDS = 1000, 1.0
#: first words of notes about running jobs, which do not explain why a job waits
_OF_RUNNING_JOBS = ("Started", "Grown", "Shrunk", "Moved", "Batch", "Keeps")


@dataclass(frozen=True, slots=True)
class NodeCard:
    name: str
    gpus: int
    state: str
    groups: tuple[int, ...] = ()  # see `ones.core.cluster.Node`


class JobBoard:
    """The cards of all jobs and nodes. `not_used` returns why GPUs are out of service."""

    def __init__(
        self,
        store: Store,
        is_elastic: Callable[[str], bool],
        not_used: Callable[[], Mapping[Gpu, str]] = dict,
    ) -> None:
        self._store = store
        self._is_elastic = is_elastic
        self._not_used = not_used
        self._reviews = 0  # those of fair share that the cards show
        self._out_of_service = ""  # a sentence that is added to the note of all waiting jobs
        self._n_cordoned = 0  # number of cordoned GPUs
        self.cards: dict[str, JobCard] = {}  # in order of submission
        self.nodes: tuple[NodeCard, ...] = ()
        self.now = 0.0
        self.plan_number = 0
        self.dropped: dict[str, int] = {}
        self.unfinished: Counter[str] = Counter()  # number of jobs that have not ended, by owner
        self._version = 0  # counts the updates of the cards
        self._line: tuple[int, float, WaitingLine] = (0, -inf, WaitingLine())
        self._submissions: dict[str, Submission] = {}
        self._requests: dict[str, Job] = {}  # of jobs without a card
        self._places: dict[str, WorkerPlaces] = {}  # by job, of jobs that have not ended
        self._cluster: Cluster | None = None  # the cluster from which `nodes` was made
        self._followers: dict[int, Follower] = {}
        self._next_follower = 0
        self._lock = threading.Lock()  # for the followers

    def fill(self, state: State) -> None:
        """Make the cards of all known jobs, after a restart."""
        rows = self._store.rows(sa.select(ended_cards).order_by(ended_cards.c.submitted_at))
        self.cards = {}
        for row in rows:
            try:
                self.cards[row.job] = card_from(row.body)
            except CodecError as problem:
                _LOG.warning("kept card of job %s cannot be read, skipped: %s", row.job, problem)
        # the card of an ended job may not have been written before a crash, or cannot be read
        rest = [*(job for job in state.ended if job not in self.cards), *state.records]
        self._submissions = submissions_of(self._store, rest)
        self.update(state, rest)

    def submitted(self, job: str, submission: Submission, request: Job | None = None) -> None:
        """Note a submission before the scheduler gets the job, so that its first card is named.
        `request`: of a new job, which may end before its first card is made."""
        self._submissions[job] = submission
        if request is not None:
            self._requests[job] = request

    def submission(self, job: str) -> Submission | None:
        """The submission of any job; read from the database if the job has ended."""
        known = self._submissions.get(job)
        return known or submissions_of(self._store, [job]).get(job)

    def update(self, state: State, jobs: Iterable[str]) -> None:
        """Update the cards of these jobs. To be called in the scheduler's thread."""
        jobs = list(jobs)
        self._version += 1
        self.now, self.plan_number = state.now, state.plan_number
        self.dropped = dict(state.dropped)
        if state.cluster is not self._cluster:
            self._cluster = state.cluster
            self.nodes = tuple(
                NodeCard(node.id, node.gpus, node.state.value, node.groups)
                for node in state.cluster.nodes.values()
            )
            before, self._out_of_service = self._out_of_service, self._missing(state.cluster)
            if before != self._out_of_service:
                waiting = [card.id for card in self.live() if _waits(card)]
                jobs = dict.fromkeys([*jobs, *waiting])
        if state.fair_share.reviews != self._reviews:
            self._reviews = state.fair_share.reviews
            jobs = dict.fromkeys([*jobs, *(card.id for card in self.live() if _waits(card))])
        # new cards in the order of submission: all tasks of an array may be new at once
        numbers = {
            job: record.number for job in jobs if (record := _record(state, job)) is not None
        }
        for job in sorted(jobs, key=lambda job: numbers.get(job, -1)):
            card = self._card(state, job)
            last = self.cards.get(job)
            if card is not None and card != last:
                was_there = last is not None and not last.over
                self.unfinished[card.owner] += (not card.over) - was_there
                self.cards[job] = card
                if card.over:
                    self._keep(card)
                self._notify(card)

    def _missing(self, cluster: Cluster) -> str:
        why = self._not_used()
        gpus = [
            Gpu(node.id, index)
            for node in cluster.nodes.values()
            if node.state is not NodeState.DOWN
            for index in sorted(node.aside)
        ]
        self._n_cordoned = len(gpus)
        return out_of_service(cluster.n_gpus, {str(gpu): why.get(gpu, "") for gpu in gpus})

    def _keep(self, card: JobCard) -> None:
        self._submissions.pop(card.id, None)
        self._places.pop(card.id, None)
        row = {
            "job": card.id,
            "submitted_at": card.submitted_at,
            "body": to_json(card),
        }
        self._store.write(operations=[upsert(ended_cards, row)])
        log.info("job ended", job=card.id, owner=card.owner, state=card.state, epochs=card.epochs,
                 reason=card.message)  # fmt: skip

    def _card(self, state: State, job: str) -> JobCard | None:
        submission = self._submissions.get(job)
        record = _record(state, job)
        if record is not None:
            self._requests.pop(job, None)
            places = self._places[job] = WorkerPlaces.of(record, self._places.get(job))
            card = card_of(record, places, submission, elastic=self._is_elastic(job))
            note = self._wait_note(state, record, card) if _waits(card) else card.note
            return replace(card, note=note)
        outcome = state.ended.get(job)  # type: ignore[call-overload]
        if outcome is not None:
            last, request = self.cards.get(job), self._requests.pop(job, None)
            elastic = self._is_elastic(job)
            return card_of_ended(outcome, submission, last, elastic=elastic, request=request)
        return None

    def _wait_note(self, state: State, record: JobRecord, card: JobCard) -> str:
        """Why a job waits. A preempted job may still have the note of its last start: it is
        replaced."""
        if record.on_hold:
            return reasons.on_hold(record.held_by, card.id)
        if record.awaits:
            return reasons.waiting_for_jobs(card.after)
        if record.in_line:
            return reasons.waiting_in_array(card.array, record.job.array_limit or 0)
        room = state.waiting.room(card.owner)
        if room is not None and room < card.min_gpus:
            limit = state.waiting.limits[card.owner]
            return reasons.waiting_for_owner(card.owner, limit, limit - room, card.min_gpus)
        note = card.note
        if note.startswith(_OF_RUNNING_JOBS) or not note:
            note = reasons.waiting_behind(card.min_gpus)
        if state.fair_share.goes_behind(card.owner):
            use = state.fair_share.of(card.owner, state.now, state.cluster.n_gpus)
            note += " " + reasons.past_use(card.owner, use.gpu_seconds, use.ratio)
        return f"{note} {self._out_of_service}" if self._out_of_service else note

    # followers

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call `follower` with every new card, in the scheduler's thread.

        Returns a function that ends this.
        """
        with self._lock:
            self._next_follower += 1
            number = self._next_follower
            self._followers[number] = follower
        return lambda: self._unfollow(number)

    def _unfollow(self, number: int) -> None:
        with self._lock:
            self._followers.pop(number, None)

    def _notify(self, card: JobCard) -> None:
        with self._lock:
            followers = list(self._followers.values())
        for follower in followers:
            follower(card)

    # queries

    def n_gpus(self) -> int:
        """GPUs of all nodes that are not down."""
        return sum(node.gpus for node in self.nodes if node.state != NodeState.DOWN)

    def live(self) -> list[JobCard]:
        return [card for card in list(self.cards.values()) if not card.over]

    def line(self) -> WaitingLine:
        """The waiting jobs in order. A long line is computed at most once in `LINE_SECONDS`."""
        version, made_at, line = self._line
        now = time.monotonic()
        is_short = len(line.positions) < LONG_LINE
        if version != self._version and (is_short or now - made_at >= LINE_SECONDS):
            version = self._version
            in_service = sum(node.gpus for node in self.nodes if node.state == NodeState.UP)
            line = WaitingLine.of(self.live(), in_service - self._n_cordoned)
            self._line = version, now, line
        return line

    def listed(
        self,
        *,
        owner: str | None,
        accepts: Callable[[JobCard], bool] = lambda card: True,
        over: bool,
        limit: int,
    ) -> list[JobCard]:
        """The accepted cards of an owner, newest first; `over`: ended jobs too."""
        found = []
        for card in reversed(list(self.cards.values())):
            if (over or not card.over) and (owner is None or card.owner == owner) and accepts(card):
                found.append(card)
                if len(found) == limit:
                    break
        return found


def _record(state: State, job: str) -> JobRecord | None:
    return state.records.get(JobId(job))


def _waits(card: JobCard) -> bool:
    return card.state in WAITING_STATES
