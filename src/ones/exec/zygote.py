"""A process that has torch in memory already and forks workers from it: the client's side.

`ones.train.zygote` is the other side; its docstring has the protocol. Where it does not
come up, or refuses, workers are started plainly: slower, and otherwise the same.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ones.exec.processes import die_with, look, send
from ones.exec.records import Spec
from ones.exec.worker import Worker

SOCKET = "zygote.sock"  # in the run directory, which is also where the zygote runs
LIFELINE = "ONES_LIFELINE"  # a file descriptor; see `ones.train.lifeline`
_PYTHON = re.compile(r"python[0-9.]*")


def fits(spec: Spec) -> bool:
    """`python script.py ...` or `python -m module ...`, without options of the interpreter."""
    return (
        _PYTHON.fullmatch(os.path.basename(spec.argv[0])) is not None
        and len(spec.argv) > 1
        and (spec.argv[1].endswith(".py") or (spec.argv[1] == "-m" and len(spec.argv) > 2))
    )


class Birth:
    """One worker that was asked for, and the line on which its end will be told."""

    def __init__(self, worker: Worker, line: socket.socket) -> None:
        self.worker = worker
        self.line = line
        self.pid: int | None = None
        self.refused = False
        self.over = False  # nothing more will be told here
        self._received = b""

    def fileno(self) -> int:
        return self.line.fileno()

    def hear(self) -> Iterator[dict[str, int]]:
        try:
            data = self.line.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
        self._received += data
        *whole, self._received = self._received.split(b"\n")
        for text in whole:
            yield _news(text)


#: what the zygote may say, and the values it can have
_SAID = {"pid": range(1, 1 << 31), "exit": range(256), "signal": range(1, 65)}


def _news(text: bytes) -> dict[str, int]:
    """The zygote is a process of the job and may say anything: what is no news is a refusal."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict) and len(said) == 1:
        ((name, value),) = said.items()
        if type(value) is int and value in _SAID.get(name, ()):
            return {name: value}
    return {"error": 0}


class Zygote:
    """Started with the first worker that can use it; ends with ones-exec."""

    def __init__(self, run_dir: Path, spec: Spec, lifeline: int) -> None:
        """`lifeline`: the end of a pipe whose other end dies with us, and workers with that."""
        self.interpreter = spec.argv[0]
        self.waiting: list[Worker] = []  # until it is ready
        self._run_dir = run_dir
        self.alive = True
        (run_dir / SOCKET).unlink(missing_ok=True)
        me = os.getpid()
        # ONES_RUN_DIR would mark all of its children as the first worker's
        env = {k: v for k, v in spec.env.items() if k != "ONES_RUN_DIR"}
        env[LIFELINE] = str(lifeline)
        process = subprocess.Popen(
            [self.interpreter, "-m", "ones.train.zygote", SOCKET],
            cwd=run_dir,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            start_new_session=True,
            pass_fds=[lifeline],
            preexec_fn=lambda: die_with(me),  # noqa: PLW1509  # this process has one thread
        )
        process.returncode = 0  # reaped by the loop and not by this object
        self.pid = process.pid

    def births(self) -> list[Birth]:
        """Ask for those who wait, once it is ready."""
        born: list[Birth] = []
        while self.waiting:
            line = self._connect()
            if line is None:
                break
            worker = self.waiting.pop(0)
            request = {
                "argv": worker.spec.argv[1:],
                "cwd": worker.spec.cwd,
                "env": dict(worker.spec.env),
            }
            birth = Birth(worker, line)
            try:
                text = json.dumps(request).encode() + b"\n"
                sent = socket.send_fds(line, [text], [worker.output_end, worker.output_end])
                line.sendall(text[sent:])
            except OSError:
                birth.refused = birth.over = True
            line.setblocking(False)
            born.append(birth)
        return born

    def _connect(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self._run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            line.connect(f"/proc/self/fd/{directory}/{SOCKET}")
        except OSError:
            line.close()
            return None
        finally:
            os.close(directory)
        return line

    def kill(self) -> None:
        process = look(self.pid)
        if self.alive and process is not None:
            with suppress(OSError):
                send(process, signal.SIGKILL)
