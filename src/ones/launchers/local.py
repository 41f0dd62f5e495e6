"""The local launcher: slots of this machine, one ones-exec for each job, one thread for all."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any, Self

from ones.errors import UserError, WorldError
from ones.exec.files import read_regular
from ones.exec.records import Exit, Launch, not_started
from ones.launchers.api import (
    LaunchedProcess,
    LauncherContext,
    Listener,
    Sampled,
    Slot,
    SlotUsed,
)
from ones.launchers.devices import GONE, local_slots, read_gpus, threads_per_slot
from ones.launchers.job_user import JobUser
from ones.launchers.launchd_client import (
    JobUsers,
    LaunchdError,
    UserSupervisor,
    remove_as_user,
)
from ones.launchers.run_dirs import RunDirs, job_of, launches_in
from ones.launchers.sampler import NodeSampler
from ones.launchers.supervisor_client import SupervisorClient
from ones.launchers.supervisor_clients import SupervisorClients
from ones.launchers.threaded_launcher import TURN_SECONDS, ThreadedLauncher
from ones.wire import CodecError
from ones.wire.environment import CHECKPOINTS
from ones.wire.samples import (
    MOST_OWN_STEPS_BYTES,
    OWN_STEPS,
    SAMPLE_SECONDS,
    OwnSteps,
    own_steps_of,
)

NODE = "local"
IDLE_SECONDS = 60.0
#: between two checks of the processes on the GPUs
LOOK_SECONDS = 10.0
#: grace time of workers that `close` ends
CLOSE_GRACE_SECONDS = 5.0
#: variables that limit the threads of a library; set unless the user has set them
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

log = logging.getLogger(__name__)


class LocalLauncher(ThreadedLauncher):
    """Starts workers on the slots of one machine.

    `lease`: file of the lease without which no worker runs. `look` reads the GPUs again, to report
    processes of others on them. `only`: the node to serve, if several nodes share the root.
    `users`: starts each job as its Unix user.
    """

    #: between two samples of what the workers use; 0: none are made. Set before `open`.
    sample_seconds = 0.0

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
        users: JobUsers | None = None,
    ) -> None:
        super().__init__(RunDirs(root))
        self._users = users
        self._slots = {slot.id: slot for slot in slots}
        self._threads = threads_per_slot(len(slots))
        self._idle, self._lease, self._only = idle_seconds, lease, only
        self._look, self._look_seconds = look, look_seconds
        self._closed = threading.Event()
        self._supervisors = SupervisorClients(self._work)

    @classmethod
    def for_service(cls, context: LauncherContext) -> Self:
        users = JobUsers.of(context)
        if users is None and RunDirs(context.runs).has_users():
            raise WorldError(
                "jobs of Unix users have run here, and may still do; ones-launchd is needed, but"
                " does not answer: see systemctl status ones-launchd"
            )
        slots = local_slots(NODE, context.runs, context.slots, users.tree if users else "")
        if all(slot.used_by for slot in slots):
            if slots:
                raise UserError(
                    f"all {len(slots)} GPUs of this machine are in use by other processes:"
                    " see nvidia-smi"
                )
            raise UserError("no GPU was found; offer CPU slots with: ones up --slots 4")
        tree = users.tree if users else ""
        look = None if context.slots else partial(read_gpus, NODE, context.runs, tree)
        if users is not None:
            users.set_limits(
                len(slots), context.job_memory_gb, context.job_processes, context.job_output_mb
            )
        launcher = cls(context.runs, slots, look=look, users=users)
        launcher.sample_seconds = SAMPLE_SECONDS
        return launcher

    @classmethod
    def stop_workers(cls, context: LauncherContext, **settings: Any) -> None:
        launcher = LocalLauncher(context.runs, [], users=JobUsers.of(context))
        launcher.open(lambda event: None)
        launcher.close(kill=True)

    def open(self, listener: Listener) -> None:
        self._dirs.make()
        for run_dir in self._dirs.live(self._only):
            try:
                self._supervisors.guarded(self._supervisor(run_dir), SupervisorClient.find)
            except OSError as problem:  # it is a file, or not readable
                log.warning(
                    "run directory skipped", extra={"path": str(run_dir), "reason": str(problem)}
                )
        self._start_thread(listener)
        if self._look is not None:
            threading.Thread(target=self._watch_gpus, name="ones-gpus", daemon=True).start()
        if self.sample_seconds:
            threading.Thread(target=self._sample, name="ones-sampler", daemon=True).start()

    def slots(self) -> list[Slot]:
        return list(self._slots.values())

    def set_host(self, host: str) -> None:
        """Sets the address at which other nodes reach workers that start from now on."""
        for id, slot in list(self._slots.items()):
            self._slots[id] = replace(slot, host=host)

    def close(self, *, kill: bool) -> None:
        self._closed.set()
        super().close(kill=kill)

    def _watch_gpus(self) -> None:
        """Reports changes of the processes on the GPUs. Runs in a thread of its own."""
        assert self._look is not None
        while not self._closed.wait(self._look_seconds):
            try:
                found = {slot.device: slot.used_by for slot in self._look()}
            except (WorldError, OSError):
                continue  # the driver does not answer: nothing is known about the GPUs
            except Exception:
                log.exception("GPUs could not be read")
                continue
            for id, known in list(self._slots.items()):
                now = found.get(known.device, (GONE,))
                if now != known.used_by:
                    self._slots[id] = slot = replace(known, used_by=now)
                    self._work.add(partial(self._notify, SlotUsed(slot)))

    def _sample(self) -> None:
        """Reports what the workers use. Runs in a thread of its own."""
        sampler = NodeSampler(self._threads, self._own_steps)
        while not self._closed.wait(self.sample_seconds):
            try:
                samples = sampler.sample(self.running().values(), self._slots)
            except Exception:  # samples are only shown
                log.exception("workers could not be sampled")
                continue
            if samples:
                self._work.add(partial(self._notify, Sampled(samples)))

    def _own_steps(self, process: LaunchedProcess) -> OwnSteps | None:
        """What a worker says of its steps: its own user may have written anything."""
        node = process.slots[0].rpartition("/")[0] if process.slots else ""
        path = self._dirs.directory(process.job, node, process.id) / OWN_STEPS
        with suppress(OSError, CodecError):
            owner = self._dirs.owner_of(process.job)
            return own_steps_of(read_regular(path, MOST_OWN_STEPS_BYTES, owner=owner))
        return None

    # in the launcher's thread

    def _is_done(self) -> bool:
        return not self._supervisors.are_closing

    def _turn(self) -> None:
        self._supervisors.wait(TURN_SECONDS)
        self._work.run_all()
        self._supervisors.retry()
        for supervisor in self._supervisors.take_ended():
            try:
                self._archive(supervisor.run_dir)
            except Exception:
                log.exception("run directory not archived", extra={"path": str(supervisor.run_dir)})

    def _end(self) -> None:
        self._supervisors.release_all()
        if self._users is not None:
            self._users.client.close()

    def _kill_all(self) -> None:
        self._supervisors.close_all(CLOSE_GRACE_SECONDS)

    def _supervisor(self, run_dir: Path) -> SupervisorClient:
        supervisor = self._supervisors.get(run_dir)
        if supervisor is None:
            job = job_of(run_dir)
            user = self._dirs.user_of(job)
            starter = self._starter_of(job, user) if user else None
            if user is None:
                run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = launches_in(run_dir, user.uid if user else None)
            for process in known:
                self._launches.restore(process)
            if starter is not None and known:
                used = [id for process in known if process.alive for id in process.slots]
                starter.adopt(self._paths_of(used))
            on_update = partial(self._on_update, job)
            supervisor = SupervisorClient(run_dir, on_update, self._idle, self._lease, starter)
            self._supervisors.add(supervisor)
        return supervisor

    def _starter_of(self, job: str, user: JobUser) -> UserSupervisor:
        if self._users is None:
            raise LaunchdError(f"job {job} runs as user {user.name}, which needs ones-launchd")
        return self._users.supervisor(user, job)

    def _paths_of(self, slots: Sequence[str]) -> dict[str, str]:
        return {id: self._slots[id].path if id in self._slots else "" for id in slots}

    def _on_update(self, job: str, id: str, pid: int | None, exit: Exit | None) -> None:
        """Handles a report of a job's ones-exec, which may report launches of that job only."""
        process = self._launches.get(id)
        if process is not None and process.job != job:
            log.warning("report on another job's launch ignored", extra={"job": job, "launch": id})
        elif exit is not None:
            if process is not None and process.alive:
                exit = self._release(process, exit)
            self._launches.exited(id, exit)
        else:
            assert pid is not None
            self._launches.started(id, pid)

    def _release(self, process: LaunchedProcess, exit: Exit) -> Exit:
        """Takes the slots of an ended launch from its job, if the job runs as its own user."""
        for supervisor in self._supervisors.of_job(self._dirs.of_job(process.job)):
            if isinstance(starter := supervisor.starter, UserSupervisor):
                if exit.signal == SIGKILL and exit.cause == "exited":
                    exit = starter.explained(exit)
                starter.give_back(process.slots)
        return exit

    def _launch(self, launch: Launch) -> None:
        try:
            run_dir, launch = self._with_environment(launch)
            supervisor = self._supervisor(run_dir)
            if isinstance(supervisor.starter, UserSupervisor):
                supervisor.starter.use(self._paths_of(launch.slots))
            supervisor.launch(launch)
        except OSError as problem:  # a full disk, too many processes
            why = f"{problem.filename}: {problem.strerror}" if problem.filename else str(problem)
            self._launches.exited(launch.id, not_started(why.lower()))

    def _prepare(self, launch: Launch) -> None:
        with suppress(OSError):  # the launch itself will report the problem
            run_dir, launch = self._with_environment(launch)
            self._supervisor(run_dir).prepare(launch)

    def _with_environment(self, launch: Launch) -> tuple[Path, Launch]:
        """Returns the run directory, and the launch with its whole environment."""
        missing = [id for id in launch.slots if id not in self._slots]
        if missing:
            raise OSError(f"slot {missing[0]} is not here")
        slots = [self._slots[id] for id in launch.slots]
        user = self._user_of(launch, slots[0].node)
        run_dir = self._dirs.of(launch.job, slots[0].node)
        env = self._environment(launch, slots, run_dir)
        if user is not None and self._users is not None and CHECKPOINTS in env:
            env |= self._users.checkpoints_of(user, launch.job)
        return run_dir, replace(launch, env=env)

    def _user_of(self, launch: Launch, node: str) -> JobUser | None:
        """The Unix user of a launch. Raises OSError if ones-launchd refuses that user."""
        if not launch.user and self._users is None:
            return None
        if self._users is None:
            raise LaunchdError(f"job {launch.job} must run as {launch.user}: no ones-launchd")
        if not launch.user:
            raise LaunchdError(
                f"the owner of job {launch.job} has no Unix user; an admin can set it with:"
                " ones user unix NAME UNIX_NAME"
            )
        user = self._users.client.resolve(launch.user)
        self._dirs.assign(launch.job, user, node)
        return user

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
        process = self._launches.living(id)
        if process is not None:
            for supervisor in self._supervisors.of_job(self._dirs.of_job(process.job)):
                supervisor.stop(id, grace)

    def _forget(self, job: str) -> None:
        supervisors = self._supervisors.of_job(self._dirs.of_job(job))
        for supervisor in supervisors:
            supervisor.close(grace=0.0)
        if not supervisors:  # the job has no launch yet
            self._launches.forget(job)

    @property
    def runs_as_users(self) -> bool:
        return self._users is not None

    def check_user(self, user: str) -> str:
        if self._users is None:
            return "all jobs run as the user of the service: no ones-launchd"
        try:
            self._users.client.resolve(user)
        except LaunchdError as problem:
            return str(problem)
        return ""

    def remove(self, job: str, *, checkpoints: bool) -> bool:
        user = self._dirs.user_of(job)
        if user is None:
            return True
        if self._users is None:
            raise LaunchdError(f"files of job {job} belong to {user.name}: no ones-launchd")
        places = user.checkpoints / job, self._dirs.of_job(job)
        path = places[0 if checkpoints else 1]
        if path.is_dir():
            remove_as_user(self._users.client, user, job, path)
        return not any(place.is_dir() for place in places)

    def _archive(self, run_dir: Path) -> None:
        """Moves a run directory without an ones-exec to those of ended jobs."""
        if self._closing:
            return  # `close` stopped the workers: their jobs are not forgotten
        job = job_of(run_dir)
        self._launches.forget(job)
        self._dirs.archive(job, run_dir.name)
