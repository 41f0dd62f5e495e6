"""Very many workers in one thread: they speak the wire protocol of real ones and do not train.

Each keeps one connection, on which it waits for orders; a job's first worker has a second one
for its reports, as in real training. What they cost is as little as can be: the controller is
what is measured, on a machine that both share.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ones.errors import WorldError
from ones.wire import Reports, pack
from ones.wire.environment import WorkerEnvironment
from ones.wire.messages import Joined, Ready, Report, Steps

ASK_SECONDS = 20  # a long-poll, as of real workers
AT_ONCE = 128  # connections that are being made
JOINED = Joined(
    dataset_size=50_000,
    base_batch=64,
    optimizer="sgd",
    parameter_bytes=1 << 20,
    max_local_batch=256,
)


@dataclass(slots=True)
class EmulatedJob:
    workers: list[EmulatedWorker] = field(default_factory=list)
    told: int = 0
    last_order: float = 0.0
    all_told: asyncio.Event = field(default_factory=asyncio.Event)


class Crowd:
    def __init__(self, url: str, workers: int) -> None:
        where = urlsplit(url)
        self.host, self.port = where.hostname or "", where.port or 80
        self.expected, self.training = workers, 0
        self.jobs: dict[str, EmulatedJob] = {}
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
            while line := await reader.readline():
                said = json.loads(line)
                if "env" not in said:
                    return
                self._start({**said["env"], "ONES_RUN_DIR": "-", "ONES_JOB_DIR": "-"})
        finally:
            pipe.close()

    def _start(self, env: dict[str, str]) -> None:
        environment = WorkerEnvironment.from_env(env)
        assert environment is not None
        worker = EmulatedWorker(self, environment)
        self.jobs.setdefault(environment.job, EmulatedJob()).workers.append(worker)
        task = asyncio.create_task(worker.live())
        task.add_done_callback(self._look_at)
        self._tasks.append(task)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._problem = problem
            self.all_train.set()
            for job in self.jobs.values():
                job.all_told.set()

    def check(self) -> None:
        if self._problem is not None:
            raise WorldError(f"an emulated worker failed: {self._problem!r}")

    async def report(self, seconds: float, every: float | None) -> list[float]:
        """First workers say how far they are, each as soon as it was heard, or `every` so many
        seconds; how long each report took to be acknowledged."""
        first = [job.workers[0] for job in self.jobs.values()]
        until = time.perf_counter() + seconds
        waits = await asyncio.gather(
            *(
                worker.report(until, every, (every or 0.0) * n / len(first))
                for n, worker in enumerate(first)
            )
        )
        self.check()
        return [wait for some in waits for wait in some]

    async def close(self, reading: asyncio.Task[None]) -> None:
        for task in (reading, *self._tasks):
            task.cancel()
        await asyncio.gather(reading, *self._tasks, return_exceptions=True)
        await asyncio.sleep(0.1)  # connections are closed a turn later


class EmulatedWorker:
    def __init__(self, crowd: Crowd, environment: WorkerEnvironment) -> None:
        self._crowd, self._environment = crowd, environment
        self._plan, self._seen, self._said = environment.plan, 0, 0
        self._token = environment.token
        self._steps = 0

    async def live(self) -> None:
        """Until it is told that the job has ended."""
        job = self._crowd.jobs[self._environment.job]
        line = await Line.open(self._crowd, self._token)
        try:
            order = await self._say(line, JOINED)
            while order is None or order["type"] != "End":
                if order is not None and order["type"] == "Switch":
                    self._plan = order["plan"]
                    await self._say(line, Ready())
                    self._crowd.training += 1
                    if self._crowd.training == self._crowd.expected:
                        self._crowd.all_train.set()
                order = self._taken(await line.ask(self._message(()), ASK_SECONDS))
            job.last_order = time.perf_counter()
            job.told += 1
            if job.told == len(job.workers):
                job.all_told.set()
        finally:
            line.close()

    async def report(self, until: float, every: float | None, delay: float) -> list[float]:
        line = await Line.open(self._crowd, self._token)
        waits: list[float] = []
        due = time.perf_counter() + delay
        while max(due, time.perf_counter()) < until:
            if every is not None:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                due += every
            began = time.perf_counter()
            self._steps += 1
            await self._say(line, Steps(epoch=1, steps=self._steps, samples=64 * self._steps))
            waits.append(time.perf_counter() - began)
        line.close()
        return waits

    async def _say(self, line: Line, report: Report) -> dict[str, Any] | None:
        answer = await line.ask(self._message((report,)), 0)
        self._said += 1
        return self._taken(answer)

    def _message(self, reports: Sequence[Report]) -> bytes:
        return pack(
            Reports(
                job=self._environment.job,
                worker=self._environment.worker,
                plan=self._plan,
                first=self._said + 1 if reports else 0,
                reports=tuple(reports),
                seen=self._seen,
            )
        )

    def _taken(self, answer: bytes) -> dict[str, Any] | None:
        """Not by the codec: an order to a thousand members is read by each of them here."""
        order: dict[str, Any] | None = json.loads(answer).get("order")
        if order is not None:
            self._seen = max(self._seen, order.get("plan", 0))
        return order


class Line(asyncio.Protocol):
    """One connection that is kept, with one question at a time."""

    def __init__(self, token: str) -> None:
        self._head = (
            " HTTP/1.1\r\nHost: ones\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {token}\r\nContent-Length: "
        ).encode()
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, crowd: Crowd, token: str) -> Line:
        loop = asyncio.get_running_loop()
        async with crowd.doors:
            _, line = await loop.create_connection(lambda: cls(token), crowd.host, crowd.port)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, body: bytes, wait: int) -> bytes:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        head = b"POST /worker/reports?wait=%d%s%d\r\n\r\n" % (wait, self._head, len(body))
        self._transport.write(head + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length or self._answer is None or self._answer.done():
            return
        self._buffer = b""
        status = head.split(b" ", 2)[1]
        if status == b"200":
            self._answer.set_result(body)
        else:
            self._answer.set_exception(WorldError(f"the controller answered {status!r}: {body!r}"))

    def connection_lost(self, problem: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorldError(f"the connection was lost: {problem}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
