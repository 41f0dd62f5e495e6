"""The worker API: its answers, and which workers it wakes."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message, Scope

from ones.config import ServiceSettings
from ones.control.api.errors import LARGEST_REQUEST
from ones.control.api.loop_waker import loop_waker
from ones.control.api.worker_api import WorkerApi
from ones.control.clock import Clock
from ones.control.limits import Limits
from ones.control.live.jobs import LiveJob, LiveWorker
from ones.control.live.mailbox import Mailbox
from ones.control.live.worker_exchange import PATH
from ones.control.service import Service
from ones.control.submission import Submission
from ones.control.tokens import JobTokens
from ones.core.cluster import Gpu, NodeId
from ones.core.job import JobId
from ones.wire import Orders, Reports, pack, unpack
from ones.wire.messages import End, Member, Order, Ready, Switch
from tests.processes import PATIENCE

GPU = Gpu(NodeId("n0"), 0)
LAUNCH = "a-1~1~n0.0"
ASK = Reports(job="a-1", worker="n0/0", plan=1, first=0)
SWITCH = Switch(plan=2, members=(Member(worker="n0/0", batch=8),), batch=8, base_batch=8)


class Desk:
    """What the door needs of a service, with real orders and tokens behind it."""

    def __init__(self) -> None:
        job = LiveJob(JobId("a-1"), Submission(name="a", argv=("true",), cwd="/"))
        job.workers[LAUNCH] = LiveWorker(LAUNCH, (GPU,), 1)
        self.job = job
        self.closing = False
        self.tokens = JobTokens(b"key")
        self.tokens.of(job.id)
        self.tokens.of("ended-2")
        self.refused: Counter[int] = Counter()
        self.limits = Limits.of(ServiceSettings())
        self.engine = SimpleNamespace(
            live=SimpleNamespace(jobs={job.id: job}, last_call={}, mailbox=Mailbox(), clock=Clock())
        )
        self.heard: list[Reports] = []

    def report(self, message: Reports, done: Any) -> None:  # noqa: ANN401
        self.heard.append(message)
        threading.Thread(target=done, args=(None,)).start()  # as the writer does

    def problems(self) -> list[str]:
        return []


class Caller:
    def __init__(self) -> None:
        self.desk = Desk()
        self.door = WorkerApi(self._elsewhere, cast(Service, self.desk))

    @staticmethod
    async def _elsewhere(scope: Scope, receive: Any, send: Any) -> None:  # noqa: ANN401
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(
        self, body: bytes, wait: str = "0", *, path: str = PATH, method: str = "POST",
        token: str | None = None,
    ) -> tuple[int, bytes]:  # fmt: skip
        told = self.desk.tokens.of("a-1") if token is None else token
        scope = {
            "type": "http", "path": path, "method": method,
            "query_string": f"wait={wait}".encode(),
            "headers": [(b"authorization", f"Bearer {told}".encode("latin-1"))],
        }  # fmt: skip
        parts = [body[:5], body[5:]]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.door(scope, receive, send)
        return sent[0]["status"], sent[1]["body"]


def run(work: Any) -> Any:  # noqa: ANN401
    """In a thread of its own: an earlier test may have left this one a running loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ({"method": "GET"}, 405, "Method Not Allowed"),
        ({"wait": "61"}, 422, "wait: '61' is not in 0..60 seconds"),
        ({"wait": "nan"}, 422, "wait: 'nan' is not in 0..60 seconds"),
        ({"body": b"[" + b" " * LARGEST_REQUEST + b"]"}, 413, "the limit is 4194304 bytes"),
        ({"body": b"{"}, 422, "is not JSON"),
        ({"body": pack(Orders(acknowledged=1))}, 422, "type: Orders is not Reports"),
        ({"token": "other"}, 401, "missing or invalid token of a job"),
        ({"token": "\xf6ther"}, 401, "missing or invalid token of a job"),
        ({"token": JobTokens(b"key").of("b-2")}, 401, "missing or invalid token of a job"),
        ({"token": JobTokens(b"key").of("ended-2")}, 409, "no longer part of its job"),
        (
            {"body": pack(Reports(job="b-2", worker="n0/0", plan=1, first=0))},
            401,
            "the token is not that of job b-2",
        ),
        ({"body": pack(Reports(job="a-1", worker="x", plan=1, first=0))}, 422, "worker: 'x'"),
        (
            {"body": pack(Reports(job="a-1", worker="n0/1", plan=1, first=0))},
            409,
            "no longer part of its job",
        ),
        (
            {"body": pack(Reports(job="a-1", worker="n0/0", plan=0, first=0))},
            409,
            "no longer part of its job",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: dict[str, Any], status: int, text: str) -> None:
    found, body = run(Caller().ask(**{"body": pack(ASK), **words}))
    assert found == status
    assert text in json.loads(body)["error"]


def test_other_paths_are_none_of_its_business() -> None:
    assert run(Caller().ask(b"", path="/api/jobs"))[0] == 418


@pytest.mark.parametrize("order", [None, SWITCH, End("cancelled", 3)])
@pytest.mark.parametrize("store", ["", "10.0.0.1:1234"])
def test_answers_equal_the_codecs_output(order: Order | None, store: str) -> None:
    caller = Caller()
    caller.desk.job.store = store
    if order is not None:
        caller.desk.engine.live.mailbox.put(LAUNCH, order)

    async def twice() -> list[bytes]:
        message = Reports(job="a-1", worker="n0/0", plan=1, first=7, reports=(Ready(), Ready()))
        return [(await caller.ask(pack(message)))[1], (await caller.ask(pack(ASK)))[1]]

    reported, asked = run(twice())
    assert unpack(reported) == Orders(acknowledged=8, order=order, store=store)
    assert unpack(asked) == Orders(acknowledged=0, order=order, store=store)
    assert len(caller.desk.heard) == 1


def test_a_waiting_worker_gets_an_order_at_once_and_others_at_the_end() -> None:
    caller = Caller()
    mailbox = caller.desk.engine.live.mailbox

    async def wait() -> tuple[Any, Any]:
        waiting = asyncio.create_task(caller.ask(pack(ASK), "50"))
        while not caller.door._waiting:
            await asyncio.sleep(0.01)
        threading.Thread(target=mailbox.put, args=(LAUNCH, SWITCH)).start()
        told = unpack((await waiting)[1])
        seen = pack(Reports(job="a-1", worker="n0/0", plan=1, first=0, seen=2))
        waiting = asyncio.create_task(caller.ask(seen, "50"))
        while not caller.door._waiting:
            await asyncio.sleep(0.01)
        caller.desk.closing = True  # within half a second, not fifty
        return told, unpack((await waiting)[1])

    told, ended = run(asyncio.wait_for(wait(), 45))  # less than one wait of fifty seconds
    assert told.order == SWITCH
    assert ended.order is None
    assert not caller.door._waiting


class Tower:
    """A waker, threads that use it, and the number of times that the loop was woken."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        self.woken, self.rings = 0, loop_waker()
        self._loop = asyncio.get_running_loop()
        self._wake = self._loop.call_soon_threadsafe
        setattr(self._loop, "call_soon_threadsafe", self._count)  # noqa: B010

    def _count(self, *words: Any) -> Any:  # noqa: ANN401
        self.woken += 1
        return self._wake(*words)

    def ring(self, who: int) -> None:
        for number in range(2000):
            self.rings.ring(partial(self.heard.append, (who, number)))

    def ringers(self, count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.ring, args=(who,)) for who in range(count)]
        for thread in threads:
            thread.start()
        return threads


def test_a_bell_wakes_the_loop_once_for_all_that_has_gathered() -> None:
    async def listen() -> Tower:
        tower = Tower()
        (ringer,) = tower.ringers(1)
        ringer.join()  # while the loop is busy here
        while len(tower.heard) < 2000:
            await asyncio.sleep(0.001)
        return tower

    tower = run(asyncio.wait_for(listen(), PATIENCE))
    assert tower.heard == [(0, number) for number in range(2000)]
    assert tower.woken == 1


def test_a_waker_used_by_many_threads_loses_no_wakeup() -> None:
    async def listen() -> Tower:
        tower = Tower()
        ringers = tower.ringers(4)
        while len(tower.heard) < 8000:
            await asyncio.sleep(0.001)
        for ringer in ringers:
            ringer.join()
        return tower

    heard = run(asyncio.wait_for(listen(), PATIENCE)).heard
    assert len(set(heard)) == 8000
    assert [n for who, n in heard if who == 3] == list(range(2000)), "in order for each thread"


def test_the_service_takes_as_many_files_as_it_may_have() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = (
        "import resource as r; from ones.control.server import allow_many_files\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, hard))\n"
        "allow_many_files(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    most = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    assert done.stdout.split() == [str(most), str(hard)]
