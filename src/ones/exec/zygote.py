"""Starts workers as forks of a process that has torch loaded: the client of `ones.train.zygote`.

The docstring there has the protocol. If the zygote does not start, or refuses, workers are started
by fork and exec: slower, otherwise the same.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ones.exec.files import connect_socket
from ones.exec.processes import die_with_parent, find_process, send_signal
from ones.exec.records import Launch
from ones.exec.worker_process import WorkerProcess

SOCKET = "zygote.sock"  # in the run directory, which is the zygote's working directory
LIFELINE = "ONES_LIFELINE"  # descriptor of a pipe: workers die when its other end is closed
_PYTHON = re.compile(r"python[0-9.]*")
#: messages of the zygote, and their possible values
_MESSAGES = {"pid": range(1, 1 << 31), "exit": range(256), "signal": range(1, 65)}


def can_fork(launch: Launch) -> bool:
    """Whether the command is `python script.py ...` or `python -m module ...`, without options."""
    return (
        _PYTHON.fullmatch(os.path.basename(launch.argv[0])) is not None
        and len(launch.argv) > 1
        and (launch.argv[1].endswith(".py") or (launch.argv[1] == "-m" and len(launch.argv) > 2))
    )


def connect_zygote(run_dir: str | Path) -> socket.socket | None:
    """Connects to the zygote of a run directory; None if there is none, or it is not ready."""
    try:
        return connect_socket(Path(run_dir), SOCKET)
    except OSError:
        return None


def request_fork(
    connection: socket.socket, argv: Sequence[str], cwd: str, env: Mapping[str, str], output: int
) -> None:
    """Requests a process with stdout and stderr to `output`. Raises OSError."""
    request = {"argv": list(argv), "cwd": cwd, "env": dict(env)}
    text = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [text], [output, output])
    connection.sendall(text[sent:])


class _ForkRequest:
    """A requested worker, and the connection on which the zygote reports its end."""

    def __init__(self, worker: WorkerProcess, connection: socket.socket) -> None:
        self.worker = worker
        self.connection = connection
        self.is_forked = False
        self.is_over = False  # the zygote reports nothing more
        self._received = b""
        try:
            launch = worker.launch
            request_fork(connection, launch.argv[1:], launch.cwd, launch.env, worker.output_end)
        except OSError:
            self.is_over = True
        connection.setblocking(False)

    def fileno(self) -> int:
        return self.connection.fileno()

    def receive(self) -> Iterator[dict[str, int]]:
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_over = True
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            yield _parse_message(line)


def _parse_message(text: bytes) -> dict[str, int]:
    """A message of the zygote, which is not trusted; an error if it is invalid."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        message = None
    if isinstance(message, dict) and len(message) == 1:
        ((name, value),) = message.items()
        if type(value) is int and value in _MESSAGES.get(name, ()):
            return {name: value}
    return {"error": 0}


class _Zygote:
    """A zygote process. Ends with ones-exec."""

    def __init__(self, run_dir: Path, launch: Launch, lifeline: int) -> None:
        self.interpreter = launch.argv[0]
        self.waiting: list[WorkerProcess] = []  # until it is ready
        (run_dir / SOCKET).unlink(missing_ok=True)
        me = os.getpid()
        # ONES_RUN_DIR would mark all its children as processes of the first worker
        env = {k: v for k, v in launch.env.items() if k != "ONES_RUN_DIR"}
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
            preexec_fn=lambda: die_with_parent(me),  # noqa: PLW1509  # this process has one thread
        )
        process.returncode = 0  # reaped by the supervisor and not by this object
        self.pid = process.pid

    def kill(self) -> None:
        process = find_process(self.pid)
        if process is not None:
            send_signal(process, signal.SIGKILL)


class ForkStarter:
    """Starts workers from a zygote, which is started with the first of them.

    `on_started` is called for each worker that runs; `start` for each that must be started by fork
    and exec instead.
    """

    def __init__(
        self,
        run_dir: Path,
        selector: selectors.BaseSelector,
        *,
        on_started: Callable[[WorkerProcess], None],
        start: Callable[[WorkerProcess], None],
    ) -> None:
        self._run_dir, self._selector = run_dir, selector
        self._on_started, self._start = on_started, start
        self._zygote: _Zygote | None = None
        self._requests: list[_ForkRequest] = []
        # nothing is ever written to it: workers die when this process ends and closes it
        self._lifeline, self._lifeline_end = os.pipe2(os.O_CLOEXEC)

    @property
    def pid(self) -> int | None:
        """The pid of the zygote; None if there is none."""
        return None if self._zygote is None else self._zygote.pid

    @property
    def is_waiting(self) -> bool:
        """Whether workers wait until the zygote is ready."""
        return self._zygote is not None and bool(self._zygote.waiting)

    def prepare(self, launch: Launch) -> bool:
        """Starts a zygote for launches like this one; False if none is needed."""
        if self._zygote is not None or not can_fork(launch):
            return False
        self._zygote = _Zygote(self._run_dir, launch, self._lifeline)
        return True

    def start(self, worker: WorkerProcess) -> None:
        zygote = self._zygote
        if zygote is None or zygote.interpreter != worker.launch.argv[0]:
            if zygote is not None and any(request.is_forked for request in self._requests):
                self._start(worker)  # the zygote of another interpreter is in use
                return
            try:
                zygote = _Zygote(self._run_dir, worker.launch, self._lifeline)
            except OSError:
                self._start(worker)
                return
            self.kill()
            self._zygote = zygote
        zygote.waiting.append(worker)

    def cancel(self, worker: WorkerProcess) -> bool:
        """Withdraws a worker that waits for the zygote; False if it does not."""
        if self._zygote is None or worker not in self._zygote.waiting:
            return False
        self._zygote.waiting.remove(worker)
        return True

    def send_requests(self) -> None:
        """Requests the waiting workers, once the zygote is ready."""
        while self._zygote is not None and self._zygote.waiting:
            connection = connect_zygote(self._run_dir)
            if connection is None:
                return
            request = _ForkRequest(self._zygote.waiting.pop(0), connection)
            self._requests.append(request)
            self._selector.register(
                request, selectors.EVENT_READ, lambda r=request: self._receive(r)
            )
            if request.is_over:
                self._end(request)

    def _receive(self, request: _ForkRequest) -> None:
        worker = request.worker
        for message in request.receive():
            if "pid" in message:
                request.is_forked = True
                worker.set_started(message["pid"])
                self._on_started(worker)
            elif "error" in message:
                request.is_over = True
            elif worker.wait_status is None:
                status = message["exit"] << 8 if "exit" in message else message["signal"]
                worker.wait_status = status
                request.is_over = True
        if request.is_over:
            self._end(request)

    def _end(self, request: _ForkRequest) -> None:
        self._selector.unregister(request)
        request.connection.close()
        self._requests.remove(request)
        if not request.is_forked:
            self._start(request.worker)

    def zygote_died(self) -> None:
        """The zygote's forks are children of this process now, and are reaped as such."""
        assert self._zygote is not None
        for request in self._requests:
            worker = request.worker
            if worker.pid is None or worker.wait_status is not None:
                continue
            if find_process(worker.pid) is None:
                worker.wait_status = signal.SIGKILL  # its real status is lost
        waiting, self._zygote = self._zygote.waiting, None
        for worker in waiting:
            self._start(worker)

    def kill(self) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.kill()
