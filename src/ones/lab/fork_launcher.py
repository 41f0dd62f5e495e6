"""A launcher that forks all workers of a run from one zygote, without `ones-exec`.

Torch is imported once, for any number of runs. Workers are killed when the run is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from ones.errors import WorldError
from ones.exec import Exit
from ones.exec.output import Chunk
from ones.launchers import Exited, Launch, LaunchedProcess, Slot, Started
from ones.launchers.api import Listener


def start_zygote(path: str) -> subprocess.Popen[bytes]:
    """Starts a zygote that listens at `path`; returns when it is ready."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "ones.train.zygote", path], env=env)
    while not os.path.exists(path):
        if process.poll() is not None:
            raise WorldError(f"the zygote ended with exit code {process.returncode}")
        time.sleep(0.05)
    return process


class ForkLauncher:
    """As `ones.launchers.local`, with processes of its own."""

    def __init__(self, zygote: str, directory: Path, slots: list[Slot]) -> None:
        self._slots = slots
        self.zygote, self._directory = zygote, directory
        self.job_dir = directory / "job"
        self.job_dir.mkdir(parents=True)
        (self.job_dir / "zygote.sock").symlink_to(zygote)
        self._listener: Listener = lambda event: None
        self._processes: dict[str, LaunchedProcess] = {}
        self._threads: list[threading.Thread] = []

    def open(self, listener: Listener) -> None:
        self._listener = listener

    def slots(self) -> list[Slot]:
        return self._slots

    def launch(self, launch: Launch) -> None:
        run_dir = self._directory / launch.id
        run_dir.mkdir()
        line = socket.socket(socket.AF_UNIX)
        line.connect(self.zygote)
        env = {
            **launch.env,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "ONES_RUN_DIR": str(run_dir),
            "ONES_JOB_DIR": str(self.job_dir),
            "ONES_HOST": "127.0.0.1",
        }
        request = {"argv": launch.argv[1:], "cwd": launch.cwd, "env": env}
        text = json.dumps(request).encode() + b"\n"
        with (run_dir / "output").open("wb") as out:
            sent = socket.send_fds(line, [text], [out.fileno(), out.fileno()])
        line.sendall(text[sent:])
        lines = line.makefile()
        pid = json.loads(lines.readline())["pid"]
        self._processes[launch.id] = LaunchedProcess(
            id=launch.id, job=launch.job, slots=launch.slots, pid=pid
        )
        self._listener(Started(launch.id, pid))

        def wait() -> None:
            news = json.loads(lines.readline() or '{"signal": 9}')
            lines.close()
            line.close()
            record = Exit(
                code=news.get("exit"), signal=news.get("signal"), at=time.time(), cause="exited"
            )
            known = self._processes[launch.id]
            self._processes[launch.id] = LaunchedProcess(
                id=launch.id, job=launch.job, slots=known.slots, pid=pid, exit=record
            )
            self._listener(Exited(launch.id, record))

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self, id: str, grace_seconds: float) -> None:
        process = self._processes[id]
        if process.alive and process.pid is not None:
            pid = process.pid
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM if grace_seconds else signal.SIGKILL)
            if grace_seconds:  # one that is stopped does not hear the first
                threading.Timer(min(grace_seconds, 3.0), self._kill, args=(id, pid)).start()

    def _kill(self, id: str, pid: int) -> None:
        if self._processes[id].alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def running(self) -> dict[str, LaunchedProcess]:
        return dict(self._processes)

    def history(self, job: str) -> list[LaunchedProcess]:
        return list(self._processes.values())

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        path = self._directory / id / "output"
        data = path.read_bytes()[offset : offset + limit] if path.exists() else b""
        return Chunk(data, offset, offset + len(data))

    def forget(self, job: str) -> None:
        pass

    def close(self, *, kill: bool) -> None:
        for process in self._processes.values():
            if process.alive and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        for thread in self._threads:
            thread.join()
