"""The parts of the live service, put together: store, brain, engine, launcher, board."""

from __future__ import annotations

import getpass
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from ones.config import ServiceSettings
from ones.control import logs
from ones.control.accounts import Accounts, User
from ones.control.archive import archive
from ones.control.audit import Audit
from ones.control.clock import Clock
from ones.control.containment import Containment
from ones.control.health import Health, HealthLimits
from ones.control.heartbeat import Heartbeat
from ones.control.limits import Limits
from ones.control.live import asides
from ones.control.live.adoption import adopt
from ones.control.live.engine import LiveEngine, Surroundings
from ones.control.live.floor import Inbox
from ones.control.live.grouping import groups_of
from ones.control.live.hearing import hear
from ones.control.live.jobs import NOW, LiveJob, gpu_of
from ones.control.live.kept_reports import on_launcher
from ones.control.live.patience import Patience
from ones.control.pruning import DAY, Keeping, Pruning
from ones.control.readmodels.board import Board
from ones.control.readmodels.quarantine import Quarantine
from ones.control.recorder import begin, change_header, tail_of_service
from ones.control.schema import submissions
from ones.control.statedir import StateDir
from ones.control.store import Done, Store, insert
from ones.control.submission import Submission, remove_environments
from ones.control.tokens import JobTokens, hash_of
from ones.control.version import SOFTWARE
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.engine import drive
from ones.core.job import Job, JobId, SwitchCost
from ones.core.policy import Policy
from ones.core.state import State
from ones.errors import UnknownNameError, UserError, described
from ones.launchers import Launcher, LauncherEvent, Slot, SlotUp
from ones.launchers.threaded_launcher import ThreadedLauncher
from ones.policies import create
from ones.runlog import VERSION, Header
from ones.wire import Reports

#: beyond what workers may take to save their work
WIND_DOWN_SECONDS = 30.0
#: tokens of jobs that ended so long ago are not known any more
TOKEN_DAYS = 7.0

_NOT_IN_IDS = re.compile(r"[^a-z0-9]+")

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    policy: str = "ones"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the policy
    database: str = ""
    checkpoints: str = ""  # empty: in the state directory
    mechanism: str = "elastic"  # or `restart`: other GPUs mean a stop and a start
    patience: Patience = field(default_factory=Patience)
    keeping: Keeping = field(default_factory=Keeping)
    health: HealthLimits = field(default_factory=HealthLimits)
    clock: Callable[[float], Clock] = Clock  # from the last logged time on
    inbox: Callable[[], Inbox] = queue.SimpleQueue
    tail: Callable[[int, int], int] = tail_of_service  # see `Recorder`
    authority: str = ""  # PEM of our certificate: workers shall trust it
    limits: Limits = field(default_factory=lambda: Limits.of(ServiceSettings()))
    group_size: int = 0  # neighbouring slots that are close to one another; 0: as devices say


class Controller:
    """The parts, without a thread or a directory of their own: `load` takes up what was there
    before, `run` is the loop, and other threads call the rest."""

    def __init__(
        self, store: Store, tokens: JobTokens, launcher: Launcher, options: Options
    ) -> None:
        self.store, self.tokens, self.launcher = store, tokens, launcher
        self._options = options
        self.limits = options.limits
        self.closing = False
        self.failure: BaseException | None = None  # of the brain's thread: the end of everything
        self.accounts = Accounts(self.store)
        self.audit = Audit(self.store, time.time)
        self.board = Board(self.store, self._is_elastic, lambda: asides.reasons(self.engine))
        self._ids = threading.Lock()
        self._last_id = 0
        self._early: list[LauncherEvent] | None = []
        self.refused: Counter[int] = Counter()  # requests of workers, by HTTP status

    def load(self, url: str, checkpoints: str) -> None:
        """`url`: where workers reach us; `checkpoints`: a path or URL that fsspec understands."""
        options = self._options
        self._make(options.policy)  # refuses what cannot be, before anything is written
        wanted = Header(
            version=VERSION,
            software=SOFTWARE,
            policy=options.policy,
            seed=options.seed,
            settings=dict(options.settings),
            nodes=(),  # they come up as events
            switch_cost=SwitchCost(),
            mechanism=options.mechanism,
        )
        header = begin(self.store, wanted)
        self.containment = Containment(self.store, wanted, self._make, options.tail, before=header)
        self.brain, self.recorder = self.containment.brain, self.containment.recorder
        if replace(header, changed_at=None) != wanted or self.containment.returned:
            change_header(self.store, replace(wanted, changed_at=self.brain.state.now))
        self.quarantine = Quarantine(self.store)
        self.clock = options.clock(self.brain.state.now)
        self.launcher.open(self._on_launcher)
        self.engine = LiveEngine(
            self.brain,
            Surroundings(
                store=self.store,
                recorder=self.recorder,
                launcher=self.launcher,
                clock=self.clock,
                tokens=self.tokens,
                url=url,
                checkpoints=checkpoints,
                authority=options.authority,
                patience=options.patience,
                group_size=options.group_size,
                inbox=options.inbox(),
            ),
            self.board.update,
        )
        self.containment.attach(self.engine)
        asides.load(self.engine, self.store)
        # before orders are begun again: what they launch says nothing of the nodes
        alive = {slot for p in self.launcher.running().values() if p.alive for slot in p.slots}
        adopt(self.engine, self.brain.state, self.store, self.launcher)
        early, self._early = self._early or [], None
        for event in early:
            if not isinstance(event, SlotUp):  # `_bring_up_nodes` looks at all there are
                on_launcher(self.engine, event)
        self._bring_up_nodes(self.brain.state, alive)
        self.engine.post(lambda: asides.agree(self.engine, self.launcher.slots()))
        self.board.fill(self.brain.state)
        self._know_tokens()

    def _make(self, policy: str) -> Policy:
        options = self._options
        settings = options.settings if policy == options.policy else {}
        return create(policy, seed=options.seed, **settings)

    def _know_tokens(self) -> None:
        """Workers that an earlier controller started have tokens already. One of a job that ended
        is told that it has no place any more; its lease has run out long before TOKEN_DAYS."""
        oldest = self.clock.now() - TOKEN_DAYS * DAY
        for card in list(self.board.cards.values()):
            if card.ended_at is None or card.ended_at > oldest:
                self.tokens.of(card.id)
        for job in list(self.engine.jobs):  # one that has ended and still has workers
            self.tokens.of(job)

    def run(self) -> None:
        """Until `engine.stop`."""
        drive(self.brain, self.engine, self.recorder, self.containment.contain)

    def _on_launcher(self, event: LauncherEvent) -> None:
        if self._early is not None:
            self._early.append(event)
        else:
            on_launcher(self.engine, event)

    def _bring_up_nodes(self, state: State, alive: set[str]) -> None:
        """`alive`: slots where processes of an earlier controller live."""
        wanted: dict[str, list[Slot]] = {}
        for slot in self.launcher.slots():
            wanted.setdefault(slot.node, []).append(slot)
        for before in state.cluster.nodes.values():
            # gone while nobody heard of it; of those where work may run the launcher will tell
            busy = any(gpu_of(slot).node == before.id for slot in alive)
            if before.state is not NodeState.DOWN and before.id not in wanted and not busy:
                self.engine.tell(ev.NodeDown(NOW, before.id))
        for name, slots in wanted.items():
            node, gpus = NodeId(name), len(slots)
            up = ev.NodeUp(NOW, node, gpus, groups_of(slots, self._options.group_size))
            known = state.cluster.nodes.get(node)
            if known is not None and known.gpus != gpus:
                held = sorted(o.job for gpu, o in state.occupants.items() if gpu.node == node)
                if held:
                    raise UserError(
                        f"slots: {gpus} now, {known.gpus} before, and {held[0]} is still there:"
                        f" start with {known.gpus}, or end the jobs first (ones down)"
                    )
                self.engine.tell(ev.NodeDown(NOW, node))
            is_other = known is None or (known.gpus, known.groups) != (gpus, up.groups)
            state_was = known.state if known is not None else NodeState.DOWN
            if node in self.engine.drained:
                if is_other or state_was is NodeState.DOWN:
                    self.engine.tell(up)
                self.engine.tell(ev.NodeDraining(NOW, node))
            elif is_other or state_was is not NodeState.UP:
                self.engine.tell(up)

    def _is_elastic(self, job: str) -> bool:
        live = self.engine.jobs.get(JobId(job))
        if live is not None:
            return live.elastic
        submission = self.board.submission(job)
        return submission is None or submission.elastic is not False

    @property
    def policy(self) -> str:
        """The policy that decides now."""
        return self.containment.policy

    # what the interface asks for; from any thread

    def submit(self, job: Job, submission: Submission, done: Done) -> None:
        """`job.id` comes from `new_id`."""
        live = LiveJob(job.id, submission, elastic=submission.elastic is not False)
        row = {
            "job": job.id,
            "owner": job.owner,
            "submitted_at": self.clock.now(),
            "body": submission.encoded(),
        }
        self.board.submitted(job.id, submission)

        def enter() -> None:
            self.engine.jobs[job.id] = live
            event = ev.JobSubmitted(NOW, job)
            self.engine.say(event, [insert(submissions, row)], self._when_shown(done))
            log.info("job submitted", job=job.id, owner=job.owner)

        self.engine.post(enter)

    def _when_shown(self, done: Done) -> Done:
        """Not only safe, but also on the board."""

        def shown(problem: Exception | None) -> None:
            self.engine.show_changes()
            done(problem)

        return lambda problem: self.engine.post(lambda: shown(problem))

    def new_id(self, name: str) -> JobId:
        """Short and speaking: `bert-7`."""
        word = _NOT_IN_IDS.sub("-", name.lower()).strip("-")[:40] or "job"
        with self._ids:
            self._last_id = max(self._last_id, len(self.board.cards)) + 1
            while (job := f"{word}-{self._last_id}") in self.board.cards:
                self._last_id += 1
            return JobId(job)

    def cancel(self, job: str, by: str, done: Done) -> None:
        self.engine.tell(ev.CancelRequested(NOW, JobId(job), by), done=self._when_shown(done))

    def set_priority(self, job: str, priority: float, done: Done) -> None:
        event = ev.PriorityChanged(NOW, JobId(job), priority)
        self.engine.tell(event, done=self._when_shown(done))

    def set_limit(self, user: str, max_gpus: int | None, done: Done) -> None:
        operation = self.accounts.limit(user, max_gpus)
        self.engine.tell(ev.OwnerLimitSet(NOW, user, max_gpus), [operation], done)
        # whose reason to wait may be another one now
        theirs = [card.id for card in self.board.live() if card.owner == user]
        self.engine.post(lambda: self.recorder.touched.update(theirs))

    def drain(self, place: str, by: str, done: Done) -> None:
        """A node, or a GPU as `node/index`: who is there may stay, nobody new comes."""
        node, gpu = self._place(place)
        shown = self._when_shown(done)
        if node is not None:
            self.engine.post(lambda: asides.drain(self.engine, node, shown))
        elif gpu is not None:
            cause, why = asides.Cause.OPERATOR, f"set aside by {by}"
            self.engine.post(lambda: asides.set_aside(self.engine, gpu, cause, why, shown))

    def undrain(self, place: str, done: Done) -> None:
        node, gpu = self._place(place)
        shown = self._when_shown(done)
        if node is not None:
            self.engine.post(lambda: asides.undrain(self.engine, node, shown))
        elif gpu is not None:
            cause = asides.Cause.OPERATOR
            self.engine.post(lambda: asides.take_back(self.engine, gpu, cause, shown))

    def _place(self, place: str) -> tuple[NodeId | None, Gpu | None]:
        nodes = [node.name for node in self.board.nodes if node.state != NodeState.DOWN]
        slots = [slot.id for slot in self.launcher.slots()]
        if place not in nodes and place not in slots:
            raise UnknownNameError("node or GPU", place, [*nodes, *slots])
        return (NodeId(place), None) if place in nodes else (None, gpu_of(place))

    def hear(self, message: Reports, done: Done) -> None:
        self.engine.post(lambda: hear(self.engine, self.store, message, done))

    def problems(self) -> list[str]:
        """Why the service does not do its work; empty: it does."""
        found = [problem for problem in (self.store.problem, self.store.refused) if problem]
        if self.failure is not None:
            found.append(f"the scheduler has stopped: {self.failure}")
        return found

    def warnings(self) -> list[str]:
        """What is not as it was told to be, though the service works."""
        found = [self.containment.failing] if self.containment.failing else []
        if marks := self.recorder.quarantined:
            one = marks == 1
            found.append(
                f"{marks} {'entry is' if one else 'entries are'} quarantined; see: ones doctor"
            )
        return found

    def may_see(self, user: User, owner: str) -> bool:
        return user.is_admin or user.name == owner


class Service(Controller):
    """A controller with its state directory and its threads: `start` takes up what was there
    before; `stop` leaves the workers to themselves."""

    def __init__(self, state_dir: StateDir, launcher: Launcher, options: Options) -> None:
        state_dir.make()
        state_dir.lock()
        self.dir = state_dir
        self.on_end: Callable[[], None] = lambda: None  # it shall not go on
        store = Store(options.database or state_dir.database)
        super().__init__(store, JobTokens.kept_in(state_dir.key), launcher, options)
        self._thread = threading.Thread(target=self._run, name="ones-brain", daemon=True)
        self.server_heartbeat = Heartbeat("server")
        self._health = Health(options.health, self._busy, store.unwritten_seconds, state_dir.path)

    def start(self, url: str) -> None:
        """`url`: where workers reach us."""
        options = self._options
        self.load(url, options.checkpoints.rstrip("/") or str(self.dir.checkpoints))
        self._pruning = Pruning(
            options.keeping,
            self.dir.runs,
            self.engine.checkpoints,
            self._ended,
            self.clock.now,
            partial(remove_environments, self.store),
            self._archive,
        )
        self._thread.start()
        self._pruning.start()

    def _archive(self) -> None:
        days = self._options.keeping.event_days
        archive(self.store, self.dir.path / "archive", days, self.clock.now())

    def problems(self) -> list[str]:
        return [*super().problems(), *self._health.problems()]

    def _busy(self) -> list[tuple[str, float]]:
        beats = (self.engine.heartbeat, self.store.heartbeat, self.server_heartbeat)
        found = [(beat.name, beat.busy_seconds()) for beat in beats]
        if isinstance(self.launcher, ThreadedLauncher):
            found.append(("launcher", time.monotonic() - self.launcher.beat))
        return found

    def _ended(self) -> dict[str, float]:
        cards = list(self.board.cards.values())
        return {card.id: card.ended_at for card in cards if card.ended_at is not None}

    def stop(self, *, kill: bool = False) -> None:
        if self._thread.is_alive():
            self._pruning.stop()
            self.engine.stop()
            self._thread.join()
        self.launcher.close(kill=kill)
        self.audit.settle()
        self.store.close()
        self.dir.unlock()

    def wind_down(self) -> None:
        """Let all workers save their work and go; `on_end` when the last one has."""
        self.engine.wind_down()
        threading.Thread(target=self._await_the_last, name="ones-down", daemon=True).start()

    def _await_the_last(self) -> None:
        deadline = time.monotonic() + self._options.patience.checkpoint_seconds + WIND_DOWN_SECONDS
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline and self.failure is None:
            time.sleep(0.1)
            alive = any(process.alive for process in self.launcher.running().values())
            quiet = 0 if alive else quiet + 1
        self.on_end()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self.failure = failure
            log.exception("scheduler failed", error=described(failure))
            self.on_end()

    def first_admin(self) -> None:
        """On the very first start: who starts the service rules it."""
        if self.accounts.all():
            return
        name = _NOT_IN_IDS.sub("-", getpass.getuser().lower()).strip("-") or "admin"
        _, token = self.accounts.add(name, "admin")
        self.dir.write_token(token)

    def renew_token(self, name: str) -> str:
        """Another token for a user. The file with the first admin's token follows."""
        before = self.accounts.get(name).token_hash
        token = self.accounts.renew(name)
        kept = self.dir.read_token()
        if kept is not None and hash_of(kept) == before:
            self.dir.write_token(token)
        return token
