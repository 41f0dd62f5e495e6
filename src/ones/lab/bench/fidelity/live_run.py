"""A trace of paced jobs under the real service, and the run log of that run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ones.errors import WorldError
from ones.extras import require
from ones.lab.bench.fidelity.paced_jobs import Kill, PacedTrace, submission
from ones.lab.bench.live_service import NEEDS, job_environment, live_service
from ones.lab.runs import LOG_NAME
from ones.lab.service_client import Connect, ServiceClient

TIMEOUT_SECONDS = 1200.0
POLL_SECONDS = 0.2
LEAVE_SECONDS = 2.0  # the last workers leave after their job has ended


@dataclass(frozen=True, slots=True)
class LiveRun:
    log: Path
    names: Mapping[str, str]  # job ids of the service -> names of the trace


def run_live(
    connect: Connect, trace: PacedTrace, policy: str, mechanism: str, directory: Path
) -> LiveRun:
    """Runs the trace until all jobs have ended; the log stays in the directory."""
    require("ones bench fidelity", *NEEDS)
    from ones.control.run_log_export import write_run_log
    from ones.control.statedir import StateDir

    state = directory / "state"
    settings = {"policy": policy, "slots": trace.slots, "mechanism": mechanism}
    with live_service(connect, state, **settings) as (client, _):
        names = _submit_all(client, trace, directory)
        time.sleep(LEAVE_SECONDS)
        log = directory / LOG_NAME
        write_run_log(StateDir(state).database, log)
    return LiveRun(log, names)


def _submit_all(client: ServiceClient, trace: PacedTrace, directory: Path) -> dict[str, str]:
    """Submits every job at its time and waits for the last one to end."""
    env = job_environment(directory)
    waiting = trace.named()
    kills = list(trace.kills)
    ids: dict[str, str] = {}  # names of the trace -> ids of the service
    began = time.monotonic()
    while True:
        now = time.monotonic() - began
        while waiting and waiting[0][1].at <= now:
            name, job = waiting.pop(0)
            ids[name] = client.post("/api/jobs", submission(name, job, env, str(directory)))["id"]
        kills = [kill for kill in kills if not (kill.at <= now and _kill(client, kill, ids))]
        if not waiting and not client.get("/api/jobs"):
            return {id: name for name, id in ids.items()}
        if now > TIMEOUT_SECONDS:
            raise WorldError(f"the jobs have not ended within {TIMEOUT_SECONDS:.0f} s")
        until_next = waiting[0][1].at - (time.monotonic() - began) if waiting else POLL_SECONDS
        time.sleep(max(0.0, min(POLL_SECONDS, until_next)))


def _kill(client: ServiceClient, kill: Kill, ids: Mapping[str, str]) -> bool:
    """Kills the last worker of a job that has several. True: there is nothing more to do."""
    job = ids.get(kill.job)
    if job is None:
        return False
    card = client.get(f"/api/jobs/{job}")
    if card["ended_at"] is not None:
        return True
    if card["state"] != "running" or len(card["workers"]) < 2:
        return False
    last = max(worker["gpu"] for worker in card["workers"])
    for launch in client.get(f"/api/jobs/{job}/launches"):
        if launch["alive"] and last in launch["slots"] and launch["pid"]:
            os.kill(launch["pid"], signal.SIGKILL)
            return True
    return False
