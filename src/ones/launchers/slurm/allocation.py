"""`python -m ones.launchers.slurm.allocation ROOT ...`: the manager of an allocation.

It keeps an agent on every node by `srun --overlap`, and restarts an agent that died. The exit code
of srun is not used (it is 0 after a node failure): agents report to the controller themselves. The
manager announces the end of the allocation, and the agents stop their workers: when Slurm sends
SIGUSR1 (`--signal=B:USR1@300`), or `lead` seconds before the end by the clock.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ones.errors import OnesError, UserError, WorldError
from ones.exec.files import try_lock
from ones.exec.logs import log_to_stderr
from ones.launchers.slurm import commands
from ones.launchers.slurm.settings import Timing
from ones.launchers.slurm.shared_directory import LOST, AllocationFile, SharedDirectory

TURN_SECONDS = 0.2
RESTART_SECONDS = 2.0  # between two starts of an agent, doubled each time that it ends soon
MOST_SECONDS = 60.0
LOOK_SECONDS = 30.0  # between two calls of scontrol
#: share of the time after the announcement in which jobs may migrate; then they must save and end
MOVING_SHARE = 0.5
#: part of Slurm's error for an allocation that ended long ago
UNKNOWN = "Invalid job id"
OVER = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "COMPLETING")
LOG = "allocation.log"

log = logging.getLogger("ones.launchers.slurm.allocation")


class AllocationManager:
    """Keeps the agents of one allocation. `lead`: seconds between announcement and end."""

    def __init__(
        self, root: Path, id: str, *, cpus: int = 1, lead: float = 300.0, timing: Timing
    ) -> None:
        self._shared, self.id = SharedDirectory(root), id
        self._cpus, self._lead, self._timing = cpus, lead, timing
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._changed_at: dict[str, float] = {}  # node -> start, or end, of its agent
        self._wait: dict[str, float] = {}
        self._read_at: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}  # node -> time when it was given up
        self._looked_at = 0.0
        self._must_announce = False
        self._lock: int | None = None
        self.file = AllocationFile(id=id, nodes={})

    def begin(self) -> bool:
        """Takes the lock and reads the nodes; False if another process manages this allocation."""
        self._shared.make()
        file = self._shared.lock_file(self.id)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(handle):
            os.close(handle)
            return False
        self._lock = handle
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._look(time.monotonic())
        return True

    def end_soon(self) -> None:
        """Announces the end at the next turn. For signal handlers."""
        self._must_announce = True

    def turn(self) -> bool:
        """Checks the agents. False once the allocation has ended and all agents have ended."""
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            with suppress(OnesError):
                self._look(now)
        near = self.file.ends_at and time.time() > self.file.ends_at - self._lead
        if (self._must_announce or near) and not self.file.ending:
            self._announce()
        for node, gpus in self.file.nodes.items():
            self._check_agent(node, gpus, now)
        return bool(self._steps) or not self.file.ending

    def _check_agent(self, node: str, gpus: list[int], now: float) -> None:
        step = self._steps.get(node)
        if step is None:
            due = now >= self._changed_at.get(node, 0.0) + self._wait.get(node, 0.0)
            if due and not self.file.ending:
                self._changed_at[node] = now
                self._steps[node] = self._start(node, gpus)
        elif step.poll() is not None:
            del self._steps[node]
            lasted = now - self._changed_at[node]
            before = self._wait.get(node, 0.0) if lasted < 2 * MOST_SECONDS else 0.0
            self._wait[node] = min(MOST_SECONDS, max(RESTART_SECONDS, 2 * before))
            self._changed_at[node] = now
        elif now < self._read_at.get(node, 0.0):
            return  # reads of the shared directory are limited to one per ping
        elif self._shared.node_state(node) != LOST:
            self._read_at[node] = now + self._timing.ping
            self._lost_since.pop(node, None)
        elif now - self._lost_since.setdefault(node, now) > self._timing.condemn:
            # srun still waits for a step that is gone: Slurm does not report a node that rebooted
            del self._lost_since[node]
            step.kill()

    def close(self) -> None:
        """Ends the agents: Slurm ends a step when its srun is terminated."""
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
        self._looked_at = now
        try:
            found = commands.describe(self.id)
        except WorldError as problem:
            if UNKNOWN not in str(problem):
                raise  # Slurm does not answer: tried again later
            self._must_announce = True
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
            self._must_announce = True

    def _names(self, hosts: list[str]) -> dict[str, str]:
        """Node names by host: the host's name, with the allocation's id if it is taken."""
        names = {host: name for name, host in self.file.hosts.items()}
        if set(hosts) - set(names):
            others = self._shared.other_allocations(self.id)
            taken = {name for other in others for name in other.nodes}
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
        # the shell stays when the agent dies, so Slurm does not end the step with its workers
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
    """The environment for srun, without sbatch's options (`SLURM_GPUS_PER_NODE`, tasks).

    srun would apply them to the step of the agent.
    """
    keep = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_CLUSTER_NAME")
    return {k: v for k, v in environment.items() if not k.startswith("SLURM_") or k in keep}


def current_allocation() -> str:
    """The id of the allocation that this process runs in; empty: none."""
    return os.environ.get("SLURM_JOB_ID", "")


def required_allocation() -> str:
    if not (id := current_allocation()):
        raise UserError(
            "this command must run in a Slurm allocation (SLURM_JOB_ID is not set): submit it"
            " with sbatch"
        )
    return id


def manage(
    root: Path,
    *,
    cpus: int,
    lead: float,
    timing: Timing,
    on_turn: Callable[[AllocationManager], None] = lambda allocation: None,
) -> bool:
    """Manages the allocation of this process until it ends; False if another process does."""
    id = required_allocation()
    allocation = AllocationManager(root, id, cpus=cpus, lead=lead, timing=timing)
    if not allocation.begin():
        return False
    is_over = False

    def stop(number: int, frame: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGUSR1, lambda number, frame: allocation.end_soon())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        while not is_over and allocation.turn():
            on_turn(allocation)
            time.sleep(TURN_SECONDS)
    finally:
        allocation.close()
    return True


def manage_in_background(root: Path, *, cpus: int, lead: float, timing: Timing) -> None:
    """Starts a process that manages the allocation and outlives this one, unless one runs."""
    if SharedDirectory(root).is_managed(current_allocation()):
        return
    command = [
        sys.executable, "-m", "ones.launchers.slurm.allocation", str(root), str(cpus), str(lead),
        timing.to_text(),
    ]  # fmt: skip
    with (root / LOG).open("ab") as file:
        subprocess.run(  # the shell ends at once, so that this process is not the parent
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
        manage(Path(root), cpus=int(cpus), lead=float(lead), timing=Timing.from_text(timing))
    except OnesError as problem:
        log.error("allocation not managed", extra={"reason": str(problem)})  # noqa: TRY400
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
