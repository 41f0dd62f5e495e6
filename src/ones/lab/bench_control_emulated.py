"""Workers without training: they speak the wire protocol of real ones, each over its own lines.

The service runs in a process of its own (`python -m ones.lab.bench_control_emulated`) with a
launcher that starts nothing: it writes what it would start to its standard output, and reads who
has gone from its standard input. The other side of both pipes plays all the workers.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.exec import Chunk, Exit
from ones.lab.bench_control_service import (
    cpu_percent,
    memory_mb,
    own_memory_mb,
    percentile_ms,
    wait_for,
)
from ones.lab.bench_fidelity_live import Connect
from ones.launchers import Exited, Launch, Process, Slot, Started
from ones.launchers.api import Listener
from ones.train.controller_client import ControllerClient
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import (
    Epoch,
    Joined,
    Leaving,
    Order,
    Ready,
    Speed,
    Steps,
    Switch,
    Switched,
)

NODE = "emulated"
DATASET, BATCH, STEP_SECONDS = 50_000, 64, 0.1
STEPS_EVERY, EPOCH_EVERY = 0.5, 5.0  # seconds, as real workers report


# the service's side


class PipeLauncher:
    """Says what is to be started; who reads it plays the processes."""

    def __init__(self, slots: int, per_node: int | None = None) -> None:
        size = per_node or slots
        names = {index // size: f"{NODE}{index // size}" for index in range(slots)}
        if len(names) == 1:
            names = {0: NODE}
        self._slots = [Slot(node=names[i // size], index=i % size) for i in range(slots)]
        self._processes: dict[str, Process] = {}
        self._lock = threading.Lock()

    def open(self, listener: Listener) -> None:
        self._listener = listener
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._gone(line.strip())

    def _gone(self, id: str) -> None:
        exit = Exit(code=0, at=time.time(), cause="exited")
        with self._lock:
            known = self._processes.get(id)
            if known is None or known.exit is not None:
                return
            self._processes[id] = Process(
                id=id, job=known.job, slots=known.slots, pid=known.pid, exit=exit
            )
        self._listener(Exited(id, exit))

    def slots(self) -> list[Slot]:
        return self._slots

    def launch(self, launch: Launch) -> None:
        with self._lock:
            process = Process(id=launch.id, job=launch.job, slots=launch.slots, pid=1)
            self._processes[launch.id] = process
        print(json.dumps({"id": launch.id, "env": dict(launch.env)}), flush=True)
        self._listener(Started(launch.id, 1))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._gone(id)

    def running(self) -> dict[str, Process]:
        with self._lock:
            return dict(self._processes)

    def history(self, job: str) -> list[Process]:
        return [process for process in self.running().values() if process.job == job]

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return Chunk(b"", 0, 0)

    def forget(self, job: str) -> None:
        with self._lock:
            self._processes = {k: p for k, p in self._processes.items() if p.job != job}

    def close(self, *, kill: bool) -> None:
        pass


def main() -> None:
    """STATE SLOTS POLICY [GPUS_PER_NODE]: serve until SIGTERM; then how long decisions took, as a
    last line."""
    import uvicorn

    from ones.control.api import WorkerDoor, create_app
    from ones.control.page import add_page
    from ones.control.server import allow_many_files
    from ones.control.service import Options, Service
    from ones.control.statedir import Address, StateDir

    state, slots, policy, *per_node = sys.argv[1:]
    allow_many_files()
    directory = StateDir(Path(state))
    launcher = PipeLauncher(int(slots), *map(int, per_node))
    service = Service(directory, launcher, Options(policy=policy))
    app = create_app(service)
    add_page(app)
    # by its full name: asyncio sends small answers at once only over what says it is TCP
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(
        uvicorn.Config(
            WorkerDoor(app, service), log_level="critical", access_log=False, lifespan="off",
            timeout_keep_alive=60, timeout_graceful_shutdown=1,
        )
    )  # fmt: skip
    service.start(url)
    service.first_admin()
    directory.write_address(Address(pid=os.getpid(), url=url))
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # uvicorn raises it once more
    server.run(sockets=[listener])
    service.closing = True
    service.stop()
    with suppress(BrokenPipeError):  # nobody may want to know
        print(json.dumps({"decisions": list(service.engine.decision_seconds)}), flush=True)


# the workers' side


@dataclass(slots=True)
class _Group:
    """What the workers of a job know of one another."""

    members: tuple[str, ...] = ()
    epoch: int = 0
    samples: int = 0
    batch: int = BATCH
    first: str = ""


@dataclass(slots=True)
class Crowd:
    """All emulated workers."""

    tell_exit: Any  # what a process that is gone is told to
    jobs: dict[str, _Group] = field(default_factory=dict)
    workers: dict[str, _Worker] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    said: int = 0  # reports

    def start(self, id: str, env: dict[str, str]) -> None:
        environment = WorkerEnvironment.from_env({**env, "ONES_RUN_DIR": "-", "ONES_JOB_DIR": "-"})
        assert environment is not None
        worker = _Worker(self, id, environment)
        with self.lock:
            self.workers[id] = worker
            self.jobs.setdefault(environment.job, _Group())
        worker.start()

    def gone(self, id: str) -> None:
        with self.lock:
            worker = self.workers.pop(id, None)
        if worker is not None:
            self.tell_exit(id)

    def still(self) -> None:
        """Nobody calls any more."""
        for worker in self.workers.values():
            worker.client.stop()

    def wait(self) -> None:
        """Until the lines of all are closed, which they are soon when nobody answers."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(
            thread.name.startswith("ones-") for thread in threading.enumerate()
        ):
            time.sleep(0.05)

    def report(self, seconds: float) -> None:
        """First workers say how far they are, as often as real ones."""
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            time.sleep(STEPS_EVERY)
            number += 1
            with self.lock:
                present = list(self.workers.values())
            for worker in present:
                worker.train(epoch_ends=number % round(EPOCH_EVERY / STEPS_EVERY) == 0)


class _Worker:
    def __init__(self, crowd: Crowd, id: str, environment: WorkerEnvironment) -> None:
        self._crowd, self._id = crowd, id
        self._job, self.me = environment.job, environment.worker
        self._member = False
        self.client = ControllerClient(
            environment, on_order=self._obey, on_fenced=self._leave, on_store=lambda address: None
        )

    def _say(self, *reports: Any) -> None:
        for report in reports:
            self._crowd.said += 1
            self.client.report(report)

    def start(self) -> None:
        self.client.start()
        self._say(
            Joined(
                dataset_size=DATASET, base_batch=BATCH, optimizer="sgd", parameter_bytes=1 << 20,
                max_local_batch=4 * BATCH,
            )
        )  # fmt: skip

    def _obey(self, order: Order) -> None:
        group = self._crowd.jobs[self._job]
        if not isinstance(order, Switch):
            self._leave()
            return
        members = tuple(member.worker for member in order.members)
        if self.me not in members:
            self._leave()
            return
        self.client.generation = (order.plan, 0)
        was_in, self._member = self._member, True
        if not was_in:
            self._say(Ready())
        group.members, group.batch, group.first = members, order.batch, members[0]
        if self.me == members[0] and (was_in or len(members) > 1):
            self._say(Switched(0.05, members))

    def _leave(self) -> None:
        self._say(Leaving())
        threading.Thread(target=self._go, daemon=True).start()

    def _go(self) -> None:
        self.client.flush(5.0)
        self.client.stop()
        self._crowd.gone(self._id)

    def train(self, *, epoch_ends: bool) -> None:
        group = self._crowd.jobs[self._job]
        if not self._member or group.first != self.me:
            return
        workers = len(group.members)
        step = STEP_SECONDS * (0.3 + 0.7 * group.batch / (workers * BATCH)) + 0.002 * workers
        group.samples += round(STEPS_EVERY / step) * group.batch
        if not epoch_ends:
            steps = group.samples // group.batch
            self._say(Steps(epoch=group.epoch + 1, steps=steps, samples=group.samples))
            return
        group.epoch += 1
        steps = max(1, group.samples // group.batch)
        samples, group.samples = group.samples, 0
        self._say(
            Speed(
                gpus=workers, nodes=1, batch=group.batch, micro_steps=1, step_seconds=step,
                steps=steps,
            ),
            Epoch(
                epoch=group.epoch, steps=steps, samples=samples, loss=2.0 / group.epoch,
                accuracy=1.0 - 0.9**group.epoch, step_seconds=step,
            ),
        )  # fmt: skip


@contextmanager
def emulated(home: Path, slots: int, policy: str) -> Iterator[tuple[Crowd, list[float], int]]:
    """The crowd, decision times (complete once it is over), and the service's process id."""
    home.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "ones.lab.bench_control_emulated", str(home), str(slots), policy],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    to_service, from_service = process.stdin, process.stdout

    def tell(id: str) -> None:
        to_service.write(id + "\n")
        to_service.flush()

    crowd, decisions = Crowd(tell), list[float]()

    def listen() -> None:
        for line in from_service:
            said = json.loads(line)
            if "decisions" in said:
                decisions.extend(said["decisions"])
            else:
                crowd.start(said["id"], said["env"])

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield crowd, decisions, process.pid
    finally:
        crowd.still()
        process.terminate()
        process.wait(60)
        listener.join(10)
        to_service.close()
        from_service.close()
        crowd.wait()


def bench_emulated(
    connect: Connect, home: Path, *, slots: int, jobs: int, seconds: float, policy: str
) -> dict[str, Any]:
    """The controller with a full cluster that reports."""
    from ones.control.statedir import StateDir

    directory = StateDir(home)
    with emulated(home, slots, policy) as (crowd, decisions, pid):
        wait_for(lambda: (a := directory.address()) is not None and a.pid == pid, "the service")
        address = directory.address()
        assert address is not None
        with closing(connect(address.url, directory.read_token() or "")) as client:
            for number in range(jobs):
                client.post(
                    "/api/jobs",
                    {"command": ["emulated"], "cwd": "/", "name": f"job{number}", "elastic": True,
                     "kind": f"kind{number % 4}", "requested_gpus": 1 + number % 4, "epochs": 1000},
                )  # fmt: skip
        crowd.report(seconds / 2)  # until all slots are taken
        before, began = crowd.said, time.monotonic()
        busy: list[float] = []
        watch = threading.Thread(target=lambda: busy.append(cpu_percent(pid, seconds / 2)))
        watch.start()
        crowd.report(seconds / 2)
        watch.join()
        reports = (crowd.said - before) / (time.monotonic() - began)
        memory, own, workers = memory_mb(pid), own_memory_mb(pid), len(crowd.workers)
    if len(decisions) < 2:
        raise WorldError(f"the emulated service decided {len(decisions)} times")
    # the first one loads the compiled search, if it is still among those that are kept
    first, *later = decisions
    return {
        "case": f"{slots} emulated workers", "policy": policy, "slots": slots, "jobs": jobs,
        "workers": workers, "n": len(decisions), "reports_per_second": round(reports, 1),
        "decision_to_order_ms": percentile_ms(later, 50),
        "decision_to_order_p99_ms": percentile_ms(later, 99),
        "first_decision_ms": round(1000 * first, 1),
        "busy_cpu_percent": busy[0], "busy_mb": memory, "busy_own_mb": own,
    }  # fmt: skip


if __name__ == "__main__":
    main()
