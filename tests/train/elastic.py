"""Runs tests/train/scripts by a schedule, with real processes, and reads what they left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ones.control.live.jobs import gpu_of
from ones.lab.elastic_run import ElasticRun, RunOutcome
from ones.lab.scripted_policy import JOB, parse_schedule
from ones.launchers.devices import cpu_slots
from ones.launchers.local import NODE
from ones.train.store_process import StoreAddress
from ones.wire.messages import Order
from tests.processes import PATIENCE
from tests.train.forks import ForkLauncher

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass
class Elastic:
    """One job in a directory of its own."""

    run: ElasticRun
    out: Path
    launcher: ForkLauncher
    #: where its stores listened: (port, inode of the socket)
    listeners: set[tuple[int, str]] = field(default_factory=set)
    shared_before: frozenset[str] = field(default_factory=lambda: frozenset(os.listdir("/dev/shm")))

    @property
    def traces(self) -> list[dict[str, Any]]:
        lines = []
        for path in sorted(self.out.glob("trace-*.jsonl")):
            lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines

    def output(self) -> str:
        texts = [path.read_text() for path in sorted(self.out.parent.glob("forks/*/output"))]
        return "\n".join(texts)

    def final(self) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.out / "final.pt", weights_only=True)
        return state

    def play(self, patience: float = 300.0) -> RunOutcome:
        """To the end; a job that hangs fails with what its workers said."""
        alarm = threading.Timer(patience, self._give_up)
        alarm.start()
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,), daemon=True)
        watch.start()
        outcome = self.run.run()
        alarm.cancel()
        over.set()
        watch.join()
        assert outcome.done, f"{outcome}\n{self.output()}"
        return outcome

    def _give_up(self) -> None:
        for process in self.launcher.running().values():
            if process.alive and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.5)  # they write their stacks
        self.run.interrupt()

    def comes_after(self, phase: int, *, steps: int) -> None:
        """A phase is due a number of steps after the one before it is in force."""
        schedule = list(self.run.policy.phases)
        before, this = schedule[phase - 1], schedule[phase]

        def said(text: str) -> None:
            switched = re.match(rf"step (\d+): \d+ -> {before.workers} workers", text)
            if switched:
                schedule[phase] = replace(this, step=int(switched[1]) + steps)
                self.run.policy.phases = tuple(schedule)

        self.run.on_event = said

    def worker_pid(self, worker: str) -> int:
        process = self.run.engine.live.jobs[JOB].on(gpu_of(worker))
        assert process is not None
        pid = self.launcher.running()[process.launch].pid
        assert pid is not None
        return pid

    def order_last(self, order: Order) -> None:
        """By hand, instead of the schedule; the run ends when all workers have left."""
        live = self.run.engine.live
        live.winding_down = True  # no others are started
        for launch in list(live.jobs[JOB].workers):
            live.mailbox.put(launch, order)
        self._end_after_exits()

    def fence(self) -> None:
        """The engine does not know the job any more, as after its end; then the run ends."""
        live = self.run.engine.live
        live.post(live.jobs.clear)
        self._end_after_exits()

    def _end_after_exits(self) -> None:
        while len(self.run.outcome.exits) < len(self.launcher.running()):
            time.sleep(0.05)
        self.run.interrupt()

    def _watch(self, over: threading.Event) -> None:
        """Where the job's store listens: it may be replaced on the way."""
        seen: StoreAddress | None = None
        while not over.wait(0.05):
            address = StoreAddress.read(str(self.launcher.job_dir))
            if address is not None and address != seen:
                seen = address
                ports = (address.port, address.membership_port)
                self.listeners |= {found for found in listeners() if found[0] in ports}

    def nothing_is_left(self) -> None:
        """No process of this job, nor its store, nor a port, nor shared memory."""
        until = time.monotonic() + PATIENCE
        while left := self._processes() or self._shared_memory() or self._ports():
            assert time.monotonic() < until, f"still there: {left}"
            time.sleep(0.1)

    def _ports(self) -> set[tuple[int, str]]:
        """Sockets, not only ports: those are soon given to another test's store."""
        return self.listeners & listeners() if self.listeners else set()

    def _processes(self) -> list[psutil.Process]:
        """Workers, stores and loaders: by what they have open, or by their parent."""
        mark = str(self.launcher.job_dir)
        family = set(self.launcher.family())
        return [
            p
            for p in psutil.process_iter(["pid", "cmdline", "status"])
            if p.info["status"] != psutil.STATUS_ZOMBIE
            and (p.pid in family or self._is_ours(p, mark))
        ]

    def _is_ours(self, process: psutil.Process, mark: str) -> bool:
        if process.pid == os.getpid():
            return False
        if any(mark in word for word in process.info["cmdline"] or ()):
            return True
        try:  # forks of the zygote have its command line; their files tell
            return any(mark in f.path for f in process.open_files())
        except (psutil.Error, OSError):
            return False

    def _shared_memory(self) -> list[str]:
        """What torch left new in /dev/shm, named after a process that is gone."""
        new = set(os.listdir("/dev/shm")) - self.shared_before
        named = [match for name in new if (match := re.match(r"torch_(\d+)_", name))]
        return [match.string for match in named if not psutil.pid_exists(int(match[1]))]


def listeners() -> set[tuple[int, str]]:
    """(port, inode) of every TCP socket of this machine that listens."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()  # 1: local address, 3: state, 9: inode
            if words[3] == "0A":  # TCP_LISTEN
                found.add((int(words[1].rpartition(":")[2], 16), words[9]))
    return found


def elastic(
    zygote: str,
    tmp_path: Path,
    schedule: str,
    *,
    exact: bool = True,
    **env: object,
) -> Elastic:
    out = tmp_path / "out"
    out.mkdir()
    launcher = ForkLauncher(zygote, tmp_path / "forks", cpu_slots(NODE, 4))
    words = {name: str(value) for name, value in env.items()}
    script = words.pop("SCRIPT", "regress.py")
    run = ElasticRun(
        ["python", str(SCRIPTS / script)],
        parse_schedule(schedule, 4),
        slots=4,
        directory=tmp_path,
        exact=exact,
        env={**os.environ, "OUT": str(out), "PYTHONPATH": "", **words},
        cwd=tmp_path,
        launcher=launcher,
    )
    return Elastic(run, out, launcher)
