"""`ones bench control`: what the service costs, and how long its users wait for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones.lab.bench_control_emulated import bench_emulated
from ones.lab.bench_control_service import bench_life, bench_submit
from ones.lab.bench_control_store import bench_store
from ones.lab.bench_fidelity_live import NEEDS, Connect, scratch
from ones.lab.scripts import check_installed
from ones.lab.warm import warm_up

POLICY = "ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    submits: tuple[int, ...] = (400, 2000)  # a policy that searches looks at all who wait
    clients: int = 8
    repeats: int = 4
    idle_seconds: float = 20.0
    slots: int = 64
    jobs: int = 32
    busy_seconds: float = 40.0
    events: int = 1_000_000
    known_jobs: int = 100  # in the past that a restart finds


FULL = Effort()
QUICK = Effort(
    submits=(80,), clients=4, repeats=1, idle_seconds=1.0, slots=8, jobs=4, busy_seconds=8.0,
    events=3000, known_jobs=12,
)  # fmt: skip


def bench_control(
    connect: Connect,
    effort: Effort = FULL,
    *,
    policy: str = POLICY,
    progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    check_installed("ones bench control", *NEEDS)
    warm_up(policy)
    with scratch(None) as home:
        return _rows(connect, effort, policy, home, progress)


def _rows(
    connect: Connect, effort: Effort, policy: str, home: Path, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    progress("idle, first steps, pages, freed GPUs")
    rows = bench_life(
        connect, home / "life", repeats=effort.repeats, idle_seconds=effort.idle_seconds,
        policy=policy,
    )  # fmt: skip
    for submits in effort.submits:
        progress(f"{submits} submissions")
        directory = home / f"submit-{submits}"
        rows.append(
            bench_submit(connect, directory, submits=submits, clients=effort.clients, policy=policy)
        )
    progress(f"{effort.slots} emulated workers")
    rows.append(
        bench_emulated(
            connect, home / "emulated", slots=effort.slots, jobs=effort.jobs,
            seconds=effort.busy_seconds, policy=policy,
        )
    )  # fmt: skip
    progress(f"{effort.events:,} events")
    return rows + bench_store(
        connect, home / "store", events=effort.events, jobs=effort.known_jobs, policy=policy
    )
