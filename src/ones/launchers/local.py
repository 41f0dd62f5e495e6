"""Slots on this machine: an ones-exec for every job, and one thread that talks to all of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from ones.errors import WorldError
from ones.exec import Exit, Spec
from ones.launchers.api import Launch, Listener, Slot, SlotUsed
from ones.launchers.devices import GONE, threads_per_slot
from ones.launchers.exits import not_started
from ones.launchers.keeper import Keeper
from ones.launchers.keepers import Keepers
from ones.launchers.run_dirs import RunDirs, job_of, launches_in
from ones.launchers.threaded import TURN_SECONDS, Threaded

IDLE_SECONDS = 60.0
#: how often it is looked who else uses the GPUs
LOOK_SECONDS = 10.0
#: for workers that are still there when all have to go
CLOSE_GRACE_SECONDS = 5.0
#: variables that limit the threads of a library, unless the user has set them
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

log = logging.getLogger(__name__)


class LocalLauncher(Threaded):
    """With a `lease`, a file that somebody has to renew, workers run as long as it says. `look`
    gives the devices as they are now: who else uses one is told when it changes. `only` names the
    node that is ours where several share the root."""

    def __init__(
        self,
        root: Path,
        slots: Sequence[Slot],
        *,
        look: Callable[[], list[Slot]] | None = None,
        look_seconds: float = LOOK_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        lease: Path | None = None,
        only: str = "*",
    ) -> None:
        super().__init__(RunDirs(root))
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(len(slots))
        self._idle, self._lease, self._only = idle_seconds, lease, only
        self._look, self._look_seconds = look, look_seconds
        self._over = threading.Event()
        self._keepers = Keepers(self._todo)
        self._closing = False

    # what callers see

    def open(self, listener: Listener) -> None:
        self._dirs.make()
        for run_dir in self._dirs.live(self._only):
            try:
                self._keepers.guarded(self._keeper(run_dir), Keeper.find)
            except OSError as problem:  # a file in its place, or one that we may not read
                log.warning(
                    "run directory skipped", extra={"path": str(run_dir), "reason": str(problem)}
                )
        self._begin(listener)
        if self._look is not None:
            threading.Thread(target=self._watch, name="ones-gpus", daemon=True).start()

    def slots(self) -> list[Slot]:
        return list(self._slots.values())

    def reached_at(self, host: str) -> None:
        """Where workers that start from now on are reached by those on other nodes."""
        for id, slot in list(self._slots.items()):
            self._slots[id] = replace(slot, host=host)

    def close(self, *, kill: bool) -> None:
        self._over.set()
        super().close(kill=kill)

    # a thread beside it: who else uses the devices?

    def _watch(self) -> None:
        assert self._look is not None
        while not self._over.wait(self._look_seconds):
            try:
                found = {slot.device: slot.used_by for slot in self._look()}
            except (WorldError, OSError):
                continue  # a driver that does not answer says nothing of strangers
            except Exception:
                log.exception("GPUs could not be looked at")
                continue
            for id, known in list(self._slots.items()):
                now = found.get(known.device, (GONE,))
                if now != known.used_by:
                    self._slots[id] = slot = replace(known, used_by=now)
                    self._todo.later(partial(self._tell, SlotUsed(slot)))

    # in the thread

    def _is_done(self) -> bool:
        return self._closing and not self._keepers.are_closing

    def _turn(self) -> None:
        self._keepers.wait(TURN_SECONDS)
        self._todo.do_all()
        self._keepers.retry()
        for keeper in self._keepers.take_ended():
            try:
                self._drop(keeper)
            except Exception:
                log.exception("run directory not put away", extra={"path": str(keeper.run_dir)})

    def _end(self) -> None:
        self._keepers.let_go()

    def _close(self, kill: bool) -> None:
        if kill:
            self._keepers.close_all(CLOSE_GRACE_SECONDS)
        self._closing = True

    def _keeper(self, run_dir: Path) -> Keeper:
        keeper = self._keepers.get(run_dir)
        if keeper is None:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            for kept in launches_in(run_dir):
                self._ledger.find(kept.process, kept.node)
            news = partial(self._news, job_of(run_dir))
            keeper = Keeper(run_dir, news, self._idle, self._lease)
            self._keepers.add(keeper)
        return keeper

    def _news(self, job: str, id: str, pid: int | None, exit: Exit | None) -> None:
        """From the ones-exec of that job, which speaks for no other."""
        if self._ledger.job_of(id) not in (job, None):
            log.warning("news of another job's launch ignored", extra={"job": job, "launch": id})
        elif exit is not None:
            self._ledger.exited(id, exit)
        else:
            assert pid is not None
            self._ledger.started(id, pid)

    def _launch(self, launch: Launch) -> None:
        try:
            run_dir, spec = self._spec(launch)
            self._keeper(run_dir).launch(spec)
        except OSError as problem:  # a full disk, too many processes
            why = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem)
            self._ledger.exited(launch.id, not_started(why.lower()))

    def _prepare(self, launch: Launch) -> None:
        with suppress(OSError):  # then the launch itself will say what is wrong
            run_dir, spec = self._spec(launch)
            self._keeper(run_dir).prepare(spec)

    def _spec(self, launch: Launch) -> tuple[Path, Spec]:
        missing = [id for id in launch.slots if id not in self._slots]
        if missing:
            raise OSError(f"slot {missing[0]} is not here")
        slots = [self._slots[id] for id in launch.slots]
        run_dir = self._dirs.of(launch.job, slots[0].node)
        spec = Spec(
            id=launch.id,
            argv=launch.argv,
            cwd=launch.cwd,
            env=self._environment(launch, slots, run_dir),
            grace_seconds=launch.grace_seconds,
            zygote=launch.zygote,
            slots=launch.slots,
        )
        return run_dir, spec

    def _environment(self, launch: Launch, slots: list[Slot], run_dir: Path) -> dict[str, str]:
        threads = str(self._threads * len(slots))
        return {
            **dict.fromkeys(THREADS, threads),
            **launch.env,
            "PYTHONUNBUFFERED": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(slot.device for slot in slots if slot.device),
            "ONES_RUN_DIR": str(run_dir / launch.id),
            "ONES_JOB_DIR": str(run_dir),
            "ONES_HOST": slots[0].host,
        }

    def _stop(self, id: str, grace: float) -> None:
        process = self._ledger.living(id)
        if process is not None:
            for keeper in self._keepers.of_job(self._dirs.of_job(process.job)):
                keeper.stop(id, grace)

    def _forget(self, job: str) -> None:
        keepers = self._keepers.of_job(self._dirs.of_job(job))
        for keeper in keepers:
            keeper.close(grace=0.0)
        if not keepers:  # none of its launches came so far
            self._ledger.forget(job)

    def _drop(self, keeper: Keeper) -> None:
        """Its ones-exec is gone: the directory goes to the ended ones."""
        if self._closing:
            return  # everything was stopped, nothing was forgotten
        job = job_of(keeper.run_dir)
        self._ledger.forget(job)
        self._dirs.put_away(job, keeper.run_dir.name)
