"""All jobs as they are now. The scheduler's thread pins cards up, everybody reads them.

A card is replaced and never changed, and the board is a dictionary, so that no reader needs
a lock. Who wants to follow gets every new card as it comes.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control import logs
from ones.control.readmodels.job_cards import (
    JobCard,
    WorkerPlaces,
    card_from,
    card_of,
    card_of_ended,
)
from ones.control.readmodels.out_of_service import out_of_service
from ones.control.schema import ended_cards
from ones.control.store import Store, upsert
from ones.control.submission import Submission, submissions_of
from ones.core.cluster import Cluster, Gpu, NodeState
from ones.core.lifecycle import Phase
from ones.core.state import State
from ones.wire.decoding import CodecError
from ones.wire.encoding import to_json

_LOG = logging.getLogger(__name__)

#: news to a follower: (what it is, the card)
Follower = Callable[[JobCard], None]

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeCard:
    name: str
    gpus: int
    state: str
    groups: tuple[int, ...] = ()  # see `ones.core.cluster.Node`


class JobBoard:
    """`not_used`: why GPUs are out of service, as far as that is known."""

    def __init__(
        self,
        store: Store,
        is_elastic: Callable[[str], bool],
        not_used: Callable[[], Mapping[Gpu, str]] = dict,
    ) -> None:
        self._store = store
        self._is_elastic = is_elastic
        self._not_used = not_used
        self._out_of_service = ""  # a line for all who wait
        self.cards: dict[str, JobCard] = {}  # in order of submission
        self.nodes: tuple[NodeCard, ...] = ()
        self.now = 0.0
        self.plan_number = 0
        self.dropped: dict[str, int] = {}
        self.unfinished: Counter[str] = Counter()  # jobs of each owner
        self._submissions: dict[str, Submission] = {}
        self._seats: dict[str, WorkerPlaces] = {}  # of jobs that have not ended
        self._cluster: Cluster | None = None  # that the nodes are of
        self._followers: dict[int, Follower] = {}
        self._next_follower = 0
        self._lock = threading.Lock()  # of the followers

    def fill(self, state: State) -> None:
        """After a restart: everybody who is known."""
        rows = self._store.rows(sa.select(ended_cards).order_by(ended_cards.c.submitted_at))
        self.cards = {}
        for row in rows:
            try:
                self.cards[row.job] = card_from(row.body)
            except CodecError as problem:
                _LOG.warning("kept card of job %s cannot be read, skipped: %s", row.job, problem)
        # whose card was not written before a crash, or cannot be read
        rest = [*(job for job in state.ended if job not in self.cards), *state.records]
        self._submissions = submissions_of(self._store, rest)
        self.update(state, rest)

    def submitted(self, job: str, submission: Submission) -> None:
        """Known before the scheduler hears of it, so that its first card has its name."""
        self._submissions[job] = submission

    def submission(self, job: str) -> Submission | None:
        """Of any job; reads the database for one that has ended."""
        known = self._submissions.get(job)
        return known or submissions_of(self._store, [job]).get(job)

    def update(self, state: State, jobs: Iterable[str]) -> None:
        """In the scheduler's thread."""
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
                waiting = [card.id for card in self.live() if card.state == Phase.WAITING]
                jobs = dict.fromkeys([*jobs, *waiting])
        for job in jobs:
            card = self._card(state, job)
            last = self.cards.get(job)
            if card is not None and card != last:
                was_there = last is not None and not last.over
                self.unfinished[card.owner] += (not card.over) - was_there
                self.cards[job] = card
                if card.over:
                    self._keep(card)
                self._tell(card)

    def _missing(self, cluster: Cluster) -> str:
        why = self._not_used()
        gpus = [
            Gpu(node.id, index)
            for node in cluster.nodes.values()
            if node.state is not NodeState.DOWN
            for index in sorted(node.aside)
        ]
        return out_of_service(cluster.n_gpus, {str(gpu): why.get(gpu, "") for gpu in gpus})

    def _keep(self, card: JobCard) -> None:
        self._submissions.pop(card.id, None)
        self._seats.pop(card.id, None)
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
        record = state.records.get(job)  # type: ignore[call-overload]
        if record is not None:
            seats = self._seats[job] = WorkerPlaces.of(record, self._seats.get(job))
            card = card_of(record, seats, submission, elastic=self._is_elastic(job))
            held_back = _held_back(state, card)
            if not held_back and self._out_of_service and card.state == Phase.WAITING:
                held_back = "; ".join(filter(None, (card.note, self._out_of_service)))
            return replace(card, note=held_back) if held_back else card
        outcome = state.ended.get(job)  # type: ignore[call-overload]
        if outcome is not None:
            last = self.cards.get(job)
            return card_of_ended(outcome, submission, last, elastic=self._is_elastic(job))
        return None

    # followers

    def follow(self, follower: Follower) -> Callable[[], None]:
        """Call `follower` with every new card, in the scheduler's thread. Returns how to stop."""
        with self._lock:
            self._next_follower += 1
            number = self._next_follower
            self._followers[number] = follower
        return lambda: self._unfollow(number)

    def _unfollow(self, number: int) -> None:
        with self._lock:
            self._followers.pop(number, None)

    def _tell(self, card: JobCard) -> None:
        with self._lock:
            followers = list(self._followers.values())
        for follower in followers:
            follower(card)

    # what is asked of it

    def live(self) -> list[JobCard]:
        return [card for card in list(self.cards.values()) if not card.over]

    def listed(
        self, *, owner: str | None, states: set[str] | None, over: bool, limit: int
    ) -> list[JobCard]:
        """The newest first."""
        found = []
        for card in reversed(list(self.cards.values())):
            if (
                (owner is None or card.owner == owner)
                and (states is None or card.state in states)
                and (over or not card.over)
            ):
                found.append(card)
                if len(found) == limit:
                    break
        return found


def _held_back(state: State, card: JobCard) -> str:
    """Why no policy can start it: its owner's limit. Empty: that is not why it waits."""
    room = state.waiting.room(card.owner)
    if card.state != Phase.WAITING or room is None or room >= card.min_gpus:
        return ""
    limit = state.waiting.limits[card.owner]
    needs = f"; it needs {card.min_gpus}" if card.min_gpus > 1 else ""
    return (
        f"waits for its owner's limit: {card.owner} may hold {limit} GPUs"
        f" and holds {limit - room}{needs}"
    )
