"""Part of `ones bench control`: the controller with a full cluster of emulated workers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

from ones.errors import WorldError
from ones.lab.bench.emulation.progress import REPORT_SECONDS
from ones.lab.bench.emulation.service import EmulatedService, emulated_service
from ones.lab.bench.emulation.workers import EmulatedWorkers
from ones.lab.bench.live_service import wait_for
from ones.lab.bench.result import percentile_ms
from ones.lab.processes import cpu_percent, memory_mb, private_memory_mb
from ones.lab.service_client import Connect

EPOCH_REPORTS = 10  # an epoch takes five seconds


def bench_busy_cluster(
    connect: Connect, home: Path, *, slots: int, jobs: int, seconds: float, policy: str
) -> dict[str, Any]:
    return asyncio.run(_measure(connect, home, slots, jobs, seconds, policy))


async def _measure(
    connect: Connect, home: Path, slots: int, jobs: int, seconds: float, policy: str
) -> dict[str, Any]:
    make_workers = partial(EmulatedWorkers, epoch_reports=EPOCH_REPORTS, leaves=True)
    async with emulated_service(
        connect, home, slots=slots, policy=policy, make_workers=make_workers
    ) as service:
        await _submit(service, jobs)
        workers = service.workers
        await asyncio.to_thread(wait_for, partial(_any_trains, workers), "the first worker")
        await workers.report(seconds / 2, REPORT_SECONDS, staggered=False)  # fills all slots
        before, began = workers.reports, time.monotonic()
        busy = asyncio.create_task(asyncio.to_thread(cpu_percent, service.pid, seconds / 2))
        await workers.report(seconds / 2, REPORT_SECONDS, staggered=False)
        busy_percent = await busy
        rate = (workers.reports - before) / (time.monotonic() - began)
        memory, private = memory_mb(service.pid), private_memory_mb(service.pid)
        running = len(workers.running)
    decisions = workers.decisions
    if len(decisions) < 2:
        raise WorldError(f"the emulated service decided {len(decisions)} times")
    # the first decision loads the compiled search
    first, *later = decisions
    return {
        "case": f"{slots} emulated workers", "policy": policy, "slots": slots, "jobs": jobs,
        "workers": running, "n": len(decisions), "reports_per_second": round(rate, 1),
        "decision_to_order_ms": percentile_ms(later, 50),
        "decision_to_order_p99_ms": percentile_ms(later, 99),
        "first_decision_ms": round(1000 * first, 1),
        "busy_cpu_percent": busy_percent, "busy_mb": memory, "busy_own_mb": private,
    }  # fmt: skip


def _any_trains(workers: EmulatedWorkers) -> bool:
    return any(job.first is not None for job in tuple(workers.jobs.values()))


async def _submit(service: EmulatedService, jobs: int) -> None:
    for number in range(jobs):
        body = {
            "command": ["emulated"], "cwd": "/", "name": f"job{number}", "elastic": True,
            "kind": f"kind{number % 4}", "requested_gpus": 1 + number % 4, "epochs": 1000,
        }  # fmt: skip
        answer = await asyncio.to_thread(service.client.post, "/api/jobs", body)
        service.workers.job(answer["id"])
