"""`ones bench scale`: one controller and very many workers, which speak the wire protocol of real
ones and do not train.

The service is that of `bench_control_emulated`, whose launcher starts nothing. All workers are
played by one thread here: each keeps one connection, on which it waits for orders, and a
job's first worker has a second one for its reports, as in real training.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ones.errors import WorldError
from ones.lab.bench_control_service import cpu_percent, wait_for
from ones.lab.bench_fidelity_live import Connect, scratch
from ones.lab.scripts import check_installed
from ones.wire import Orders, Reports, pack, unpack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import End, Joined, Order, Ready, Report, Steps, Switch

SIZES = (1024, 10240)
PER_JOB = 64  # workers of a job
SECONDS = 10.0
ASK_SECONDS = 20  # a long-poll, as of real workers
AT_ONCE = 128  # connections that are being made
SETTLE_SECONDS = 600.0
JOINED = Joined(
    dataset_size=50_000,
    base_batch=64,
    optimizer="sgd",
    parameter_bytes=1 << 20,
    max_local_batch=256,
)


def bench_scale(
    connect: Connect,
    sizes: Sequence[int] = SIZES,
    *,
    per_job: int = PER_JOB,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    check_installed("ones bench scale", "fastapi", "sqlalchemy", "uvicorn")
    rows = []
    for size in sizes:
        progress(f"{size} workers")
        with scratch(None) as home:
            rows.append(_one_size(connect, home, size, min(size, per_job), seconds))
    return rows


def _one_size(
    connect: Connect, home: Path, workers: int, per_job: int, seconds: float
) -> dict[str, Any]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < workers + 500:
        raise WorldError(f"{workers} workers: only {most} files may be open; see ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    command = [sys.executable, "-m", "ones.lab.bench_control_emulated"]
    process = subprocess.Popen(
        [*command, str(home), str(workers), "fifo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        return asyncio.run(_measure(connect, home, process, workers // per_job, per_job, seconds))
    finally:
        process.terminate()
        process.communicate(timeout=120)


async def _measure(
    connect: Connect,
    home: Path,
    process: subprocess.Popen[bytes],
    jobs: int,
    per_job: int,
    seconds: float,
) -> dict[str, Any]:
    from ones.control.statedir import StateDir

    directory = StateDir(home)
    await asyncio.to_thread(
        wait_for, lambda: (a := directory.address()) is not None and a.pid == process.pid, "service"
    )
    address = directory.address()
    assert address is not None
    client = connect(address.url, directory.read_token() or "")
    crowd = _Crowd(address.url, jobs * per_job)
    reading = asyncio.create_task(crowd.read(process))
    began = time.perf_counter()
    ids: list[str] = []
    for number in range(jobs):
        job = {"command": ["emulated"], "cwd": "/", "name": f"job{number}", "elastic": True}
        job |= {"requested_gpus": per_job, "min_gpus": per_job, "max_gpus": per_job}
        ids.append((await asyncio.to_thread(client.post, "/api/jobs", job))["id"])
    await asyncio.wait_for(crowd.all_train.wait(), SETTLE_SECONDS)
    settled = time.perf_counter() - began
    busy = asyncio.create_task(asyncio.to_thread(cpu_percent, process.pid, seconds))
    reports = await crowd.report(seconds)
    cpu = await busy
    fanouts = []
    for id in ids[: min(jobs, 8)]:
        asked = time.perf_counter()
        await asyncio.to_thread(client.post, f"/api/jobs/{id}/cancel")
        await asyncio.wait_for(crowd.jobs[id].all_told.wait(), SETTLE_SECONDS)
        fanouts.append(crowd.jobs[id].last_order - asked)
    await crowd.close(reading)
    return {
        "case": f"{jobs * per_job} workers", "workers": jobs * per_job, "jobs": jobs,
        "n": len(fanouts), "reports_per_second": round(reports / seconds, 1),
        "plan_fanout_ms": round(1000 * statistics.median(fanouts), 1),
        "plan_fanout_max_ms": round(1000 * max(fanouts), 1),
        "settled_seconds": round(settled, 1), "busy_cpu_percent": cpu,
        "peak_mb": _peak_mb(process.pid),
    }  # fmt: skip


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise WorldError(f"process {pid} is gone")


@dataclass(slots=True)
class _Job:
    workers: list[_Worker] = field(default_factory=list)
    last_order: float = 0.0
    training: int = 0
    told: int = 0
    all_told: asyncio.Event = field(default_factory=asyncio.Event)


class _Crowd:
    def __init__(self, url: str, workers: int) -> None:
        where = urlsplit(url)
        self.host, self.port = where.hostname or "", where.port or 80
        self.expected = workers
        self.jobs: dict[str, _Job] = {}
        self.training = 0
        self.all_train = asyncio.Event()
        self.doors = asyncio.Semaphore(AT_ONCE)
        self._tasks: list[asyncio.Task[None]] = []
        self._problem: BaseException | None = None

    async def read(self, process: subprocess.Popen[bytes]) -> None:
        """Who is to be started, line by line."""
        assert process.stdout is not None
        reader = asyncio.StreamReader(limit=1 << 22)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            await self._start_all(reader)
        finally:
            pipe.close()

    async def _start_all(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            said = json.loads(line)
            if "env" not in said:
                return
            env = {**said["env"], "ONES_RUN_DIR": "-", "ONES_JOB_DIR": "-"}
            environment = WorkerEnvironment.from_env(env)
            assert environment is not None
            worker = _Worker(self, environment)
            self.jobs.setdefault(environment.job, _Job()).workers.append(worker)
            task = asyncio.create_task(worker.live())
            task.add_done_callback(self._look_at)
            self._tasks.append(task)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._problem = problem
            self.all_train.set()

    async def report(self, seconds: float) -> int:
        """First workers say how far they are, each as soon as it was heard."""
        if self._problem is not None:
            raise WorldError(f"an emulated worker failed: {self._problem!r}")
        until = time.perf_counter() + seconds
        first = [job.workers[0] for job in self.jobs.values()]
        counts = await asyncio.gather(*(worker.report(until) for worker in first))
        return sum(counts)

    async def close(self, reading: asyncio.Task[None]) -> None:
        for task in (reading, *self._tasks):
            task.cancel()
        await asyncio.gather(reading, *self._tasks, return_exceptions=True)
        await asyncio.sleep(0.1)  # connections are closed a turn later


class _Worker:
    def __init__(self, crowd: _Crowd, environment: WorkerEnvironment) -> None:
        self._crowd, self._environment = crowd, environment
        self._plan, self._seen, self._said = environment.plan, 0, 0
        self._token = environment.token

    async def live(self) -> None:
        job = self._crowd.jobs[self._environment.job]
        line = _Line(self._crowd, self._token)
        try:
            await self._train(line)
        finally:
            line.close()
        job.last_order = time.perf_counter()
        job.told += 1
        if job.told == len(job.workers):
            job.all_told.set()

    async def _train(self, line: _Line) -> None:
        """Until it is told that the job has ended."""
        order = await self._say(line, JOINED)
        while not isinstance(order, End):
            if isinstance(order, Switch):
                self._plan = order.plan
                await self._say(line, Ready())
                self._crowd.training += 1
                if self._crowd.training == self._crowd.expected:
                    self._crowd.all_train.set()
            order = self._taken(await line.ask(self._message(()), ASK_SECONDS))

    async def report(self, until: float) -> int:
        line, count = _Line(self._crowd, self._token), 0
        while time.perf_counter() < until:
            count += 1
            await self._say(line, Steps(epoch=1, steps=count, samples=64 * count))
        line.close()
        return count

    async def _say(self, line: _Line, report: Report) -> Order | None:
        answer = await line.ask(self._message((report,)), 0)
        self._said += 1
        return self._taken(answer)

    def _message(self, reports: tuple[Report, ...]) -> bytes:
        return pack(
            Reports(
                job=self._environment.job,
                worker=self._environment.worker,
                plan=self._plan,
                first=self._said + 1 if reports else 0,
                reports=reports,
                seen=self._seen,
            )
        )

    def _taken(self, answer: Orders) -> Order | None:
        if answer.order is not None:
            self._seen = max(self._seen, answer.order.plan)
        return answer.order


class _Line:
    """One connection that is kept."""

    def __init__(self, crowd: _Crowd, token: str) -> None:
        self._crowd, self._token = crowd, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, wait: int) -> Orders:
        if self._streams is None:
            async with self._crowd.doors:
                self._streams = await asyncio.open_connection(self._crowd.host, self._crowd.port)
        reader, writer = self._streams
        head = f"POST /worker/reports?wait={wait} HTTP/1.1\r\nHost: ones\r\n"
        head += f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = await reader.readline()
        length = 0
        while (line := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        data = await reader.readexactly(length)
        if b" 200 " not in status:
            raise WorldError(f"the controller answered {status!r}: {data!r}")
        answer = unpack(data)
        assert isinstance(answer, Orders)
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
