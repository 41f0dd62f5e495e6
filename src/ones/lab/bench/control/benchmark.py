"""`ones bench control`: resources and response times of the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.extras import require
from ones.lab.bench.control.busy_cluster import bench_busy_cluster
from ones.lab.bench.control.service import bench_service, bench_submit
from ones.lab.bench.control.store import bench_store
from ones.lab.bench.live_service import NEEDS, working_directory
from ones.lab.kernel_warmup import warm_up
from ones.lab.service_client import Connect

POLICY = "ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlSizes:
    submits: tuple[int, ...] = (400, 2000)  # a policy that searches looks at all waiting jobs
    clients: int = 8
    repeats: int = 4
    idle_seconds: float = 20.0
    slots: int = 64
    jobs: int = 32
    busy_seconds: float = 40.0
    events: int = 1_000_000
    known_jobs: int = 100  # in the log that a restart reads


FULL = ControlSizes()
QUICK = ControlSizes(
    submits=(80,), clients=4, repeats=1, idle_seconds=1.0, slots=8, jobs=4, busy_seconds=8.0,
    events=3000, known_jobs=12,
)  # fmt: skip


def bench_control(
    connect: Connect,
    sizes: ControlSizes = FULL,
    *,
    policy: str = POLICY,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    require("ones bench control", *NEEDS)
    warm_up(policy)
    with working_directory(None) as home:
        return _rows(connect, sizes, policy, home, progress)


def _rows(
    connect: Connect, sizes: ControlSizes, policy: str, home: Path, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    progress("idle, first steps, pages, freed GPUs")
    rows = bench_service(
        connect, home / "service", repeats=sizes.repeats, idle_seconds=sizes.idle_seconds,
        policy=policy,
    )  # fmt: skip
    for submits in sizes.submits:
        progress(f"{submits} submissions")
        directory = home / f"submit-{submits}"
        rows.append(
            bench_submit(connect, directory, submits=submits, clients=sizes.clients, policy=policy)
        )
    progress(f"{sizes.slots} emulated workers")
    rows.append(
        bench_busy_cluster(
            connect, home / "emulated", slots=sizes.slots, jobs=sizes.jobs,
            seconds=sizes.busy_seconds, policy=policy,
        )
    )  # fmt: skip
    progress(f"{sizes.events:,} events")
    return rows + bench_store(
        connect, home / "store", events=sizes.events, jobs=sizes.known_jobs, policy=policy
    )
