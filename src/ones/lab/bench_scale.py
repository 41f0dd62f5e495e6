"""`ones bench scale`: one controller and very many workers, which speak the wire protocol of real
ones and do not train.

The service is that of `bench_control_emulated`, whose launcher starts nothing. A part of the
workers is one wide job, the others are in jobs of eight. First all must train; then they wait
for orders, then report at the pace of real ones, then as fast as they are heard; at last jobs are
cancelled, one by one, and it is seen when the last worker of each knows.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.lab.bench_control_emulated import STEPS_EVERY
from ones.lab.bench_control_service import cpu_percent, percentile_ms, wait_for
from ones.lab.bench_fidelity_live import Connect, OpenClient, scratch
from ones.lab.bench_scale_crowd import Crowd
from ones.lab.scripts import check_installed

SIZES = (128, 1024, 10240)
PER_JOB = 8  # workers of a job; GPUs of a node, too
WIDE_PART, WIDEST = 4, 1024  # the wide job has a quarter of all workers, but no more than this
SECONDS = 10.0
SUBMITTERS = 8
CANCELLED = 8  # small jobs whose end is timed
SETTLE_SECONDS = 900.0
#: files beside the workers' connections: reporters, the database, libraries
SPARE_FILES = 2000
MOST_FILES = 1 << 20  # that Linux lets one process have, unless told otherwise


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
    _allow_files(workers, workers + workers // per_job + SPARE_FILES)
    command = [sys.executable, "-m", "ones.lab.bench_control_emulated"]
    process = subprocess.Popen(
        [*command, str(home), str(workers), "fifo", str(PER_JOB)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        return asyncio.run(_measure(connect, home, process, _parts(workers, per_job), seconds))
    finally:
        process.terminate()
        process.communicate(timeout=120)


def _allow_files(workers: int, needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else hard
    if most < needed:
        raise WorldError(f"{workers} workers: only {most} files may be open; see ulimit -Hn")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _parts(workers: int, per_job: int) -> list[int]:
    """Workers of each job, the wide one first.

    >>> _parts(32, 8)
    [8, 8, 8, 8]
    >>> _parts(128, 8)[:2], len(_parts(128, 8))
    ([32, 8], 13)
    """
    wide = max(per_job, min(workers // WIDE_PART, WIDEST))
    return [wide, *[per_job] * ((workers - wide) // per_job)]


async def _measure(
    connect: Connect,
    home: Path,
    process: subprocess.Popen[bytes],
    parts: list[int],
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
    crowd = Crowd(address.url, sum(parts))
    reading = asyncio.create_task(crowd.read(process))
    try:
        return await _stages(client, crowd, process.pid, parts, seconds)
    finally:
        await crowd.close(reading)
        await asyncio.to_thread(client.close)


async def _stages(
    client: OpenClient, crowd: Crowd, pid: int, parts: list[int], seconds: float
) -> dict[str, Any]:
    began = time.perf_counter()
    ids = await _submit(client, parts)
    submitted = time.perf_counter() - began
    await asyncio.wait_for(crowd.all_train.wait(), SETTLE_SECONDS)
    crowd.check()
    settled = time.perf_counter() - began
    waiting_cpu = await asyncio.to_thread(cpu_percent, pid, seconds)

    async def while_they_report(every: float | None) -> tuple[list[float], float]:
        busy = asyncio.create_task(asyncio.to_thread(cpu_percent, pid, seconds))
        return await crowd.report(seconds, every), await busy

    paced, paced_cpu = await while_they_report(STEPS_EVERY)
    hasty, busy_cpu = await while_they_report(None)
    fanouts = [await _cancel(client, crowd, id) for id in ids[1 : 1 + CANCELLED]]
    wide = await _cancel(client, crowd, ids[0])
    fanouts = fanouts or [wide]
    return {
        "case": f"{sum(parts)} workers", "workers": sum(parts), "jobs": len(parts),
        "n": len(fanouts), "submit_seconds": round(submitted, 1),
        "settled_seconds": round(settled, 1), "waiting_cpu_percent": waiting_cpu,
        "paced_offered_per_second": round(len(parts) / STEPS_EVERY, 1),
        "paced_reports_per_second": round(len(paced) / seconds, 1),
        "paced_ack_ms": percentile_ms(paced, 50), "paced_ack_p99_ms": percentile_ms(paced, 99),
        "paced_cpu_percent": paced_cpu,
        "reports_per_second": round(len(hasty) / seconds, 1),
        "ack_ms": percentile_ms(hasty, 50), "ack_p99_ms": percentile_ms(hasty, 99),
        "busy_cpu_percent": busy_cpu,
        "plan_fanout_ms": round(1000 * statistics.median(fanouts), 1),
        "plan_fanout_max_ms": round(1000 * max(fanouts), 1),
        "wide_workers": parts[0], "wide_fanout_ms": round(1000 * wide, 1),
        "peak_mb": _peak_mb(pid), "load_average": round(os.getloadavg()[0], 2),
    }  # fmt: skip


async def _submit(client: OpenClient, parts: Sequence[int]) -> list[str]:
    doors = asyncio.Semaphore(SUBMITTERS)

    async def submit(number: int, size: int) -> str:
        job = {"command": ["emulated"], "cwd": "/", "name": f"job{number}", "elastic": True}
        job |= {"requested_gpus": size, "min_gpus": size, "max_gpus": size}
        async with doors:
            return str((await asyncio.to_thread(client.post, "/api/jobs", job))["id"])

    wide = await submit(0, parts[0])  # the first to be placed
    return [wide, *await asyncio.gather(*(submit(n, s) for n, s in enumerate(parts[1:], 1)))]


async def _cancel(client: OpenClient, crowd: Crowd, id: str) -> float:
    """Seconds from the request until the last worker of the job knows."""
    asked = time.perf_counter()
    await asyncio.to_thread(client.post, f"/api/jobs/{id}/cancel")
    await asyncio.wait_for(crowd.jobs[id].all_told.wait(), SETTLE_SECONDS)
    crowd.check()
    return crowd.jobs[id].last_order - asked


def _peak_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise WorldError(f"process {pid} is gone")
