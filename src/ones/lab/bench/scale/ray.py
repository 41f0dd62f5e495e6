"""`ones bench scale --ray`: real paced jobs on many Ray nodes, all of them on this machine.

Half of the jobs come first and fill the cluster. When the other half comes, all jobs shrink; when
it is cancelled, the first half grows again. The times are read from the run log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ones.core import events as ev
from ones.core.plan import Plan, Rescale, Start
from ones.errors import WorldError
from ones.extras import require
from ones.lab.bench.fidelity.paced_jobs import PacedJob, PacedKind, submission
from ones.lab.bench.live_service import (
    NEEDS,
    job_environment,
    live_service,
    wait_for,
    working_directory,
)
from ones.lab.installation import CHECKOUT
from ones.lab.processes import cpu_seconds, memory_mb
from ones.lab.service_client import Connect, ServiceClient
from ones.runlog import RunLog

TOOL = CHECKOUT / "tools" / "ray-cluster"
NODES, PER_NODE, SECONDS = 16, 4, 20.0
EPOCHS = 100  # more than the benchmark waits for
#: steps of half a second, because many workers share few cores; no epoch ends in the run, because
#: batches would change then
KIND = PacedKind(
    name="paced", samples=64_000, batch=16, max_local_batch=32, fixed=0.5, per_sample=0.005
)


def bench_ray(
    connect: Connect,
    *,
    nodes: int = NODES,
    per_node: int = PER_NODE,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """One row; a job for every `per_node` slots."""
    require("ones bench scale --ray", *NEEDS, "ray", "psutil")
    if not TOOL.exists():
        raise WorldError(f"--ray: {TOOL} is not there; it is part of a clone, not of the package")
    with working_directory(None) as home:
        progress(f"{nodes} Ray nodes with {per_node} slots each")
        began = time.monotonic()
        with _cluster(home / "ray", nodes, per_node) as address:
            cluster_seconds = time.monotonic() - began
            row = _live(connect, home, address, nodes * per_node, per_node, seconds, progress)
    return {
        "case": f"{nodes} Ray nodes, {nodes * per_node} slots", "nodes": nodes,
        "slots": nodes * per_node, "cluster_seconds": round(cluster_seconds, 1), **row,
        "load_average": round(os.getloadavg()[0], 2),
    }  # fmt: skip


@contextmanager
def _cluster(directory: Path, nodes: int, per_node: int) -> Iterator[str]:
    def do(what: str, *words: str) -> str:
        command = [sys.executable, str(TOOL), what, str(directory), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorldError(f"tools/ray-cluster {what}: {(done.stderr or done.stdout).strip()}")
        return done.stdout.strip()

    try:
        address = do("start")
        for number in range(nodes):
            do("add", f"n{number}", "--slots", str(per_node))
        yield address
    finally:
        do("stop")


def _live(
    connect: Connect,
    home: Path,
    address: str,
    slots: int,
    per_job: int,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    from ones.control.run_log_export import write_run_log
    from ones.control.statedir import StateDir

    state, log = home / "state", home / "run.jsonl"
    began = time.monotonic()
    ray = {"address": address, "slots": "ones", "node_dir": str(home / "nodes")}
    with live_service(
        connect, state, policy="equi", launcher="ray", launchers={"ray": ray},
    ) as (client, pid):  # fmt: skip
        _wait(lambda: _slots(client) == slots, f"{slots} slots")
        up = time.monotonic() - began
        jobs = max(2, slots // per_job)

        def fill(number: int) -> list[str]:
            most = slots // (jobs // 2)
            ids = [_submit(client, home, most) for _ in range(number)]
            _wait(lambda: _settled(client, slots), "all slots in use")
            return ids

        progress("the first jobs")
        fill(jobs // 2)
        progress("the others")
        later = fill(jobs - jobs // 2)
        usage = _usage(pid, seconds)
        progress("the others are cancelled")
        for job in later:
            client.post(f"/api/jobs/{job}/cancel")
        _wait(lambda: _settled(client, slots), "all slots in use again")
        write_run_log(StateDir(state).database, log)
    starts, changes, pauses = times_in(RunLog(log))
    return {
        "jobs": jobs, "n": len(starts), "slots_seconds": round(up, 1),
        **_shown("decision_to_worker_seconds", starts), "rescales": len(changes),
        **_shown("decision_to_rescaled_seconds", changes), **_shown("pause_seconds", pauses),
        **usage,
    }  # fmt: skip


#: torch is imported many times on few cores; polls must not keep the controller busy
_wait = partial(wait_for, seconds=900.0, every=1.0)


def _slots(client: ServiceClient) -> int:
    return sum(slot["state"] == "up" for slot in client.get("/api/cluster")["slots"])


def _submit(client: ServiceClient, home: Path, most: int) -> str:
    job = PacedJob(at=0.0, kind=KIND, epochs=EPOCHS)
    body = submission("paced", job, job_environment(home), str(home))
    return str(client.post("/api/jobs", {**body, "max_gpus": most})["id"])


def _settled(client: ServiceClient, slots: int) -> bool:
    """All jobs train, and together they have all slots."""
    cards = client.get("/api/jobs")
    failed = [card for card in cards if card["failures"]]
    if failed:
        raise WorldError(f"{failed[0]['id']} has lost its workers: {failed[0]['note']}")
    return (
        all(card["state"] == "running" for card in cards)
        and not any(worker["leaving"] for card in cards for worker in card["workers"])
        and sum(card["gpus"] for card in cards) == slots
    )


def _usage(pid: int, seconds: float) -> dict[str, Any]:
    """Resources of the controller and of its bridge to Ray while all jobs train."""
    import psutil

    below = psutil.Process(pid).children()
    bridges = [child.pid for child in below if any("ray.driver" in w for w in child.cmdline())]
    before = {each: cpu_seconds(each) for each in (pid, *bridges)}
    time.sleep(seconds)
    spent = {each: 100 * (cpu_seconds(each) - was) / seconds for each, was in before.items()}
    return {
        "controller_cpu_percent": round(spent[pid], 1), "controller_mb": memory_mb(pid),
        "bridge_cpu_percent": round(sum(spent[bridge] for bridge in bridges), 1),
        "bridge_mb": round(sum(map(memory_mb, bridges)), 1),
        "machine_used_gb": round((psutil.virtual_memory().used) / 1e9, 1),
    }  # fmt: skip


def times_in(log: Iterable[ev.Event | Plan]) -> tuple[list[float], list[float], list[float]]:
    """Seconds from a decision to the last worker of a start, from a decision to the end of a
    rescale, and the pauses of these rescales."""
    ordered: dict[tuple[str, int], tuple[float, int]] = {}  # when, workers that are missing
    starts: list[float] = []
    changes: list[float] = []
    pauses: list[float] = []
    for entry in log:
        if isinstance(entry, Plan):
            for action in entry.actions:
                if isinstance(action, Start | Rescale):
                    missing = action.allocation.n_gpus if isinstance(action, Start) else 0
                    ordered[action.job, entry.number] = entry.at, missing
        elif isinstance(entry, ev.WorkerReady | ev.Rescaled):
            order = entry.job, entry.generation.plan
            if order not in ordered:
                continue
            at, missing = ordered[order]
            if isinstance(entry, ev.WorkerReady):
                ordered[order] = at, missing - 1
                if missing == 1:
                    starts.append(entry.at - at)
            elif missing == 0 and entry.generation.incarnation == 0:
                changes.append(entry.at - at)
                pauses.append(entry.pause_seconds)
    return starts, changes, pauses


def _shown(key: str, seconds: Sequence[float]) -> dict[str, Any]:
    if not seconds:
        return {}
    return {key: round(float(np.median(seconds)), 3), f"{key}_max": round(max(seconds), 3)}
