"""Of `ones bench control`: a real service, what its users wait for, and what it takes."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ones.core import events as ev
from ones.errors import WorldError
from ones.lab.bench_fidelity_live import Connect, environment, service
from ones.lab.scene import Client
from ones.runlog import RunLog

PATIENCE_SECONDS = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


def percentile_ms(seconds: Sequence[float], q: float) -> float:
    """
    >>> percentile_ms([0.001, 0.002, 0.003], 50)
    2.0
    """
    return round(1000 * float(np.percentile(seconds, q)), 2)


def memory_mb(pid: int) -> float:
    """Resident, files of its libraries included."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise WorldError(f"process {pid} is gone")


def own_memory_mb(pid: int) -> float:
    """Of it, what nothing but this process could use."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise WorldError(f"process {pid} is gone")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_percent(pid: int, seconds: float) -> float:
    """Of one core, while we wait."""
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return round(100 * (cpu_seconds(pid) - before) / (time.monotonic() - began), 2)


def wait_for(
    happened: Callable[[], bool],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    every: float = 0.05,
) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise WorldError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)


class Line:
    """One kept-alive connection: a submission costs this side as little as possible."""

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


def resting(command: Sequence[str], name: str) -> dict[str, Any]:
    """A fixed-size job without Python."""
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}
    return {"command": list(command), "cwd": "/", "env": env, "name": name, "elastic": False}


def bench_submit(
    connect: Connect, home: Path, *, submits: int, clients: int, policy: str
) -> dict[str, Any]:
    """Many clients at once, each with a connection of its own; all jobs but the first wait."""
    from ones.control.statedir import StateDir

    with service(connect, home, policy=policy, slots=1) as (client, _):
        address = StateDir(home).address()
        assert address is not None
        token = StateDir(home).read_token() or ""
        client.post("/api/jobs", resting(["sleep", "3600"], "first"))
        lines = [Line(address.url, token) for _ in range(clients)]
        seconds: list[list[float]] = [[] for _ in lines]

        def submit(number: int) -> None:
            for _ in range(submits // clients):
                began = time.perf_counter()
                lines[number].send("POST", "/api/jobs", resting(["true"], f"job{number}"))
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


def bench_life(
    connect: Connect, home: Path, *, repeats: int, idle_seconds: float, policy: str
) -> list[dict[str, Any]]:
    """One service through its day: idle, jobs, a page that looks on, a GPU that changes hands."""
    from ones.control.logfile import write_run_log
    from ones.control.statedir import StateDir

    state = home / "state"
    with service(connect, state, policy=policy, slots=1) as (client, pid):
        time.sleep(min(2.0, idle_seconds))
        idle = {
            "case": "idle", "policy": policy, "n": 1,
            "idle_cpu_percent": cpu_percent(pid, idle_seconds),
            "idle_mb": memory_mb(pid), "idle_own_mb": own_memory_mb(pid),
        }  # fmt: skip
        firsts = [_first_step(client, home) for _ in range(repeats)]
        wait_for(lambda: not client.get("/api/jobs"), "the end of the jobs")
        idle |= {
            "after_jobs_cpu_percent": cpu_percent(pid, idle_seconds),
            "after_jobs_mb": memory_mb(pid), "after_jobs_own_mb": own_memory_mb(pid),
        }  # fmt: skip
        pages = _page_updates(client, StateDir(state), updates=5 * repeats)
        for number in range(5 * repeats):
            client.post("/api/jobs", resting(["sleep", "0.2"], f"short{number}"))
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


def _first_step(client: Client, home: Path) -> float:
    """Seconds from a submission to the end of the first training step, torch's import included."""
    mark = home / "first-step"
    mark.unlink(missing_ok=True)
    body = {
        "command": [sys.executable, "-m", "ones.train.bench.first_step", str(mark)],
        "cwd": str(home), "env": environment(home), "name": "first", "elastic": True,
    }  # fmt: skip
    began = time.monotonic()  # the same clock in all processes of a machine
    client.post("/api/jobs", body)
    wait_for(mark.exists, "the first step of a job")
    return float(mark.read_text()) - began


def freed_seconds(log: RunLog) -> list[float]:
    """From a worker that has left to the first of the job that follows, if that one waited."""
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
def _news(url: str, path: str, token: str) -> Iterator[Iterator[tuple[str, float]]]:
    """Data of a stream of server-sent events, and when each came."""
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


def _page_updates(client: Client, state: Any, *, updates: int) -> dict[str, Any]:  # noqa: ANN401
    """A job's priority is changed: from the request to the word of it in an open stream."""
    address, token = state.address(), state.read_token()
    job = client.post("/api/jobs", resting(["sleep", "3600"], "watched"))["id"]
    line = Line(address.url, token)
    waits: dict[str, list[float]] = {"/api/events": [], "/page/stream": []}
    for path, seconds in waits.items():
        with _news(address.url, path, token) as news:
            next(news)
            for number in range(updates):
                priority = 1 + number + updates * len(seconds)
                time.sleep(0.3)  # pages gather news for a fifth of a second
                began = time.perf_counter()
                line.send("PATCH", f"/api/jobs/{job}", {"priority": priority})
                sign = f'"priority": {float(priority)}'
                seconds.append(next(at for text, at in news if sign in text) - began)
    line.close()
    client.post(f"/api/jobs/{job}/cancel")
    wait_for(lambda: not client.get("/api/jobs"), "the end of the watched job")
    return {
        "case": "page update", "n": updates,
        "stream_update_ms": percentile_ms(waits["/api/events"], 50),
        "page_update_ms": percentile_ms(waits["/page/stream"], 50),
        "page_update_p99_ms": percentile_ms(waits["/page/stream"], 99),
    }  # fmt: skip
