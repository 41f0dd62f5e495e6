"""Emulated workers: thousands in one thread, which speak worker protocol 1 and do not train.

Each worker has one connection, on which it waits for orders. The first worker of a job reports
progress on a second one, as in real training. Both cost as little as possible, because the
controller is measured on the machine that it shares with the workers.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ones.errors import WorldError
from ones.lab.bench.emulation.connection import WorkerConnection, WorkerFencedError
from ones.lab.bench.emulation.progress import JOINED, EmulatedProgress
from ones.wire import Reports, pack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Leaving, Ready, Report, Switched

POLL_SECONDS = 20  # of a long-poll, as of real workers
MAX_CONNECTING = 128  # connections that are being made at a time


@dataclass(slots=True)
class EmulatedJob:
    workers: dict[str, EmulatedWorker] = field(default_factory=dict)  # by GPU
    plan: int = 0
    members: tuple[str, ...] = ()  # GPUs of the workers that train, by rank
    progress: EmulatedProgress = field(default_factory=EmulatedProgress)
    ended: int = 0  # members that received the order to end
    last_end: float = 0.0  # when the last of them received it
    all_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first(self) -> EmulatedWorker | None:
        """The worker that reports progress."""
        worker = self.workers.get(self.members[0]) if self.members else None
        return worker if worker is not None and worker.is_member else None

    def switch(self, order: dict[str, Any]) -> None:
        """All members get the same order; it is read once."""
        if order["plan"] > self.plan:
            self.plan, self.progress.batch = order["plan"], order["batch"]
            self.members = tuple(member["worker"] for member in order["members"])


class EmulatedWorkers:
    """All emulated workers of one service.

    `expected`: number of workers that sets `all_ready`. `epoch_reports`: reports of a job after
    which an epoch ends; None: no epoch ever ends. `leaves`: a worker that is ordered to leave
    reports that and exits; else it sends nothing more.
    """

    def __init__(
        self,
        url: str,
        *,
        expected: int | None = None,
        epoch_reports: int | None = None,
        leaves: bool = False,
    ) -> None:
        where = urlsplit(url)
        self.address = where.hostname or "", where.port or 80
        self.connecting = asyncio.Semaphore(MAX_CONNECTING)
        self.epoch_reports, self.leaves = epoch_reports, leaves
        self.jobs: dict[str, EmulatedJob] = {}
        self.running: dict[str, EmulatedWorker] = {}  # by launch
        self.all_ready = asyncio.Event()
        self._expected, self._ready = expected, 0
        self.reports = 0
        self.decisions: list[float] = []  # seconds of each; known when the service has ended
        self._tasks: list[asyncio.Task[None]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: BaseException | None = None

    def job(self, id: str) -> EmulatedJob:
        return self.jobs.setdefault(id, EmulatedJob())

    async def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Starts a worker for each line that the service's launcher writes."""
        assert process.stdout is not None
        self._process = process
        reader = asyncio.StreamReader(limit=1 << 22)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        try:
            while line := await reader.readline():
                message = json.loads(line)
                if "decisions" in message:
                    self.decisions = message["decisions"]
                elif self._process is not None:
                    self._start(message["id"], message["env"])
        finally:
            pipe.close()

    def _start(self, id: str, env: dict[str, str]) -> None:
        environment = WorkerEnvironment.from_env({**env, "ONES_RUN_DIR": "-", "ONES_JOB_DIR": "-"})
        assert environment is not None
        worker = self.running[id] = EmulatedWorker(self, id, environment)
        self.job(environment.job).workers[environment.worker] = worker
        task = asyncio.create_task(worker.run())
        task.add_done_callback(self._check_task)
        self._tasks.append(task)

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._problem = problem
            self.all_ready.set()
            for job in self.jobs.values():
                job.all_ended.set()

    def check(self) -> None:
        if self._problem is not None:
            raise WorldError(f"an emulated worker failed: {self._problem!r}")

    def count_ready(self) -> None:
        self._ready += 1
        if self._ready == self._expected:
            self.all_ready.set()

    def exited(self, id: str) -> None:
        self.running.pop(id, None)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(id.encode() + b"\n")
            self._process.stdin.flush()

    async def report(
        self, seconds: float, every: float | None, *, staggered: bool = True
    ) -> list[float]:
        """All jobs report progress: each as soon as its last report is acknowledged, or every
        `every` seconds, staggered or together. Returns the seconds to acknowledgements."""
        until = time.perf_counter() + seconds
        delay = (every or 0.0) / max(1, len(self.jobs)) if staggered else 0.0
        waits = await asyncio.gather(
            *(
                self._report(job, until, every, delay * n)
                for n, job in enumerate(self.jobs.values())
            )
        )
        self.check()
        return [wait for some in waits for wait in some]

    async def _report(
        self, job: EmulatedJob, until: float, every: float | None, delay: float
    ) -> list[float]:
        waits: list[float] = []
        due = time.perf_counter() + delay
        while max(due, time.perf_counter()) < until:
            if every is not None:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += every
            if (worker := job.first) is not None:
                began = time.perf_counter()
                if await worker.report_progress():
                    waits.append(time.perf_counter() - began)
            elif every is None:
                return waits
        return waits

    async def close(self) -> None:
        """Ends all workers; what the launcher still starts is ignored."""
        self._process = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.running.values():
            worker.close()
        await asyncio.sleep(0.1)  # connections are closed one turn of the loop later


class EmulatedWorker:
    def __init__(self, workers: EmulatedWorkers, id: str, environment: WorkerEnvironment) -> None:
        self._workers, self._id, self._environment = workers, id, environment
        self._job = workers.job(environment.job)
        self.is_member = False
        self._plan, self._seen, self._reported = environment.plan, 0, 0
        self._orders: deque[dict[str, Any]] = deque()
        self._reporting = asyncio.Lock()  # reports are numbered: one message at a time
        self._report_connection: WorkerConnection | None = None

    async def run(self) -> None:
        """Joins, then carries out orders until the order to leave."""
        connection = await self._connect()
        try:
            await self._report(connection, JOINED)
            stays = True
            while stays:
                if not self._orders:
                    await self._exchange(connection, (), POLL_SECONDS)
                while stays and self._orders:
                    stays = await self._obey(connection, self._orders.popleft())
            if self._workers.leaves:
                await self._report(connection, Leaving())
        except WorkerFencedError:
            if not self._workers.leaves:
                raise
        finally:
            connection.close()
        self.is_member = False
        if self._workers.leaves:
            self.close()
            self._workers.exited(self._id)

    async def _obey(self, connection: WorkerConnection, order: dict[str, Any]) -> bool:
        """False: the worker leaves."""
        job, me = self._job, self._environment.worker
        if order["type"] == "End":
            job.last_end = time.perf_counter()
            job.ended += 1
            if job.ended == len(job.members):
                job.all_ended.set()
        if order["type"] != "Switch":
            return bool(order["type"] == "Withdraw")
        job.switch(order)
        if me not in job.members:
            return False
        self._plan = order["plan"]
        was_member, self.is_member = self.is_member, True
        if not was_member:
            await self._report(connection, Ready())
            self._workers.count_ready()
        if me == job.members[0] and (was_member or len(job.members) > 1):
            await self._report(connection, Switched(0.05, job.members))
        return True

    async def report_progress(self) -> bool:
        """False: the worker is not a member of its job any more."""
        if self._report_connection is None:
            self._report_connection = await self._connect()
        try:
            workers, epoch_reports = len(self._job.members), self._workers.epoch_reports
            reports = self._job.progress.next_reports(workers, epoch_reports)
            await self._report(self._report_connection, *reports)
        except WorkerFencedError:
            if not self._workers.leaves:
                raise
            self.is_member = False
        return self.is_member

    async def _report(self, connection: WorkerConnection, *reports: Report) -> None:
        async with self._reporting:
            await self._exchange(connection, reports, 0)
            self._reported += len(reports)
            self._workers.reports += len(reports)

    async def _exchange(
        self, connection: WorkerConnection, reports: tuple[Report, ...], wait: int
    ) -> None:
        message = Reports(
            job=self._environment.job,
            worker=self._environment.worker,
            plan=self._plan,
            first=self._reported + 1 if reports else 0,
            reports=reports,
            seen=self._seen,
        )
        # not by the codec: every member of a wide job reads an order with a thousand members
        order = json.loads(await connection.ask(pack(message), wait)).get("order")
        if order is not None and order.get("plan", 0) > self._seen:
            self._seen = order["plan"]
            self._orders.append(order)

    async def _connect(self) -> WorkerConnection:
        async with self._workers.connecting:
            return await WorkerConnection.open(self._workers.address, self._environment.token)

    def close(self) -> None:
        if self._report_connection is not None:
            self._report_connection.close()
