"""What a batch script of Slurm runs: the allocation's agents, and the controller where none is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ones.control.statedir import StateDir
from ones.errors import UserError
from ones.launchers.slurm.allocation import Allocation, current
from ones.launchers.slurm.shared import Shared, Timing

TURN_SECONDS = 0.2
AGAIN_SECONDS = 2.0  # between two starts of the controller
#: whose controller died starts it again where it was, and workers find it; then it is others' turn
TAKE_OVER_SECONDS = 15.0
END_SECONDS = 20.0  # the controller may take so long to stop


def serve_allocation(
    directory: StateDir,
    *,
    slots: int,
    lead: float,
    host: str,
    with_controller: bool = True,
    insecure: bool = False,
) -> None:
    """Until the allocation ends. Work is saved before; the next allocation goes on from there.

    `host`: where a controller that we start listens; with TLS, unless `insecure`.
    """
    id = current()
    if not id:
        raise UserError("this is not inside of an allocation: submit it with sbatch")
    directory.make()
    timing = Timing.from_text(os.environ.get("ONES_SLURM_TIMING", ""))
    allocation = Allocation(directory.runs, id, cpus=slots, lead=lead, timing=timing)
    if not allocation.begin():
        raise UserError(f"allocation {id} is being served already")
    serving = True

    def stop(number: int, frame: object) -> None:
        nonlocal serving
        serving = False

    signal.signal(signal.SIGUSR1, lambda number, frame: allocation.end_soon())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    controller = _Controller(directory, slots, host, insecure=insecure)
    shared = Shared(directory.runs)
    try:
        while serving and allocation.turn():
            if with_controller and not allocation.file.ending:
                controller.see_to(are_others_here=lambda: bool(shared.others(id)))
            time.sleep(TURN_SECONDS)
    finally:
        allocation.close()
        controller.stop()


class _Controller:
    """Ours, if nobody else has one for this directory; started again when it dies."""

    def __init__(self, directory: StateDir, slots: int, host: str, *, insecure: bool) -> None:
        self._directory, self._slots, self._host = directory, slots, host
        self._insecure = insecure
        self._process: subprocess.Popen[bytes] | None = None
        self._start_at = 0.0
        self._was_ours = False
        self._absent_since: float | None = None

    def see_to(self, are_others_here: Callable[[], bool]) -> None:
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process = None
            self._start_at = now + AGAIN_SECONDS
        if now < self._start_at:
            return
        if self._directory.is_locked():
            self._was_ours, self._absent_since = False, None
            self._start_at = now + AGAIN_SECONDS / 4  # a lock on a shared disk is not free
            return
        if self._absent_since is None:
            self._absent_since = now
        late = now - self._absent_since >= TAKE_OVER_SECONDS
        if self._was_ours or late or not are_others_here():
            self._was_ours, self._absent_since = True, None
            self._start_at = now + AGAIN_SECONDS
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ones")), "up", "--foreground",
                    "--launcher", "slurm", "--state", str(self._directory.path),
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
