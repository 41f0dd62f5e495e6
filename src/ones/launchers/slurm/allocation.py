"""`python -m ones.launchers.slurm.allocation ROOT ...`: what runs once in each allocation.

Keeps an agent on every node by `srun --overlap`, and starts it again when it died. srun's exit
code says nothing (it is 0 after a node failure): agents tell the controller themselves, and an
agent that has left in good order leaves with the word of this process that the allocation ends.
That word is written when Slurm sends the signal that was asked for (`--signal=B:USR1@300`), or when
the time is near by the clock.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ones.errors import OnesError, UserError, WorldError
from ones.exec.logs import log_to_stderr
from ones.launchers.slurm import commands
from ones.launchers.slurm.shared import LOST, AllocationFile, Shared, Timing

AGAIN_SECONDS = 2.0  # between two starts of an agent, doubled each time that it ends soon
MOST_SECONDS = 60.0
LOOK_SECONDS = 30.0  # between two looks at Slurm
#: of the time that is left after the notice, jobs may move for so much; then they must save
MOVING_SHARE = 0.5
#: what Slurm says of an allocation that is over
UNKNOWN = "Invalid job id"
OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "COMPLETING")

log = logging.getLogger("ones.launchers.slurm.allocation")


class Allocation:
    """`lead`: how long before its end the allocation begins to end."""

    def __init__(
        self, root: Path, id: str, *, cpus: int = 1, lead: float = 300.0, timing: Timing
    ) -> None:
        self._shared, self.id = Shared(root), id
        self._cpus, self._lead, self._timing = cpus, lead, timing
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._began: dict[str, float] = {}
        self._wait: dict[str, float] = {}
        self._read_at: dict[str, float] = {}
        self._given_up: dict[str, float] = {}  # node -> since when its agent does not answer
        self._looked = 0.0
        self._was_told = False
        self._lock: int | None = None
        self.file = AllocationFile(id=id, nodes={})

    def begin(self) -> bool:
        """False: another process sees to this allocation already."""
        self._shared.make()
        file = self._shared.lock_file(self.id)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._look(time.monotonic())
        return True

    def end_soon(self) -> None:
        """From a signal's handler: say so at the next turn."""
        self._was_told = True

    def turn(self) -> bool:
        """See to the agents; False once the allocation has ended and all of them have left."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            with suppress(OnesError):
                self._look(now)
        near = self.file.ends_at and time.time() > self.file.ends_at - self._lead
        if (self._was_told or near) and not self.file.ending:
            self._announce()
        for node, gpus in self.file.nodes.items():
            self._see_to(node, gpus, now)
        return bool(self._steps) or not self.file.ending

    def _see_to(self, node: str, gpus: list[int], now: float) -> None:
        step = self._steps.get(node)
        if step is None:
            due = now >= self._began.get(node, 0.0) + self._wait.get(node, 0.0)
            if due and not self.file.ending:
                self._began[node] = now
                self._steps[node] = self._start(node, gpus)
        elif step.poll() is not None:
            del self._steps[node]
            lasted = now - self._began[node]
            before = self._wait.get(node, 0.0) if lasted < 2 * MOST_SECONDS else 0.0
            self._wait[node] = min(MOST_SECONDS, max(AGAIN_SECONDS, 2 * before))
            self._began[node] = now
        elif now < self._read_at.get(node, 0.0):
            return  # a shared file is not read more often than that
        elif self._shared.word(node) != LOST:
            self._read_at[node] = now + self._timing.ping
            self._given_up.pop(node, None)
        elif now - self._given_up.setdefault(node, now) > self._timing.condemn:
            # srun waits for a step that is no more: a node that died and is back says nothing
            del self._given_up[node]
            step.kill()

    def close(self) -> None:
        """What we started ends with us: Slurm ends the steps when srun is told to."""
        self._shared.remove_allocation(self.id)
        for step in self._steps.values():
            step.terminate()
        for step in self._steps.values():
            try:
                step.wait(10.0)
            except subprocess.TimeoutExpired:
                step.kill()
                step.wait()
        if self._lock is not None:
            os.close(self._lock)

    def _look(self, now: float) -> None:
        self._looked = now
        try:
            found = commands.look(self.id)
        except WorldError as problem:
            if UNKNOWN not in str(problem):
                raise  # Slurm does not answer: that passes
            self._was_told = True  # it is so long over that Slurm has forgotten it
            return
        names = self._names(list(found.nodes))
        changed = replace(
            self.file,
            nodes={names[host]: gpus for host, gpus in found.nodes.items()},
            hosts={name: host for host, name in names.items()},
            ends_at=found.ends_at,
        )
        if changed != self.file:
            self.file = changed
            self._shared.write_allocation(changed)
        if found.state in OVER:
            self._was_told = True

    def _names(self, hosts: list[str]) -> dict[str, str]:
        """A host is a node of its name; its part in a second allocation is another node."""
        names = {host: name for name, host in self.file.hosts.items()}
        if set(hosts) - set(names):
            taken = {name for other in self._shared.others(self.id) for name in other.nodes}
            for host in hosts:
                names.setdefault(host, f"{host}-{self.id}" if host in taken else host)
        return {host: names[host] for host in hosts}

    def _announce(self) -> None:
        with suppress(OnesError):
            self._look(time.monotonic())
        left = self.file.ends_at - time.time() if self.file.ends_at else self._lead
        moving = max(0.0, min(left, self._lead)) * MOVING_SHARE
        self.file = replace(self.file, ending=True, stop_at=time.time() + moving)
        self._shared.write_allocation(self.file)

    def _start(self, node: str, gpus: list[int]) -> subprocess.Popen[bytes]:
        given = (
            str(self._shared.root), self.id, node, ",".join(map(str, gpus)), str(self._cpus),
            self._timing.to_text(),
        )  # fmt: skip
        # the shell stays when the agent dies, and so do the workers: they are of the same step
        agent = [
            "sh", "-c",
            'trap "" TERM USR1; until "$@"; do echo "agent ended: $?" >&2; sleep 1; done',
            "ones-agent", sys.executable, "-m", "ones.launchers.slurm.agent", *given,
        ]  # fmt: skip
        return subprocess.Popen(
            commands.agent_command(self.id, self.file.hosts[node], len(gpus), agent),
            stdin=subprocess.DEVNULL,
            env=step_environment(os.environ),
        )


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without the options that sbatch leaves in the environment for every srun that follows: a step
    that inherits `SLURM_GPUS_PER_NODE` or a number of tasks is not the one that we describe."""
    keep = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME")
    return {k: v for k, v in environment.items() if not k.startswith("SLURM_") or k in keep}


def current() -> str:
    """The allocation that this process runs in; empty: none."""
    return os.environ.get("SLURM_JOB_ID", "")


def attend(root: Path, *, cpus: int, lead: float, timing: Timing) -> None:
    """See to the allocation that we are in, until it ends."""
    id = current()
    if not id:
        raise UserError("this is not inside of an allocation: SLURM_JOB_ID is not set")
    allocation = Allocation(root, id, cpus=cpus, lead=lead, timing=timing)
    if not allocation.begin():
        return
    is_over = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGUSR1, lambda number, frame: allocation.end_soon())
    signal.signal(signal.SIGTERM, stop)
    try:
        while not is_over and allocation.turn():
            time.sleep(0.2)
    finally:
        allocation.close()


def attend_in_background(root: Path, log: Path, *, cpus: int, lead: float, timing: Timing) -> None:
    """The same, in a process that stays when we are gone; unless there is one already."""
    if Shared(root).is_seen_to(current()):
        return
    command = [
        sys.executable, "-m", "ones.launchers.slurm.allocation", str(root), str(cpus), str(lead),
        timing.to_text(),
    ]  # fmt: skip
    with log.open("ab") as file:
        subprocess.run(  # the shell ends at once: nobody is its parent then
            ["sh", "-c", '"$@" &', "sh", *command],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def main(arguments: list[str]) -> int:
    log_to_stderr()
    root, cpus, lead, timing = arguments
    try:
        attend(Path(root), cpus=int(cpus), lead=float(lead), timing=Timing.from_text(timing))
    except OnesError as problem:
        log.error("allocation not attended", extra={"reason": str(problem)})  # noqa: TRY400
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
