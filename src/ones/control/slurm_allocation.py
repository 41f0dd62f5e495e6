"""`ones slurm serve`: the agents of an allocation, and a controller if none is running."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ones.control.statedir import StateDir
from ones.errors import UserError
from ones.launchers.slurm.allocation import AllocationManager, manage, required_allocation
from ones.launchers.slurm.settings import Timing
from ones.launchers.slurm.shared_directory import SharedDirectory

RESTART_SECONDS = 2.0  # between two starts of the controller
#: time for an allocation to restart its dead controller, before other allocations may start one
TAKE_OVER_SECONDS = 15.0
END_SECONDS = 20.0  # time for the controller to stop


def serve_allocation(
    directory: StateDir,
    *,
    slots: int,
    lead: float,
    host: str,
    with_controller: bool = True,
    insecure: bool = False,
) -> None:
    """Serve an allocation until it ends. Jobs save their work before, and the next allocation
    continues with it.

    `host`: address of a controller that is started here; with TLS, unless `insecure`.
    """
    id, shared = required_allocation(), SharedDirectory(directory.runs)
    directory.make()
    controller = _Controller(directory, slots, host, insecure=insecure)

    def check_controller(allocation: AllocationManager) -> None:
        if with_controller and not allocation.file.ending:
            controller.check(are_others_here=lambda: bool(shared.other_allocations(id)))

    timing = Timing.from_environment()
    try:
        if not manage(
            directory.runs, cpus=slots, lead=lead, timing=timing, on_turn=check_controller
        ):
            raise UserError(f"allocation {id}: `ones slurm serve` is already running for it")
    finally:
        controller.stop()


class _Controller:
    """Starts a controller if none runs for this directory, and restarts it when it dies."""

    def __init__(self, directory: StateDir, slots: int, host: str, *, insecure: bool) -> None:
        self._directory, self._slots, self._host = directory, slots, host
        self._insecure = insecure
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._was_ours = False
        self._absent_since: float | None = None

    def check(self, are_others_here: Callable[[], bool]) -> None:
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process = None
            self._start_at = now + RESTART_SECONDS
        if now < self._start_at:
            return
        if self._directory.is_locked():
            self._was_ours, self._absent_since = False, None
            self._start_at = now + RESTART_SECONDS / 4  # a lock on a shared disk takes time
            return
        if self._absent_since is None:
            self._absent_since = now
        late = now - self._absent_since >= TAKE_OVER_SECONDS
        if self._was_ours or late or not are_others_here():
            self._was_ours, self._absent_since = True, None
            self._start_at = now + RESTART_SECONDS
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ones")), "up", "--foreground",
                    "--launcher", "slurm", "--dir", str(self._directory.path),
                    "--slots", str(self._slots), "--host", self._host,
                    *(["--insecure"] if self._insecure else []),
                ],
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
