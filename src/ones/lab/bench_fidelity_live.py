"""A paced trace under the real service: real processes, and the run log that they leave."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ones.config import ServiceSettings
from ones.errors import WorldError
from ones.lab.bench_fidelity_trace import SETTINGS, Kill, PacedTrace, submission
from ones.lab.runs import LOG_NAME
from ones.lab.scene import Client
from ones.lab.scripts import check_installed


class OpenClient(Client, Protocol):
    def close(self) -> None: ...


Connect = Callable[[str, str], OpenClient]  # address, token

PATIENCE_SECONDS = 1200.0
POLL_SECONDS = 0.2
LAST_WORDS_SECONDS = 2.0  # the last workers leave after their job has ended
NEEDS = ("torch", "fastapi", "sqlalchemy", "uvicorn")


@dataclass(frozen=True, slots=True)
class LiveRun:
    log: Path
    ids: Mapping[str, str]  # the service's names -> ours


@contextmanager
def service(connect: Connect, directory: Path, **settings: Any) -> Iterator[tuple[Client, int]]:
    """A service of its own in this directory, with its process id; nothing of it is left."""
    from ones.control import background
    from ones.control.statedir import StateDir

    directory.mkdir(parents=True, exist_ok=True)
    chosen = ServiceSettings(state=str(directory), port=0, grace_seconds=2.0, **settings)
    try:
        address = background.start(chosen, {chosen.policy: dict(SETTINGS.get(chosen.policy, {}))})
        with closing(connect(address.url, StateDir(directory).read_token() or "")) as client:
            yield client, address.pid
    finally:
        background.kill(StateDir(directory))


def run_live(
    connect: Connect, trace: PacedTrace, policy: str, mechanism: str, slots: int, directory: Path
) -> LiveRun:
    """Until all jobs have ended. The log is kept in the directory."""
    from ones.control.logfile import write_run_log
    from ones.control.statedir import StateDir

    check_installed("ones bench fidelity", *NEEDS)
    state = directory / "state"
    with service(connect, state, policy=policy, slots=slots, mechanism=mechanism) as (client, _):
        ids = _play(client, trace, directory)
        time.sleep(LAST_WORDS_SECONDS)
        log = directory / LOG_NAME
        write_run_log(StateDir(state).database, log)
    return LiveRun(log, ids)


def environment(directory: Path) -> dict[str, str]:
    """For jobs: one thread each, and a place for what torch leaves."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


def _play(client: Client, trace: PacedTrace, directory: Path) -> dict[str, str]:
    env = environment(directory)
    waiting = trace.named()
    kills = list(trace.kills)
    names: dict[str, str] = {}  # ours -> the service's
    began = time.monotonic()
    while True:
        now = time.monotonic() - began
        while waiting and waiting[0][1].at <= now:
            name, job = waiting.pop(0)
            names[name] = client.post("/api/jobs", submission(name, job, env, str(directory)))["id"]
        kills = [kill for kill in kills if not (kill.at <= now and _kill(client, kill, names))]
        if not waiting and not client.get("/api/jobs"):
            return {theirs: ours for ours, theirs in names.items()}
        if now > PATIENCE_SECONDS:
            raise WorldError(f"the jobs have not ended within {PATIENCE_SECONDS:.0f} s")
        until_next = waiting[0][1].at - (time.monotonic() - began) if waiting else POLL_SECONDS
        time.sleep(max(0.0, min(POLL_SECONDS, until_next)))


def _kill(client: Client, kill: Kill, names: Mapping[str, str]) -> bool:
    """Its last worker, if it trains with several; and is it done with?"""
    job = names.get(kill.job)
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


@contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """A directory that goes away, or one that stays."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ones-bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)
