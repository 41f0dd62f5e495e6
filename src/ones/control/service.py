"""The service: a controller with its state directory and its threads."""

from __future__ import annotations

import getpass
import threading
import time
from collections.abc import Callable
from functools import partial

from ones.control import logs
from ones.control.archive import archive
from ones.control.cluster_history import ClusterHistory
from ones.control.controller import NOT_IN_IDS, Controller, Options
from ones.control.health import Health
from ones.control.heartbeat import Heartbeat
from ones.control.live.jobs import NOW
from ones.control.notifications import Notifications
from ones.control.notifier import Notifier
from ones.control.pruning import Pruning, due
from ones.control.slurm_auto import Demand, SlurmAuto
from ones.control.snapshots import Snapshots
from ones.control.statedir import StateDir
from ones.control.store import Store
from ones.control.stored_submissions import remove_environments
from ones.control.tokens import JobTokens, hash_of
from ones.control.usage import Usage
from ones.control.utilisation.watch import UtilisationWatch
from ones.control.whatif import WhatIf
from ones.core.cluster import NodeState
from ones.core.events import FairShareSet
from ones.core.lifecycle import Phase
from ones.errors import UserError, described
from ones.launchers import Launcher, SupportsUsers
from ones.launchers.api import SupportsAllocations
from ones.launchers.threaded_launcher import ThreadedLauncher

#: waiting time beyond the time that workers have for their checkpoint
WIND_DOWN_SECONDS = 30.0

log = logs.logger(__name__)


class Service(Controller):
    """A controller with threads. `start` restores the last state; `stop` leaves workers running."""

    def __init__(self, state_dir: StateDir, launcher: Launcher, options: Options) -> None:
        state_dir.make()
        state_dir.lock()
        self.dir = state_dir
        self.on_end: Callable[[], None] = lambda: None  # ends the server
        database = options.database or state_dir.database
        store = Store(database)
        super().__init__(store, JobTokens.kept_in(state_dir.key), launcher, options)
        self._thread = threading.Thread(target=self._run, name="ones-scheduler", daemon=True)
        self.server_heartbeat = Heartbeat("server")
        self.slurm_auto: SlurmAuto | None = None  # with the Slurm launcher only
        self.notifications = Notifications(store)
        self.notifier = Notifier(self.notifications, self._is_admin)
        self.snapshots = Snapshots(state_dir.snapshots, options.limits.max_snapshot_mb)
        self.whatif = WhatIf(database, options.whatif_cpu_seconds, self._time)
        self._health = Health(options.health, self._busy, store.unwritten_seconds, state_dir.path)

    def start(self, url: str) -> None:
        """Restore the state and start the threads. `url`: where workers reach the service."""
        options = self._options
        self.load(url, options.checkpoints.rstrip("/") or str(self.dir.checkpoints))
        self._pruning = Pruning(
            options.keeping,
            self.dir.runs,
            self._live.deps.checkpoints,
            self._ended,
            self.clock.now,
            partial(remove_environments, self.store),
            self._clean_up,
            self.launcher if isinstance(self.launcher, SupportsUsers) else None,
        )
        self.usage = Usage(self.store, self.clock.now)
        self.history = ClusterHistory(
            self.store, self.clock.now, self.board.n_gpus, lambda: self.board.plan_number
        )
        for part in (self.notifier, self.usage, self.history):
            part.fill(list(self.board.cards.values()))
            self.board.follow(part.take)
        if self.scheduler.state.fair_share.half_life != options.half_life:
            used = self.usage.decayed(self.board.live(), options.half_life)
            self.engine.tell(FairShareSet(NOW, options.half_life, used))
        self.board.follow(self.utilisation.on_card)
        self._watch = UtilisationWatch(
            self.utilisation, self.board.live, self.engine.tell, self.notifier.warn
        )
        self._thread.start()
        self._pruning.start()
        self.history.start()
        self._watch.start()
        if isinstance(self.launcher, SupportsAllocations):
            self.slurm_auto = SlurmAuto(self.dir.path, self._demand)
            self.slurm_auto.start()

    def _time(self) -> float:
        return self.clock.now()  # there is a clock after `load`

    def _clean_up(self) -> None:
        """Archive old events, and remove snapshots together with the output of their jobs."""
        keeping, now = self._options.keeping, self.clock.now()
        archive(self.store, self.dir.path / "archive", keeping.event_days, now)
        gone = due(self._ended(), now, keeping.output_days)
        is_kept: dict[str, bool] = {}
        for card in list(self.board.cards.values()):
            name = card.array or card.id
            is_kept[name] = is_kept.get(name, False) or card.id not in gone
        if removed := self.snapshots.prune(is_kept):
            log.info("snapshots without jobs removed", count=len(removed))

    def _is_admin(self, user: str) -> bool | None:
        """None: there is no such user any more."""
        found = {account.name: account.is_admin for account in self.accounts.all()}
        return found.get(user)

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

    def auto_of_slurm(self) -> SlurmAuto:
        if self.slurm_auto is None:
            raise UserError(
                "this service does not use Slurm; start it with: ones up --launcher slurm"
            )
        return self.slurm_auto

    def most_slots(self) -> int:
        """The slots that the service has, or can have with further allocations."""
        request = self.slurm_auto.request if self.slurm_auto is not None else None
        return max(len(self.launcher.slots()), request.most_slots if request is not None else 0)

    def _demand(self) -> Demand:
        assert isinstance(self.launcher, SupportsAllocations)
        cards, of_node = self.board.live(), self.launcher.allocations()
        used = {worker.gpu for card in cards for worker in card.workers}
        up = {node.name for node in self.board.nodes if node.state == NodeState.UP}
        nodes: dict[str, dict[str, bool]] = {id: {} for id in of_node.values()}
        free = 0
        for slot in self.launcher.slots():
            if slot.node in of_node:
                busy = nodes[of_node[slot.node]]
                busy[slot.node] = busy.get(slot.node, False) or slot.id in used
                free += slot.node in up and slot.id not in used
        wanted = sum(card.min_gpus for card in cards if card.state == Phase.WAITING)
        return Demand(wanted, free, nodes)

    def stop(self, *, kill: bool = False) -> None:
        if self.slurm_auto is not None:
            self.slurm_auto.stop()
        if self._thread.is_alive():
            self._pruning.stop()
            self._watch.stop()
            self.engine.stop()
            self._thread.join()
            self.usage.flush()
            self.history.close()
        self.whatif.close()
        self.notifier.close()
        self.launcher.close(kill=kill)
        self.audit.settle()
        self.store.close()
        self.dir.unlock()

    def wind_down(self) -> None:
        """Let all workers save their work and exit, then call `on_end`."""
        if self.slurm_auto is not None:
            self.slurm_auto.stop()
        self.engine.wind_down()
        threading.Thread(target=self._await_workers, name="ones-down", daemon=True).start()

    def _await_workers(self) -> None:
        deadline = time.monotonic() + self._options.timeouts.checkpoint_seconds + WIND_DOWN_SECONDS
        quiet = 0
        while quiet < 3 and time.monotonic() < deadline and self.failure is None:
            time.sleep(0.1)
            alive = any(process.alive for process in self.launcher.running().values())
            quiet = 0 if alive else quiet + 1
        if self.slurm_auto is not None:
            self.slurm_auto.let_go(running=True)
        self.on_end()

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            self.failure = failure
            log.exception("scheduler failed", error=described(failure))
            self.on_end()

    def first_admin(self) -> None:
        """On the first start, make the user that starts the service its admin."""
        if self.accounts.all():
            return
        name = NOT_IN_IDS.sub("-", getpass.getuser().lower()).strip("-") or "admin"
        _, token = self.accounts.add(name, "admin")
        self.dir.write_token(token)

    def isolation(self) -> str:
        """Which Unix users jobs run as: one sentence for `ones up`."""
        if self.runs_as_users:
            return "each job runs as the Unix user of its owner"
        many = len(self.accounts.all()) > 1
        warning = ": their files and tokens are open to one another" if many else ""
        return f"jobs of all users run as {getpass.getuser()}{warning}"

    def renew_token(self, name: str) -> str:
        """Renew a user's token, also in the file with the first admin's token."""
        before = self.accounts.get(name).token_hash
        token = self.accounts.renew(name)
        kept = self.dir.read_token()
        if kept is not None and hash_of(kept) == before:
            self.dir.write_token(token)
        return token
