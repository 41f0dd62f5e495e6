"""`ones bench scale`: one controller and thousands of emulated workers.

A quarter of the workers is one wide job, the others are in jobs of eight. When all train, they
wait for orders, then report at the pace of real workers, then as fast as they are acknowledged.
At last jobs are cancelled one by one, and the order to the last worker of each is timed.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.extras import require
from ones.lab.bench.emulation.progress import REPORT_SECONDS
from ones.lab.bench.emulation.service import EmulatedService, emulated_service
from ones.lab.bench.emulation.workers import EmulatedWorkers
from ones.lab.bench.live_service import working_directory
from ones.lab.bench.result import percentile_ms
from ones.lab.processes import cpu_percent, peak_memory_mb
from ones.lab.service_client import Connect, OpenClient

SIZES = (128, 1024, 10240)
PER_JOB = 8  # workers of a job, and GPUs of a node
WIDE_PART, WIDEST = 4, 1024  # the wide job has a quarter of all workers, up to this maximum
SECONDS = 10.0
SUBMITTERS = 8
CANCELLED = 8  # small jobs that are cancelled and timed
SETTLE_SECONDS = 900.0
#: files beside the workers' connections: reporters, the database, libraries
SPARE_FILES = 2000
MOST_FILES = 1 << 20  # default limit of Linux for one process


def bench_scale(
    connect: Connect,
    sizes: Sequence[int] = SIZES,
    *,
    per_job: int = PER_JOB,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    require("ones bench scale", "fastapi", "sqlalchemy", "uvicorn")
    rows = []
    for size in sizes:
        progress(f"{size} workers")
        with working_directory(None) as home:
            rows.append(_one_size(connect, home, size, min(size, per_job), seconds))
    return rows


def _one_size(
    connect: Connect, home: Path, workers: int, per_job: int, seconds: float
) -> dict[str, Any]:
    _allow_files(workers, workers + workers // per_job + SPARE_FILES)
    return asyncio.run(_measure(connect, home, _parts(workers, per_job), seconds))


def _allow_files(workers: int, needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else hard
    if most < needed:
        raise WorldError(f"{workers} workers: only {most} files may be open; see ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _parts(workers: int, per_job: int) -> list[int]:
    """Workers of each job, the wide job first.

    >>> _parts(32, 8)
    [8, 8, 8, 8]
    >>> _parts(128, 8)[:2], len(_parts(128, 8))
    ([32, 8], 13)
    """
    wide = max(per_job, min(workers // WIDE_PART, WIDEST))
    return [wide, *[per_job] * ((workers - wide) // per_job)]


async def _measure(
    connect: Connect, home: Path, parts: list[int], seconds: float
) -> dict[str, Any]:
    async with emulated_service(
        connect,
        home,
        slots=sum(parts),
        policy="fifo",
        per_node=PER_JOB,
        make_workers=partial(EmulatedWorkers, expected=sum(parts)),
    ) as service:
        return await _stages(service, parts, seconds)


async def _stages(service: EmulatedService, parts: list[int], seconds: float) -> dict[str, Any]:
    client, workers, pid = service.client, service.workers, service.pid
    began = time.perf_counter()
    ids = await _submit(client, parts)
    submitted = time.perf_counter() - began
    await asyncio.wait_for(workers.all_ready.wait(), SETTLE_SECONDS)
    workers.check()
    settled = time.perf_counter() - began
    waiting_cpu = await asyncio.to_thread(cpu_percent, pid, seconds)

    async def report(every: float | None) -> tuple[list[float], float]:
        busy = asyncio.create_task(asyncio.to_thread(cpu_percent, pid, seconds))
        return await workers.report(seconds, every), await busy

    paced, paced_cpu = await report(REPORT_SECONDS)
    fastest, busy_cpu = await report(None)
    fanouts = [await _cancel(service, id) for id in ids[1 : 1 + CANCELLED]]
    wide = await _cancel(service, ids[0])
    fanouts = fanouts or [wide]
    return {
        "case": f"{sum(parts)} workers", "workers": sum(parts), "jobs": len(parts),
        "n": len(fanouts), "submit_seconds": round(submitted, 1),
        "settled_seconds": round(settled, 1), "waiting_cpu_percent": waiting_cpu,
        "paced_offered_per_second": round(len(parts) / REPORT_SECONDS, 1),
        "paced_reports_per_second": round(len(paced) / seconds, 1),
        "paced_ack_ms": percentile_ms(paced, 50), "paced_ack_p99_ms": percentile_ms(paced, 99),
        "paced_cpu_percent": paced_cpu,
        "reports_per_second": round(len(fastest) / seconds, 1),
        "ack_ms": percentile_ms(fastest, 50), "ack_p99_ms": percentile_ms(fastest, 99),
        "busy_cpu_percent": busy_cpu,
        "plan_fanout_ms": round(1000 * statistics.median(fanouts), 1),
        "plan_fanout_max_ms": round(1000 * max(fanouts), 1),
        "wide_workers": parts[0], "wide_fanout_ms": round(1000 * wide, 1),
        "peak_mb": peak_memory_mb(pid), "load_average": round(os.getloadavg()[0], 2),
    }  # fmt: skip


async def _submit(client: OpenClient, parts: Sequence[int]) -> list[str]:
    slots = asyncio.Semaphore(SUBMITTERS)

    async def submit(number: int, size: int) -> str:
        job = {"command": ["emulated"], "cwd": "/", "name": f"job{number}", "elastic": True}
        job |= {"requested_gpus": size, "min_gpus": size, "max_gpus": size}
        async with slots:
            return str((await asyncio.to_thread(client.post, "/api/jobs", job))["id"])

    wide = await submit(0, parts[0])  # the first to be placed
    return [wide, *await asyncio.gather(*(submit(n, s) for n, s in enumerate(parts[1:], 1)))]


async def _cancel(service: EmulatedService, id: str) -> float:
    """Seconds from the request until the last worker of the job has its order."""
    asked = time.perf_counter()
    await asyncio.to_thread(service.client.post, f"/api/jobs/{id}/cancel")
    job = service.workers.job(id)
    await asyncio.wait_for(job.all_ended.wait(), SETTLE_SECONDS)
    service.workers.check()
    return job.last_end - asked
