"""Part of `ones bench control`: response times and resources of one real service."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ones.core import events as ev
from ones.errors import WorldError
from ones.lab.bench.live_service import job_environment, live_service, wait_for
from ones.lab.bench.result import percentile_ms
from ones.lab.processes import cpu_percent, memory_mb, private_memory_mb
from ones.lab.service_client import Connect, ServiceClient
from ones.runlog import RunLog


class KeepAliveConnection:
    """A client of one kept-alive connection, as cheap as possible."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
        self._connection.request(method, path, json.dumps(body).encode(), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise WorldError(f"{method} {path}: {answer.status} {data[:200]!r}")
        return json.loads(data)


def fixed_job(command: Sequence[str], name: str) -> dict[str, Any]:
    """The submission of a fixed-size job without Python."""
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    return {"command": list(command), "cwd": "/", "env": env, "name": name, "elastic": False}


def bench_submit(
    connect: Connect, home: Path, *, submits: int, clients: int, policy: str
) -> dict[str, Any]:
    """Many clients submit at once, each over its own connection; all jobs but the first wait."""
    from ones.control.statedir import StateDir

    with live_service(connect, home, policy=policy, slots=1) as (client, _):
        address = StateDir(home).address()
        assert address is not None
        token = StateDir(home).read_token() or ""
        client.post("/api/jobs", fixed_job(["sleep", "3600"], "first"))
        lines = [KeepAliveConnection(address.url, token) for _ in range(clients)]
        seconds: list[list[float]] = [[] for _ in lines]

        def submit(number: int) -> None:
            for _ in range(submits // clients):
                began = time.perf_counter()
                lines[number].send("POST", "/api/jobs", fixed_job(["true"], f"job{number}"))
                seconds[number].append(time.perf_counter() - began)

        threads = [threading.Thread(target=submit, args=(n,)) for n in range(clients)]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - began
        for line in lines:
            line.close()
    each = [s for some in seconds for s in some]
    if len(each) < submits // clients * clients:
        raise WorldError(f"{len(each)} of {submits} submissions were answered")
    return {
        "case": f"submit, {clients} clients, up to {len(each)} waiting", "policy": policy,
        "n": len(each),
        "submits_per_second": round(len(each) / wall, 1),
        "submit_p50_ms": percentile_ms(each, 50), "submit_p99_ms": percentile_ms(each, 99),
    }  # fmt: skip


def bench_service(
    connect: Connect, home: Path, *, repeats: int, idle_seconds: float, policy: str
) -> list[dict[str, Any]]:
    """Rows of one service: idle, first steps of jobs, page updates, GPUs that change hands."""
    from ones.control.run_log_export import write_run_log
    from ones.control.statedir import StateDir

    state = home / "state"
    with live_service(connect, state, policy=policy, slots=1) as (client, pid):
        time.sleep(min(2.0, idle_seconds))
        idle = {
            "case": "idle", "policy": policy, "n": 1,
            "idle_cpu_percent": cpu_percent(pid, idle_seconds),
            "idle_mb": memory_mb(pid), "idle_own_mb": private_memory_mb(pid),
        }  # fmt: skip
        firsts = [_first_step(client, home) for _ in range(repeats)]
        wait_for(lambda: not client.get("/api/jobs"), "the end of the jobs")
        idle |= {
            "after_jobs_cpu_percent": cpu_percent(pid, idle_seconds),
            "after_jobs_mb": memory_mb(pid), "after_jobs_own_mb": private_memory_mb(pid),
        }  # fmt: skip
        pages = _page_updates(client, StateDir(state), updates=5 * repeats)
        for number in range(5 * repeats):
            client.post("/api/jobs", fixed_job(["sleep", "0.2"], f"short{number}"))
        wait_for(lambda: not client.get("/api/jobs"), "the end of the short jobs")
        log = home / "run.jsonl"
        write_run_log(StateDir(state).database, log)
    freed = freed_seconds(RunLog(log))
    return [
        idle,
        {"case": "submit to first step", "n": len(firsts),
         "submit_to_first_step_seconds": round(float(np.median(firsts)), 2),
         "submit_to_first_step_seconds_high": round(max(firsts), 2)},
        pages,
        {"case": "freed GPU to next worker", "n": len(freed),
         "freed_to_worker_ms": percentile_ms(freed, 50),
         "freed_to_worker_p99_ms": percentile_ms(freed, 99)},
    ]  # fmt: skip


def _first_step(client: ServiceClient, home: Path) -> float:
    """Seconds from a submission to the end of the first training step, torch's import included."""
    mark = home / "first-step"
    mark.unlink(missing_ok=True)
    body = {
        "command": [sys.executable, "-m", "ones.train.bench.first_step", str(mark)],
        "cwd": str(home), "env": job_environment(home), "name": "first", "elastic": True,
    }  # fmt: skip
    began = time.monotonic()  # the same clock in all processes of a machine
    client.post("/api/jobs", body)
    wait_for(mark.exists, "the first step of a job")
    return float(mark.read_text()) - began


def freed_seconds(log: RunLog) -> list[float]:
    """Seconds from a worker that left to the first worker of a job that waited for its GPU."""
    found: list[float] = []
    left = 0.0
    came: dict[str, float] = {}
    for entry in log:
        if isinstance(entry, ev.WorkerLeft):
            left = entry.at
        elif isinstance(entry, ev.JobSubmitted):
            came[entry.job.id] = entry.at
        elif isinstance(entry, ev.WorkerReady) and came[entry.job] < left:
            found.append(entry.at - left)
            left = 0.0
    return found


@contextmanager
def _event_stream(url: str, path: str, token: str) -> Iterator[Iterator[tuple[str, float]]]:
    """Yields the data of server-sent events, each with its time of arrival."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()

    def lines() -> Iterator[tuple[str, float]]:
        while line := answer.readline():
            if line.startswith(b"data:"):
                yield line[5:].decode(), time.perf_counter()

    try:
        yield lines()
    finally:
        answer.close()
        connection.close()


def _page_updates(client: ServiceClient, state: Any, *, updates: int) -> dict[str, Any]:  # noqa: ANN401
    """Time from the request that changes a priority to the update in an open stream."""
    address, token = state.address(), state.read_token()
    job = client.post("/api/jobs", fixed_job(["sleep", "3600"], "watched"))["id"]
    line = KeepAliveConnection(address.url, token)
    waits: dict[str, list[float]] = {"/api/events": [], "/page/stream": []}
    for path, seconds in waits.items():
        with _event_stream(address.url, path, token) as stream:
            next(stream)
            for number in range(updates):
                priority = 1 + number + updates * len(seconds)
                time.sleep(0.3)  # pages collect updates for a fifth of a second
                began = time.perf_counter()
                line.send("PATCH", f"/api/jobs/{job}", {"priority": priority})
                sign = f'"priority": {float(priority)}'
                seconds.append(next(at for text, at in stream if sign in text) - began)
    line.close()
    client.post(f"/api/jobs/{job}/cancel")
    wait_for(lambda: not client.get("/api/jobs"), "the end of the watched job")
    return {
        "case": "page update", "n": updates,
        "stream_update_ms": percentile_ms(waits["/api/events"], 50),
        "page_update_ms": percentile_ms(waits["/page/stream"], 50),
        "page_update_p99_ms": percentile_ms(waits["/page/stream"], 99),
    }  # fmt: skip
