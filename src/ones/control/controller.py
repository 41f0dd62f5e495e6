"""The controller: connects store, scheduler, live engine, launcher and read models.

It has no thread and no directory of its own; `service.Service` adds them.
"""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ones.config import ServiceSettings
from ones.control import logs
from ones.control.accounts import Accounts, User
from ones.control.audit import Audit
from ones.control.clock import Clock
from ones.control.containment import Containment
from ones.control.health import HealthLimits
from ones.control.limits import Limits
from ones.control.live.cordons import Cause
from ones.control.live.engine import LiveEngine
from ones.control.live.jobs import NOW, LiveJob, gpu_of
from ones.control.live.live_state import EngineDeps, Inbox, LiveState
from ones.control.live.recovery import take_over
from ones.control.live.timeouts import Timeouts
from ones.control.node_startup import bring_up_nodes, gone_nodes
from ones.control.persistence import Done
from ones.control.pruning import DAY, Retention
from ones.control.readmodels.job_board import JobBoard
from ones.control.readmodels.quarantine import Quarantine
from ones.control.recorder import begin, change_header, tail_of_service
from ones.control.schema import submissions
from ones.control.store import Store, insert
from ones.control.stored_submissions import change_submission, submissions_of
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.control.utilisation.board import UtilisationBoard, UtilisationLimits
from ones.control.version import SOFTWARE
from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId, NodeState
from ones.core.engine import drive
from ones.core.fair_share import OwnerShare
from ones.core.job import Job, JobId, SwitchCost
from ones.core.policy import Policy
from ones.errors import InvalidSettingError, UnknownNameError, UserError
from ones.launchers import Launcher, LauncherEvent, Sampled, SlotUp, SupportsUsers
from ones.policies import create
from ones.runlog import VERSION, Header
from ones.wire import Reports

#: tokens of jobs that ended longer ago are refused
TOKEN_DAYS = 7.0

NOT_IN_IDS = re.compile(r"[^a-z0-9]+")

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    policy: str = "ones"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings of the policy
    database: str = ""
    checkpoints: str = ""  # empty: in the state directory
    mechanism: str = "elastic"  # or `restart`: stop and start a job to change its GPUs
    timeouts: Timeouts = field(default_factory=Timeouts)
    keeping: Retention = field(default_factory=Retention)
    health: HealthLimits = field(default_factory=HealthLimits)
    clock: Callable[[float], Clock] = Clock  # called with the last logged time
    inbox: Callable[[], Inbox] = queue.SimpleQueue
    tail: Callable[[int, int], int] = tail_of_service  # see `Recorder`
    authority: str = ""  # PEM of the certificate that workers trust
    limits: Limits = field(default_factory=lambda: Limits.of(ServiceSettings()))
    trusting: bool = True  # several users, although all jobs run as the user of the service
    keep_environments: bool = False  # in the database, after a job's end
    half_life: float = 0.0  # of past use in the order of jobs, in seconds; 0: it does not count
    whatif_cpu_seconds: float = 600.0  # of a replay
    utilisation: UtilisationLimits = field(default_factory=UtilisationLimits)
    group_size: int = 0  # number of neighbouring slots in a group; 0: as devices report


class Controller:
    """`load` restores the last state, `run` is the loop; other threads call the other methods."""

    def __init__(
        self, store: Store, tokens: JobTokens, launcher: Launcher, options: Options
    ) -> None:
        self.store, self.tokens, self.launcher = store, tokens, launcher
        self._options = options
        self.limits = options.limits
        store.keeps_environments = options.keep_environments
        self.closing = False
        self.failure: BaseException | None = None  # of the scheduler's thread; ends the service
        self.accounts = Accounts(self.store)
        self.audit = Audit(self.store, time.time)
        self.board = JobBoard(self.store, self._is_elastic, self._cordon_reasons)
        self._ids = threading.Lock()
        self._last_id = 0
        self._early: list[LauncherEvent] | None = []
        self.refused: Counter[int] = Counter()  # requests of workers, by HTTP status

    def load(self, url: str, checkpoints: str) -> None:
        """Restore the state of the last controller and take over its processes.

        `url`: where workers reach the service; `checkpoints`: a path or URL for fsspec.
        """
        options = self._options
        self._make(options.policy)  # raises for invalid settings before anything is written
        wanted = Header(
            version=VERSION,
            software=SOFTWARE,
            policy=options.policy,
            seed=options.seed,
            settings=dict(options.settings),
            nodes=(),  # added by events
            switch_cost=SwitchCost(),
            mechanism=options.mechanism,
        )
        header = begin(self.store, wanted)
        self.containment = Containment(self.store, wanted, self._make, options.tail, before=header)
        self.scheduler, self.recorder = self.containment.scheduler, self.containment.recorder
        if replace(header, changed_at=None) != wanted or self.containment.returned:
            change_header(self.store, replace(wanted, changed_at=self.scheduler.state.now))
        self.quarantine = Quarantine(self.store)
        self.clock = options.clock(self.scheduler.state.now)
        self.utilisation = UtilisationBoard(options.utilisation, self.clock.now, self._is_live)
        self.launcher.open(self._on_launcher)
        self.engine = LiveEngine(
            self.scheduler,
            EngineDeps(
                store=self.store,
                recorder=self.recorder,
                launcher=self.launcher,
                clock=self.clock,
                tokens=self.tokens,
                url=url,
                checkpoints=checkpoints,
                authority=options.authority,
                timeouts=options.timeouts,
                group_size=options.group_size,
                unix_of=self._unix_of_owner,
                inbox=options.inbox(),
            ),
            self.board.update,
        )
        self.containment.attach(self.engine.live)
        if (kept := self.store.cordons()) is not None:
            self.engine.cordons.load(kept)
        # before orders start again: their new processes say nothing about the nodes
        self._live.gone_nodes.update(gone_nodes(self.scheduler.state, self.launcher))
        known = submissions_of(self.store, self.scheduler.state.records)
        take_over(self.engine, known, self.store.reports_received())
        early, self._early = self._early or [], None
        for event in early:
            if not isinstance(event, SlotUp):  # `bring_up_nodes` reads all slots
                self.engine.on_launcher(event)
        bring_up_nodes(self.engine, self.scheduler.state)
        self._live.post(lambda: self.engine.cordons.reconcile(self.launcher.slots()))
        self.board.fill(self.scheduler.state)
        self._know_tokens()

    def _make(self, policy: str) -> Policy:
        options = self._options
        settings = options.settings if policy == options.policy else {}
        return create(policy, seed=options.seed, **settings)

    def _know_tokens(self) -> None:
        """Know the tokens of workers that an earlier controller started.

        A worker of an ended job gets status 409 and exits; its lease ends long before TOKEN_DAYS.
        """
        oldest = self.clock.now() - TOKEN_DAYS * DAY
        for card in list(self.board.cards.values()):
            if card.ended_at is None or card.ended_at > oldest:
                self.tokens.of(card.id)
        for job in list(self._live.jobs):  # also ended jobs that still have workers
            self.tokens.of(job)

    def run(self) -> None:
        """Run the loop until `engine.stop`."""
        drive(self.scheduler, self.engine, self.recorder, self.containment.contain)

    def _on_launcher(self, event: LauncherEvent) -> None:
        if isinstance(event, Sampled):  # only shown: the scheduler's thread never sees it
            self.utilisation.take(event.samples)
        elif self._early is not None:
            self._early.append(event)
        else:
            self.engine.on_launcher(event)

    def _cordon_reasons(self) -> dict[Gpu, str]:
        return self.engine.cordons.reasons()

    def _is_live(self, job: str) -> bool:
        card = self.board.cards.get(job)
        return card is not None and not card.over

    def _is_elastic(self, job: str) -> bool:
        live = self._live.jobs.get(JobId(job))
        if live is not None:
            return self._live.is_elastic(live)
        submission = self.board.submission(job)
        return submission is None or submission.elastic is not False

    @property
    def policy(self) -> str:
        """The policy that decides now."""
        return self.containment.policy

    @property
    def _live(self) -> LiveState:
        return self.engine.live

    # called by the HTTP API, from any thread

    def submit(self, job: Job, submission: Submission, done: Done) -> None:
        """Submit a job with an id of `new_id`."""
        live = LiveJob(job.id, submission)
        row = {
            "job": job.id,
            "owner": job.owner,
            "submitted_at": self.clock.now(),
            "body": submission.encoded(),
        }
        self.board.submitted(job.id, submission, job)

        def enter() -> None:
            self._live.jobs[job.id] = live
            event = ev.JobSubmitted(NOW, job)
            self._live.emit(event, [insert(submissions, row)], self._when_shown(done))
            log.info("job submitted", job=job.id, owner=job.owner)

        self._live.post(enter)

    def submit_all(self, jobs: Sequence[tuple[Job, Submission]], done: Done) -> None:
        """Submit the tasks of an array; `done` is called when all are on disk, or for the first
        problem."""
        left = len(jobs)

        def one_done(problem: Exception | None) -> None:  # in the scheduler's thread
            nonlocal left
            left -= 1
            if problem is not None or not left:
                done(problem)

        for job, submission in jobs:
            self.submit(job, submission, one_done)

    def _when_shown(self, done: Done) -> Done:
        """`done`, called after the read models show the change."""

        def shown(problem: Exception | None) -> None:
            self.engine.show_changes()
            done(problem)

        return lambda problem: self._live.post(lambda: shown(problem))

    def new_id(self, name: str) -> JobId:
        """A new id from the job's name: `bert-7`."""
        prefix = NOT_IN_IDS.sub("-", name.lower()).strip("-")[:40] or "job"
        with self._ids:
            self._last_id = max(self._last_id, len(self.board.cards)) + 1
            while (job := f"{prefix}-{self._last_id}") in self.board.cards:
                self._last_id += 1
            return JobId(job)

    def cancel(self, job: str, by: str, done: Done) -> None:
        self.engine.tell(ev.CancelRequested(NOW, JobId(job), by), done=self._when_shown(done))

    def change(self, event: ev.JobChanged, submission: Submission | None, done: Done) -> None:
        """Change an unfinished job. `submission`: its new one; None: it stays as it is."""

        def enter() -> None:
            operations = []
            if submission is not None:
                live = self._live.jobs.get(event.job)
                if live is not None:
                    live.submission = submission
                self.board.submitted(event.job, submission)
                operations = [change_submission(event.job, submission)]
            self._live.emit(event, operations, self._when_shown(done))

        self._live.post(enter)

    def hold(self, job: str, by: str, done: Done) -> None:
        self.engine.tell(ev.JobHeld(NOW, JobId(job), by), done=self._when_shown(done))

    def release(self, job: str, by: str, done: Done) -> None:
        self.engine.tell(ev.JobReleased(NOW, JobId(job), by), done=self._when_shown(done))

    def set_limit(self, user: str, max_gpus: int | None, done: Done) -> None:
        operation = self.accounts.set_limit(user, max_gpus)
        self.engine.tell(ev.OwnerLimitSet(NOW, user, max_gpus), [operation], done)
        # the reasons of the user's waiting jobs may have changed
        jobs = [card.id for card in self.board.live() if card.owner == user]
        self._live.post(lambda: self.recorder.touched.update(jobs))

    def drain(self, place: str, by: str, done: Done, reason: str = "") -> None:
        """Drain a node, or cordon a GPU (`node/index`): present workers may stay."""
        node, gpu = self._place(place)
        shown = self._when_shown(done)
        why = f"drained by {by}" + (f": {reason}" if reason else "")
        if node is not None:
            self._live.post(lambda: self.engine.cordons.drain(node, why, shown))
        elif gpu is not None:
            cause = Cause.OPERATOR
            self._live.post(lambda: self.engine.cordons.cordon(gpu, cause, why, shown))

    def undrain(self, place: str, done: Done) -> None:
        node, gpu = self._place(place)
        shown = self._when_shown(done)
        if node is not None:
            self._live.post(lambda: self.engine.cordons.undrain(node, shown))
        elif gpu is not None:
            self._live.post(lambda: self.engine.cordons.uncordon(gpu, Cause.OPERATOR, shown))

    def _place(self, place: str) -> tuple[NodeId | None, Gpu | None]:
        nodes = [node.name for node in self.board.nodes if node.state != NodeState.DOWN]
        slots = [slot.id for slot in self.launcher.slots()]
        if place not in nodes and place not in slots:
            raise UnknownNameError("node or GPU", place, [*nodes, *slots])
        return (NodeId(place), None) if place in nodes else (None, gpu_of(place))

    def report(self, message: Reports, done: Done) -> None:
        self.engine.report(message, done)

    def problems(self) -> list[str]:
        """Reasons why the service does not work; empty: it works."""
        found = [problem for problem in (self.store.problem, self.store.refused) if problem]
        if self.failure is not None:
            found.append(f"the scheduler has stopped: {self.failure}")
        return found

    def warnings(self) -> list[str]:
        """Deviations from the configuration while the service works."""
        found = [self.containment.failing] if self.containment.failing else []
        if marks := self.recorder.quarantined:
            one = marks == 1
            found.append(
                f"{marks} {'entry is' if one else 'entries are'} quarantined; see: ones doctor"
            )
        return found

    @property
    def runs_as_users(self) -> bool:
        """Whether each job runs as the Unix user of its owner."""
        return isinstance(self.launcher, SupportsUsers) and self.launcher.runs_as_users

    def unix_of(self, user: User) -> str:
        """The Unix user that a new job of this user runs as; empty: that of the service."""
        if not self.runs_as_users:
            return ""
        if user.unix is None:
            raise UserError(
                f"user {user.name} has no Unix user, so no job can run as {user.name};"
                f" an admin can set it with: ones user unix {user.name} NAME"
            )
        return user.unix

    def _unix_of_owner(self, owner: str) -> str:
        """For jobs from before ones-launchd; empty: the owner has no Unix user, or needs none."""
        if not self.runs_as_users:
            return ""
        return next((user.unix or "" for user in self.accounts.all() if user.name == owner), "")

    def check_unix(self, unix: str | None) -> None:
        """Raises if jobs cannot run as this Unix user."""
        if unix is not None and isinstance(self.launcher, SupportsUsers) and self.runs_as_users:
            problem = self.launcher.check_user(unix)
            if problem:
                raise InvalidSettingError(f"unix: {problem}")

    def check_new_user(self, name: str, unix: str | None) -> None:
        """Raises if the jobs of a second user would not be kept apart from those of the first."""
        self.check_unix(unix)
        if not (self.runs_as_users or self._options.trusting or not self.accounts.all()):
            raise UserError(
                f"user {name} is not added: all jobs run as one Unix user, so each user could read"
                " the files and tokens of all; install ones-launchd (ones lab install), or start"
                " the service with: ones up --trusting"
            )

    def shares(self) -> list[OwnerShare]:
        """The past use of all users that counts in the order of jobs, the largest first."""
        state = self.scheduler.state
        return state.fair_share.shares(self.clock.now(), state.cluster.n_gpus)

    def may_see(self, user: User, owner: str) -> bool:
        return user.is_admin or user.name == owner
