"""Updates for one open page: first everything that the page shows, then the changes.

A feed reads the job board and the database, so it runs in a worker thread, one call at a time.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from ones.control.accounts import User
from ones.control.api.access import reader_of
from ones.control.api.cluster import all_decisions, cluster
from ones.control.api.jobs import launches
from ones.control.readmodels.entry_texts import HistoryReader, Shown
from ones.control.readmodels.history import CURVES, CurveReader, Line, entries_of, thinned
from ones.control.readmodels.job_cards import JobCard
from ones.control.service import Service
from ones.core.lifecycle import Phase

#: (name of the event, its value)
News = tuple[str, Any]

TICK_SECONDS = 5.0
MOST_WAITING, MOST_ENDED, MOST_DECISIONS = 500, 100, 30
#: maximum numbers: entries that are read of a job, lines and points of a curve that are sent
MOST_ENTRIES, MOST_LINES, MOST_POINTS = 20_000, 1000, 4000
#: GPUs with curves of their own; of more the mean is sent
MOST_USED = 8
TAIL_BYTES, CHUNK_BYTES = 32_768, 65_536
_NOT_SHOWN = ("command", "kind")  # may be long, and no list shows them


def to_json(value: object) -> str:
    """JSON for browsers: a number that is not finite (such as a diverged loss) becomes null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Feed:
    """Updates of jobs and cluster. With a job: also its history, curves and output; else also all
    decisions."""

    def __init__(
        self, service: Service, user: User, job: str | None, output: Output | None
    ) -> None:
        self._service, self._user = service, user
        self._reader = reader_of(service, user)
        self._past = _Past(service, job, self._reader.text) if job is not None else None
        self._wait_notes: dict[str, str] = {}  # of waiting jobs, as they were sent
        self._output = output
        self._job = job
        self._cluster: dict[str, Any] = {}
        self._launches: list[dict[str, Any]] = []
        self._decision = 0
        self._problems: list[str] = []
        self._ticked = 0.0
        self._unsettled = False
        self._used_version = 0  # of the curves that were sent

    def first(self) -> Iterator[News]:
        now = self._service.clock.now()
        self._ticked = now
        self._problems = self._troubles()
        user = self._user
        yield "hello", {"now": now, "user": user.name, "admin": user.is_admin}
        yield "problems", self._problems
        yield "jobs", {"now": now, "all": True, "cards": list(map(self._plain, self._cards()))}
        yield from self._rest()
        yield from self._used()

    def news(self, changed: set[str]) -> Iterator[News]:
        """The updates since the last call. `changed`: all jobs with a new card, of any owner."""
        now = self._service.clock.now()
        due = now - self._ticked >= TICK_SECONDS
        cards = [
            card
            for job in (changed | self._with_new_note(now) if due else changed)
            if (card := self._service.board.cards.get(job)) is not None and self._may_see(card)
        ]
        if cards:
            yield "jobs", {"now": now, "all": False, "cards": list(map(self._plain, cards))}
        problems = self._troubles()
        if problems != self._problems:
            self._problems = problems
            yield "problems", problems
        # also one call after a change, because the log is written after the board
        if changed or self._unsettled or due:
            self._unsettled = bool(changed)
            yield from self._rest()
        if self._output is not None and self._job is not None:
            yield from self._output.more(self._service, self._job, self._launches)
        if due:
            self._ticked = now
            yield from self._used()
            yield "tick", {"now": now}

    def _used(self) -> Iterator[News]:
        """What the workers of the job use, if there are new samples."""
        board = self._service.utilisation
        if self._job is None or board.version(self._job) == self._used_version:
            return
        self._used_version = board.version(self._job)
        now = board.shown(self._service.board.cards[self._job])
        yield "used", {**board.curves(self._job, MOST_USED), "now": now}

    def _rest(self) -> Iterator[News]:
        service, user = self._service, self._user
        shown = cluster(service, user).model_dump()
        del shown["now"]
        if shown != self._cluster:
            self._cluster = shown
            yield "cluster", shown
        if self._past is None:
            seen = service.store.last_number()
            plans = all_decisions(
                service, user, after=self._decision, limit=MOST_DECISIONS, telling=True
            )
            self._decision = max([seen, *(plan.number for plan in plans)])
            if plans:
                yield "decisions", [plan.model_dump() for plan in reversed(plans)]
        else:
            yield from self._past.more()
            card = service.board.cards[self._past.job]
            processes = [process.model_dump() for process in launches(card, service)]
            if processes != self._launches:
                self._launches = processes
                yield "launches", processes

    def _troubles(self) -> list[str]:
        return [*self._service.problems(), *self._service.warnings()]

    def _may_see(self, card: JobCard) -> bool:
        return self._service.may_see(self._user, card.owner)

    def _plain(self, card: JobCard) -> dict[str, Any]:
        plain = self._reader.card(card, self._service.clock.now())
        self._wait_notes.pop(card.id, None)
        if _waits(card):
            self._wait_notes[card.id] = plain["note"]
        for name in _NOT_SHOWN:
            del plain[name]
        return plain

    def _with_new_note(self, now: float) -> set[str]:
        """Waiting jobs with another position or expected start than the page shows."""
        cards = self._service.board.cards
        return {
            job
            for job, note in self._wait_notes.items()
            if (card := cards.get(job)) is not None and self._reader.note(card, now) != note
        }

    def _cards(self) -> list[JobCard]:
        """For the page of a job its card; else the cards of all running jobs, of the first waiting
        jobs and of the jobs that ended last."""
        board = self._service.board
        if self._job is not None:
            return [board.cards[self._job]]
        mine = [card for card in list(board.cards.values()) if self._may_see(card)]
        running = [card for card in mine if not card.over and card.workers]
        waiting = [card for card in mine if not card.over and not card.workers]
        waiting.sort(key=lambda card: (-card.priority, card.submitted_at))
        ended = [card for card in mine if card.over]
        ended.sort(key=lambda card: card.ended_at or 0.0)
        return [*running, *waiting[:MOST_WAITING], *ended[-MOST_ENDED:]]


class _Past:
    """The history and the curves of a job, from the run log."""

    def __init__(self, service: Service, job: str, shown: Shown) -> None:
        self.job = job
        self._store = service.store
        self._history = HistoryReader(job, shown)
        self._plotter = CurveReader(job)
        self._seen = 0

    def more(self) -> Iterator[News]:
        is_first = not self._seen
        lines: list[Line] = []
        curves: dict[str, list[list[float]]] = {name: [] for name in CURVES}
        entries = entries_of(self._store, self.job, after=self._seen, limit=MOST_ENTRIES)
        for number, entry in entries:
            self._seen = number
            lines += [Line(number, entry.at, *line) for line in self._history.lines(entry)]
            for name, value in self._plotter.points(entry):
                curves[name].append([entry.at, value])
        if lines or is_first:
            yield "story", [asdict(line) for line in lines[-MOST_LINES:]]
        if any(curves.values()) or is_first:
            yield "points", {name: thinned(values, MOST_POINTS) for name, values in curves.items()}


def _waits(card: JobCard) -> bool:
    return card.state == Phase.WAITING


@dataclass(slots=True)
class Output:
    """The output of one process of a job.

    Unless `pinned`, it changes to the process that reports for the job when that changes.
    """

    launch: str = ""  # empty: a process is chosen
    offset: int = -TAIL_BYTES
    pinned: bool = False
    _over: bool = False
    _decoder: codecs.IncrementalDecoder = field(init=False)

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self, service: Service, job: str, known: list[dict[str, Any]]) -> Iterator[News]:
        begins = False
        if not self.launch or not self.pinned:
            chosen = _choice(known, _first_slot(service.board.cards.get(job)))
            if chosen and chosen != self.launch:
                self.launch, self.offset, self._over, begins = chosen, -TAIL_BYTES, False, True
                self._decoder.reset()
        if self._over or not any(process["id"] == self.launch for process in known):
            return
        alive = any(p["id"] == self.launch and p["alive"] for p in known)
        while not self._over:
            chunk = service.launcher.logs(job, self.launch, self.offset, CHUNK_BYTES)
            self._over = not alive and chunk.next >= chunk.end
            text = self._decoder.decode(chunk.data, self._over)
            if text or begins or self._over:
                yield (
                    "output",
                    {
                        "launch": self.launch,
                        "begins": begins,
                        "offset": chunk.offset,
                        "next": chunk.next,
                        "text": text,
                        "over": self._over,
                    },
                )
            begins = False
            self.offset = chunk.next
            if chunk.next >= chunk.end:
                return


def _choice(known: list[dict[str, Any]], first: str) -> str:
    """The live process on the slot `first`, which reports for the job; else the oldest live one;
    else the process that ended last.

    >>> old = {"id": "old", "slots": ["a/1"], "alive": True}
    >>> new = {"id": "new", "slots": ["a/0"], "alive": True}
    >>> _choice([old, new], "a/1"), _choice([old, new], "a/0"), _choice([old, new], "")
    ('old', 'new', 'old')
    """
    if not known:
        return ""
    living = [process for process in known if process["alive"]]
    reporting = [process for process in living if first in process["slots"]]
    if reporting or living:
        return str((reporting or living)[0]["id"])
    return str(max(known, key=lambda process: process["ended_at"])["id"])


def _first_slot(card: JobCard | None) -> str:
    """The first of the slots that the job trains on; empty if there is none."""
    there = [] if card is None else [w.gpu for w in card.workers if not (w.leaving or w.coming)]
    return there[0] if there else ""
