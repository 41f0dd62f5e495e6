"""The alternatives to a rescale in place: stop all workers and start them again.

Three ways, each with its best settings: checkpoint and new interpreters; checkpoint and forks of a
process that has loaded torch; torchrun, where the agents notice a joining worker and restart all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ones.errors import WorldError
from ones.lab.bench.elastic.step_traces import (
    Pause,
    ProcessTrace,
    pause_of_restart,
    read_trace,
    read_traces,
)

SCRIPT = ("-m", "ones.train.bench.rescale_restart")
TIMEOUT_SECONDS = 600.0

#: starts `python` with arguments, output to a file; returns a function that waits for the exit code
Starter = Callable[[Sequence[str], Path], Callable[[], int]]


def one_thread() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def fresh(words: Sequence[str], output: Path) -> Callable[[], int]:
    """Starts a new interpreter."""
    with output.open("wb") as file:
        process = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file,
                                   env=one_thread())  # fmt: skip

    def wait() -> int:
        try:
            return process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    return wait


@contextlib.contextmanager
def zygote(directory: Path) -> Iterator[Starter]:
    """Starts forks of a process that has loaded torch, by the protocol of `ones.train.zygote`."""
    path, env = directory / "zygote.sock", one_thread()
    with (directory / "zygote.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "ones.train.zygote", path.name],
                                   cwd=directory, env=env, stdout=log, stderr=log)  # fmt: skip

    def start(words: Sequence[str], output: Path) -> Callable[[], int]:
        line = _connected(path)
        request = {"argv": list(words), "cwd": str(Path.cwd()), "env": env}
        with output.open("wb") as file:
            text = json.dumps(request).encode() + b"\n"
            sent = socket.send_fds(line, [text], [file.fileno(), file.fileno()])
            line.sendall(text[sent:])

        def wait() -> int:
            with line, line.makefile() as answers:
                for answer in map(json.loads, answers):
                    if "pid" not in answer:
                        return int(answer.get("exit", -1))
            return -1

        return wait

    try:
        until = time.monotonic() + TIMEOUT_SECONDS
        while not path.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        _connected(path).close()
        yield start
    finally:
        process.terminate()
        process.wait()


def _connected(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(TIMEOUT_SECONDS)
    line.connect(os.path.relpath(path))  # an address of more than 107 bytes is refused
    return line


def restarts(
    start: Starter, chain: Sequence[int], model: Sequence[str], steps: int, directory: Path
) -> list[tuple[Pause, dict[str, float]]]:
    """The pause of each change of the chain, and its parts on rank 0."""
    directory.mkdir()
    checkpoint = directory / "checkpoint.pt"
    runs: list[list[ProcessTrace]] = []
    for number, workers in enumerate(chain):
        home = directory / str(number)
        home.mkdir()
        waits = [
            start(
                [
                    *(*SCRIPT, *model, "--out", str(home), "--checkpoint", str(checkpoint)),
                    *("--steps", str(steps), "--workers", str(workers), "--rank", str(rank)),
                    *("--meet", str(home / "meet")),
                ],
                home / f"{rank}.log",
            )
            for rank in range(workers)
        ]
        codes = [wait() for wait in waits]
        if any(codes):
            bad = next(code for code in codes if code)
            raise WorldError(f"a worker of the rival ended with {bad}: {_last_line(home)}")
        runs.append(read_traces(home))
    return [(pause_of_restart(old, new), _parts(old, new)) for old, new in pairwise(runs)]


def _parts(old: list[ProcessTrace], new: list[ProcessTrace]) -> dict[str, float]:
    was = next(trace for trace in old if trace.rank == 0)
    now = next(trace for trace in new if trace.rank == 0)
    at = [was.steps[-1].end, was.moments["saved"]]
    at += [now.moments[name] for name in ("started", "built", "loaded", "connected")]
    names = ("save", "stop_and_start", "import_and_build", "load", "connect")
    return {name: b - a for name, (a, b) in zip(names, pairwise(at), strict=True)}


def _last_line(home: Path) -> str:
    for log in sorted(home.glob("*.log")):
        lines = log.read_text(errors="replace").strip().splitlines()
        if lines:
            return lines[-1]
    return "no output"


# torchrun


def torchrun(chain: Sequence[int], model: Sequence[str], directory: Path) -> list[Pause]:
    """Pauses of growth only: when an agent leaves, the others wait 30 s and more for its return."""
    directory.mkdir()
    port = _free_port()
    # torch 2.13 shares a store by default, and the second rendezvous never gets its address
    env = one_thread() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents: list[subprocess.Popen[bytes]] = []
    try:
        for workers in chain:
            while len(agents) < workers:
                agents.append(_agent(len(agents), max(chain), port, model, directory, env))
            _wait_for(workers, directory, agents)
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGTERM)
        for agent in agents:
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
    traces = read_traces(directory)
    by_size = [[t for t in traces if t.steps and t.steps[0].workers == n] for n in chain]
    return [pause_of_restart(old, new) for old, new in pairwise(by_size)]


def _agent(
    number: int, most: int, port: int, model: Sequence[str], home: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    words = [
        *("-m", "torch.distributed.run", f"--nnodes=1:{most}", "--nproc-per-node=1"),
        *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"),
        *("--rdzv-conf=last_call_timeout=1", "--monitor-interval=0.1", "--max-restarts=9"),
        *(*SCRIPT, *model, "--torchrun", "--out", str(home), "--steps", "5"),
        *("--checkpoint", str(home / "checkpoint.pt")),
    ]
    with (home / f"{number}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, *words], stdout=log, stderr=log, env=dict(env),
                                start_new_session=True)  # fmt: skip


def _wait_for(workers: int, home: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    """Waits until this number of workers train together and have saved at least once."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < until:
        ready = [
            path
            for path in home.glob(f"rank*of{workers}-*.jsonl")
            if len(read_trace(path).steps) >= 6
        ]
        if len(ready) >= workers:
            return
        if any(agent.poll() is not None for agent in agents):
            raise WorldError(f"torchrun gave up: {_last_line(home)}")
        time.sleep(0.2)
    raise WorldError(f"torchrun did not come to {workers} workers in {TIMEOUT_SECONDS:.0f} s")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
