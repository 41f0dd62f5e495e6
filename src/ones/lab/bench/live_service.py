"""A real service for benchmarks: its process, its working directory, the environment of jobs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ones.config import ServiceSettings
from ones.errors import WorldError
from ones.lab.service_client import Connect, ServiceClient

TIMEOUT_SECONDS = 300.0
#: libraries that a benchmark with real jobs needs
NEEDS = ("torch", "fastapi", "sqlalchemy", "uvicorn")


#: jobs of benchmarks take a minute where the paper's take ten: so do the policies' time constants
SHORT_JOB_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "ones": {"spacing": 1.0},
    "tiresias": {"thresholds": "40"},
    "optimus": {"interval": 20.0},
    "fifo": {},
    "equi": {},
}  # fmt: skip


@contextmanager
def live_service(
    connect: Connect, directory: Path, **settings: Any
) -> Iterator[tuple[ServiceClient, int]]:
    """Runs a service in this directory and ends it; yields a client and its process id."""
    from ones.control import service_process
    from ones.control.statedir import StateDir

    directory.mkdir(parents=True, exist_ok=True)
    chosen = ServiceSettings(state=str(directory), port=0, grace_seconds=2.0, **settings)
    try:
        address = service_process.start(
            chosen, {chosen.policy: dict(SHORT_JOB_SETTINGS.get(chosen.policy, {}))}
        )
        with closing(connect(address.url, StateDir(directory).read_token() or "")) as client:
            yield client, address.pid
    finally:
        service_process.kill(StateDir(directory))


def job_environment(directory: Path) -> dict[str, str]:
    """Environment of jobs: one thread each, temporary files inside the directory."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}


@contextmanager
def working_directory(keep: Path | None) -> Iterator[Path]:
    """The directory `keep`, or a temporary one that is removed."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="ones-bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def wait_for(
    condition: Callable[[], bool],
    what: str,
    *,
    seconds: float = TIMEOUT_SECONDS,
    every: float = 0.05,
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise WorldError(f"{what}: not within {seconds:.0f} s")
        time.sleep(every)
