"""Fork server with torch loaded: `python -m ones.train.zygote SOCKET`.

A fresh interpreter spends seconds on `import torch` and the first optimizer; a fork of this one
trains after milliseconds. CUDA is not used before the fork.

The protocol, over a Unix stream socket, one connection per worker:

* request: one JSON line with exactly two file descriptors (SCM_RIGHTS), the worker's stdout and
  stderr:
  `{"argv": ["train.py", "--fast"], "cwd": "/home/a", "env": {"ONES_JOB": ...}}`.
  `argv` is what follows `python`: a script, or `-m` and a module. `env` is the whole environment.
* answer: `{"pid": 123}` at once, and `{"exit": 0}` or `{"signal": 9}` at the end; or only
  `{"error": "..."}`.

A worker has its own session and process group, with its pid as their id, and stdin from /dev/null.
The zygote is its parent and reaps it. A worker outlives a closed connection. It is killed when the
other end of the pipe ONES_LIFELINE is closed (`_die_with_pipe`). SIGTERM ends the zygote, not its
workers: they pass to the subreaper. The zygote is ready when SOCKET accepts connections.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import random
import runpy
import select
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ones.exec import snapshot

_MAX_REQUEST = 4 << 20


@dataclass(slots=True)
class _Client:
    connection: socket.socket
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)

    def answer(self, **values: object) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(values).encode() + b"\n")

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        self.connection.close()


class ForkServer:
    """Serves requests for forks. `lifeline`: descriptor of the pipe ONES_LIFELINE."""

    def __init__(self, path: str, lifeline: int | None = None) -> None:
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._workers: dict[int, tuple[int, _Client]] = {}  # by pidfd: pid, client
        self._stopped = False

    def serve(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        signal.signal(signal.SIGTERM, self._stop)
        while not self._stopped:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
        os.unlink(self._path)

    def _stop(self, *_: object) -> None:
        self._stopped = True
        # a signal handler does not wake select(); a connection to ourselves does
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wakeup:
            wakeup.connect(self._path)

    def _accept(self, _: object) -> None:
        client = _Client(self._listener.accept()[0])
        self._selector.register(
            client.connection, selectors.EVENT_READ, lambda _: self._receive(client)
        )

    def _receive(self, client: _Client) -> None:
        descriptors = array.array("i")
        try:
            data, ancillary, _, _ = client.connection.recvmsg(
                65536, socket.CMSG_SPACE(4 * descriptors.itemsize)
            )
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
        client.descriptors.extend(descriptors)
        client.received += data
        if data and b"\n" not in data and len(client.received) <= _MAX_REQUEST:
            return
        self._selector.unregister(client.connection)
        try:
            self._fork(client, json.loads(client.received.split(b"\n")[0]))
        except (ValueError, KeyError, TypeError, OSError) as problem:
            if client.received:
                client.answer(error=f"{type(problem).__name__}: {problem}")
            client.close()

    def _fork(self, client: _Client, request: dict[str, Any]) -> None:
        argv, cwd, env = list(request["argv"]), str(request["cwd"]), dict(request["env"])
        if not argv or len(client.descriptors) != 2:
            raise ValueError("a request is argv, cwd, env and two file descriptors")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._run_worker(argv, cwd, env, client.descriptors)
        client.answer(pid=pid)
        for descriptor in client.descriptors:
            os.close(descriptor)
        client.descriptors.clear()
        watched = os.pidfd_open(pid)
        self._workers[watched] = (pid, client)
        self._selector.register(watched, selectors.EVENT_READ, self._reap)

    def _reap(self, watched: Any) -> None:
        pid, client = self._workers.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            client.answer(signal=os.WTERMSIG(status))
        else:
            client.answer(exit=os.WEXITSTATUS(status))
        client.close()

    def _run_worker(
        self, argv: list[str], cwd: str, env: dict[str, str], outputs: list[int]
    ) -> NoReturn:
        """Runs the requested worker, in the child."""
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            devnull = os.open(os.devnull, os.O_RDONLY)
            for descriptor, target in ((devnull, 0), (outputs[0], 1), (outputs[1], 2)):
                os.dup2(descriptor, target)
            kept = _die_with_pipe(self._lifeline) if self._lifeline is not None else 2
            # close the zygote's sockets: their peers would wait for the end of this worker, too
            os.closerange(3, kept)
            os.closerange(kept + 1, _descriptor_limit())
            if snapshot.DIGEST in env:
                cwd = _enter_snapshot(env)
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            code = _run(argv)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _enter_snapshot(env: dict[str, str]) -> str:
    """Unpacks the job's snapshot, and imports from there what PYTHONPATH has of the tree."""
    before = env.get("PYTHONPATH", "").split(os.pathsep)
    directory = snapshot.enter(env)
    moved = dict(zip(before, env.get("PYTHONPATH", "").split(os.pathsep), strict=True))
    sys.path[:] = [moved.get(path, path) for path in sys.path]
    return directory


def _descriptor_limit() -> int:
    return max((int(name) for name in os.listdir("/proc/self/fd")), default=3) + 1


def _die_with_pipe(pipe: int) -> int:
    """Kills this process when the other end of the pipe is closed: when ones-exec has died.

    PR_SET_PDEATHSIG would tie a worker to its parent, the zygote, which it may outlive. The kernel
    sends SIGKILL when anything happens to the pipe; nothing is ever written to it. This needs no
    thread, so a worker that hangs in a library dies, too. Returns a descriptor to keep open.
    """
    # signals belong to an open file, not to a descriptor: every worker opens its own
    own = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    poll = select.poll()
    poll.register(own, select.POLLIN)
    if poll.poll(0):  # closed before the signal was requested
        os.kill(os.getpid(), signal.SIGKILL)
    return own


def _run(argv: list[str]) -> int:
    import atexit
    import threading

    import numpy as np
    import torch

    random.seed()
    np.random.seed()  # noqa: NPY002 - scripts that use the global generator expect a fresh one
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        torch.set_num_threads(int(threads))  # libgomp has read its variable before the fork
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            sys.path[0] = os.getcwd()
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    return code


def _exit_code(code: object) -> int:
    """The exit code, as the interpreter determines it."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def main() -> None:
    import torch
    import torch._dynamo  # the first optimizer would import it
    import torch.distributed
    import torch.utils.data

    import ones.train.joining  # noqa: F401

    torch.set_num_threads(1)  # no thread pool may exist at the fork
    lifeline = os.environ.get("ONES_LIFELINE", "")
    ForkServer(sys.argv[1], int(lifeline) if lifeline else None).serve()


if __name__ == "__main__":
    main()
