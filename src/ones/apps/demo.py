"""`ones demo`: six real jobs on four CPU slots under the live service.

The service has its own state directory, which is removed at the end, and a free port. At the end
the recorded jobs are simulated under `fifo`, for comparison, and under the policy that ran them, to
show the accuracy of the simulation.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ones.apps.service_snapshot import ServiceSnapshot, take_snapshot
from ones.config import ServiceSettings
from ones.errors import UserError, WorldError
from ones.extras import require
from ones.lab.installation import examples
from ones.lab.kernel_warmup import warm_up
from ones.lab.runs import LOG_NAME, Run, RunSpec
from ones.lab.service_client import ServiceClient

SLOTS = 4
POLICY, RIVAL = "ones", "fifo"
POLL_SECONDS = 0.5
#: limit of the whole demonstration
TIMEOUT_SECONDS = 1200.0
NEEDS = ("torch", "sklearn", "mlxtend", "fastapi", "sqlalchemy", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    at: float  # seconds after the first job
    script: str
    epochs: int
    arguments: tuple[str, ...] = ()
    target: float | None = None  # accuracy at which the job ends
    gpus: int = 1  # requested, for policies that need a request


#: sized for two cores, which all jobs together keep busy for about two minutes
JOBS = (
    DemoJob(at=0, script="stress.py", epochs=6, arguments=("--samples", "12000"), gpus=2),
    DemoJob(at=8, script="digits.py", epochs=12, target=0.98),
    DemoJob(at=18, script="mnist.py", epochs=6, target=0.95, gpus=2),
    DemoJob(at=30, script="digits.py", epochs=12, target=0.98, gpus=2),
    DemoJob(at=45, script="stress.py", epochs=5, arguments=("--samples", "8000")),
    DemoJob(at=60, script="mnist.py", epochs=5, target=0.95, gpus=4),
)

#: (snapshot, seconds since the first job, link to the page)
Show = Callable[[ServiceSnapshot, float, str], None]


@dataclass(frozen=True, slots=True)
class DemoResult:
    seconds: float
    jobs: list[dict[str, Any]]  # the last card of each job, in order of submission
    live: dict[str, Any]
    #: results of the recorded jobs in the simulator, by policy; empty if no job completed
    simulated: dict[str, dict[str, Any]]
    kept: Path | None


def demo(
    connect: Callable[[str, str], ServiceClient],
    show: Show,
    *,
    keep: Path | None = None,
    jobs: tuple[DemoJob, ...] = JOBS,
) -> DemoResult:
    """Run the demonstration. `connect` makes a client from address and token; `show` is called with
    every snapshot."""
    scripts = examples()
    require("ones demo", *NEEDS)
    from ones.control import service_process
    from ones.control.statedir import StateDir

    with _signals_handled(_interrupt), _state_directory(keep) as state:
        settings = ServiceSettings(
            state=str(state), port=0, slots=SLOTS, policy=POLICY, grace_seconds=2.0
        )
        warm_up(POLICY)
        address = service_process.start(settings, {})
        client = connect(address.url, StateDir(state).read_token() or "")
        temporary = state / "tmp"  # torch leaves files there; removed with the state directory
        temporary.mkdir()
        cards, seconds = _run_jobs(client, show, scripts, jobs, temporary)
        simulated = _simulate_again(state)
    return DemoResult(seconds, cards, _row(cards, seconds), simulated, keep and state)


def _run_jobs(
    client: ServiceClient, show: Show, scripts: Path, jobs: tuple[DemoJob, ...], temporary: Path
) -> tuple[list[dict[str, Any]], float]:
    """Submits the jobs at their times and waits until the last one has ended."""
    link = client.post("/api/link")["url"]
    began = time.monotonic()
    submitted = 0
    while True:
        now = time.monotonic() - began
        while submitted < len(jobs) and jobs[submitted].at <= now:
            _submit(client, jobs[submitted], scripts, temporary)
            submitted += 1
        snapshot = take_snapshot(client, ended=True)
        cards = snapshot.jobs
        show(snapshot, now, link)
        if submitted == len(jobs) and all(card["ended_at"] is not None for card in cards):
            return cards, time.monotonic() - began
        if now > TIMEOUT_SECONDS:
            raise WorldError(f"the jobs have not ended within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _submit(client: ServiceClient, job: DemoJob, scripts: Path, temporary: Path) -> None:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(temporary)}
    client.post(
        "/api/jobs",
        {
            "command": [
                sys.executable,
                str(scripts / job.script),
                "--epochs",
                str(job.epochs),
                *job.arguments,
            ],
            "cwd": str(scripts),
            "env": env,
            "kind": Path(job.script).stem,
            "requested_gpus": job.gpus,
            "epochs": job.epochs,
            "target_accuracy": job.target,
            "elastic": True,
            "retries": 1,
        },
    )


def _row(cards: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """The results of the live run, with the keys of a simulated run."""
    times = [card["ended_at"] - card["submitted_at"] for card in cards]
    n = len(cards)
    return {
        "policy": POLICY,
        "jobs": n,
        "finished": sum(card["state"] in ("finished", "converged") for card in cards),
        "mean_jct": sum(times) / n,
        "mean_queue": sum(card["queue_seconds"] for card in cards) / n,
        "mean_exec": sum(card["run_seconds"] for card in cards) / n,
        "makespan": seconds,
        "rescales": sum(card["rescales"] for card in cards),
        "preemptions": sum(card["preemptions"] for card in cards),
        "pause_seconds": sum(card["pause_seconds"] for card in cards),
    }


def _simulate_again(state: Path) -> dict[str, dict[str, Any]]:
    """Simulates the recorded jobs from their measured step times."""
    from ones.control.run_log_export import write_run_log
    from ones.control.statedir import StateDir

    log = state / LOG_NAME
    write_run_log(StateDir(state).database, log)
    found = {}
    for policy, mechanism in ((POLICY, "elastic"), (RIVAL, "native")):
        spec = RunSpec(
            policy=policy, mechanism=mechanism, workload=str(log), gpus=SLOTS,
            gpus_per_node=SLOTS, jobs=None,
        )  # fmt: skip
        try:
            found[policy] = Run(spec).carry_out()
        except UserError:  # no job completed: there is nothing to compare
            return {}
    return found


@contextmanager
def _state_directory(keep: Path | None) -> Iterator[Path]:
    """The directory `keep`, or a temporary one. The service in it is stopped at the end."""
    from ones.control import service_process
    from ones.control.statedir import StateDir

    if keep is None:
        path = Path(tempfile.mkdtemp(prefix="ones-demo-"))
    else:
        path = keep.absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"--keep: {keep} is not an empty directory")
    try:
        yield path
    finally:
        with _signals_handled(signal.SIG_IGN):  # a second Ctrl-C must not stop the clean-up
            service_process.kill(StateDir(path))
            if keep is None:
                shutil.rmtree(path, ignore_errors=True)


#: a closed terminal (SIGHUP) and SIGTERM end the demonstration as Ctrl-C does
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _signals_handled(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
