"""Allocations that the service asks Slurm for when jobs wait (`ones slurm auto`).

A thread of its own calls Slurm's commands. What was asked for by a user is in a file; which
allocations there are is read from Slurm, by the name of the jobs.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ones.control import logs
from ones.errors import OnesError
from ones.launchers.slurm import commands
from ones.launchers.slurm.auto_scaling import (
    ENDING,
    PENDING,
    RUNNING,
    Allocation,
    AutoLimits,
    Memory,
    decide,
    failed,
    submitted,
)
from ones.launchers.slurm.batch_script import BatchScript

TURN_SECONDS = 2.0
FILE = "auto.json"  # in the directory of runs
#: states of Slurm; a job in another one has ended
_STATES = {
    **dict.fromkeys(("PENDING", "REQUEUED", "REQUEUE_HOLD"), PENDING),
    **dict.fromkeys(("CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED"), RUNNING),
    **dict.fromkeys(("COMPLETING", "SIGNALING", "STAGE_OUT"), ENDING),
}

log = logs.logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRequest:
    """What `ones slurm auto` asks for. `name`: of the jobs in Slurm; one for each service."""

    max_nodes: int
    time: str
    nodes: int = 1  # of each allocation
    gpus_per_node: int = 0
    slots: int = 1  # CPU slots of each node without GPUs
    idle_seconds: float = 300.0
    lead: int = 300
    options: tuple[str, ...] = ()
    name: str = ""

    @property
    def limits(self) -> AutoLimits:
        return AutoLimits(
            max_nodes=self.max_nodes,
            nodes=self.nodes,
            slots_per_node=self.gpus_per_node or self.slots,
            idle_seconds=self.idle_seconds,
        )

    @property
    def most_slots(self) -> int:
        return self.max_nodes // self.nodes * self.nodes * self.limits.slots_per_node

    def script(self, state: Path) -> str:
        """The batch script. Raises InvalidSettingError for values that Slurm cannot take."""
        beside = Path(sys.executable).with_name("ones")
        return BatchScript(
            nodes=self.nodes,
            gpus_per_node=self.gpus_per_node,
            slots=self.slots,
            time=self.time,
            lead=self.lead,
            state=str(state),
            command=str(beside) if beside.exists() else "ones",
            # the last one of two options counts
            options=(*self.options, f"--job-name={self.name}", f"--output={state}/slurm-%j.log"),
            controller=False,
        ).text()


@dataclass(frozen=True, slots=True)
class Demand:
    """Slots that waiting jobs need, slots without a worker, and the nodes of each allocation: node
    -> whether it has workers."""

    wanted: int
    free: int
    nodes: Mapping[str, Mapping[str, bool]]


class SlurmAuto:
    """`demand` is called in each turn, in the thread."""

    def __init__(
        self,
        state: Path,
        demand: Callable[[], Demand],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state, self._file = state, state / "runs" / FILE
        self._demand, self._clock = demand, clock
        self._memory = Memory()
        self._found: dict[str, Allocation] = {}
        self.problem = ""  # of the last call of Slurm; empty: it worked
        self.request = self._read()
        self._turns = threading.Lock()  # one turn, or one change of the request, at a time
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ones-slurm-auto", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set(self, request: AutoRequest | None) -> None:
        """Ask for allocations from now on; None: no more, and cancel those that are pending."""
        with self._turns:
            if request is None:
                self._let_go(running=True)
                self._file.unlink(missing_ok=True)
            else:
                name = self.request.name if self.request else f"ones-auto-{secrets.token_hex(4)}"
                request = replace(request, name=name)
                request.script(self._state)
                commands.run("sbatch", "--version")
                beside = self._file.with_suffix(".new")
                beside.write_text(json.dumps(asdict(request)))
                beside.replace(self._file)
            self.request, self._memory, self.problem = request, Memory(), ""
        self._wake.set()

    def stop(self) -> None:
        """Cancel the pending allocations; those that run serve the next controller."""
        self._over.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.let_go(running=False)

    def let_go(self, *, running: bool) -> None:
        """Cancel the pending allocations, and end those that run."""
        with self._turns:
            self._let_go(running=running)

    def shown(self) -> dict[str, object] | None:
        """For `ones cluster`; None: no allocations are asked for."""
        request = self.request
        if request is None:
            return None
        found = dict(self._found)
        wait = max(0.0, self._memory.retry_at - self._clock())
        return {
            "max_nodes": request.max_nodes,
            "nodes": sum(a.nodes for a in found.values() if a.state != PENDING),
            "time": request.time,
            "pending": [id for id, a in found.items() if a.state == PENDING],
            "running": [id for id, a in found.items() if a.state == RUNNING],
            "problem": self.problem,
            "retry_seconds": wait if self.problem else 0.0,
        }

    # the thread

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.turn()
            except Exception:
                log.exception("allocations not checked")
            self._wake.wait(TURN_SECONDS)
            self._wake.clear()

    def turn(self) -> None:
        with self._turns:
            if self.request is None:
                return
            now = self._clock()
            demand, failures = self._demand(), self._memory.failures
            try:
                self._found = self._allocations(self.request, demand.nodes)
            except OnesError as problem:  # what there is, is not known: nothing is asked for
                self.problem = str(problem)
                return
            steps, self._memory = decide(
                self.request.limits,
                self._memory,
                self._found,
                now,
                wanted_slots=demand.wanted,
                free_slots=demand.free,
            )
            if self._memory.failures > failures:
                self.problem = f"an allocation ended unused: see {self._state}/slurm-*.log"
                log.warning("allocation ended unused")
            elif not self._memory.failures:
                self.problem = ""
            for id in steps.cancel:
                self._call("scancel", id)
            for id in steps.end:
                log.info("idle allocation ended", allocation=id)
                self._end(id)
            for _ in range(steps.submit):
                id = self._submit(self.request)
                if not id:
                    self._memory = failed(self._memory, now)
                    break
                self._memory = submitted(self._memory, id)

    def _allocations(
        self, request: AutoRequest, nodes: Mapping[str, Mapping[str, bool]]
    ) -> dict[str, Allocation]:
        what = ("-h", "--me", "-t", "all", "-n", request.name, "-o", "%i %T %D")
        found = {}
        for line in commands.run("squeue", *what).splitlines():
            id, state, number = line.split()
            if state in _STATES:
                own = nodes.get(id, {})
                found[id] = Allocation(
                    _STATES[state], int(number), serves=bool(own), busy=any(own.values())
                )
        return found

    def _submit(self, request: AutoRequest) -> str:
        """The id of a new allocation; empty if sbatch has failed."""
        kept = ("SLURM_CONF",)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name in kept or not name.startswith(("SLURM_", "SBATCH"))
        }
        self.problem = ""
        try:
            done = subprocess.run(
                ["sbatch", "--parsable"], input=request.script(self._state), text=True,
                capture_output=True, timeout=commands.SECONDS, check=False, env=environment,
                cwd=self._state,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, OnesError) as problem:
            self.problem = f"sbatch: {problem}"
        else:
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                last = lines[-1] if lines else str(done.returncode)
                self.problem = f"sbatch: {last.removeprefix('sbatch: ').removeprefix('error: ')}"
        if self.problem:
            log.warning("allocation not submitted", reason=self.problem)
            return ""
        id = done.stdout.strip().partition(";")[0]  # the name of the cluster may follow
        log.info("allocation submitted", allocation=id, nodes=request.nodes)
        return id

    def _let_go(self, *, running: bool) -> None:
        if self.request is None:
            return
        with suppress(OnesError):
            self._found = self._allocations(self.request, {})
            for id, found in self._found.items():
                if found.state == PENDING:
                    self._call("scancel", id)
                elif running and found.state == RUNNING:
                    self._end(id)

    def _end(self, id: str) -> None:
        """End an allocation: its nodes drain, its workers save their work, then it exits."""
        self._call("scancel", "--batch", "--signal=USR1", id)

    def _call(self, *command: str) -> None:
        with suppress(OnesError):  # it has ended meanwhile; otherwise the next turn tries again
            commands.run(*command)

    def _read(self) -> AutoRequest | None:
        try:
            plain = json.loads(self._file.read_text())
            return AutoRequest(**{**plain, "options": tuple(plain["options"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
