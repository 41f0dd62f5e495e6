"""Torch loaded once, workers forked on request: `python -m ones.train.zygote SOCKET`.

A fresh interpreter spends seconds on `import torch` and the first optimizer; a fork of
this one starts to train in milliseconds. CUDA is never touched before the fork.

The protocol, over a Unix stream socket, one connection for each worker:

* request: one JSON line with exactly two file descriptors beside it (SCM_RIGHTS), the worker's
  stdout and stderr:
  `{"argv": ["train.py", "--fast"], "cwd": "/home/a", "env": {"ONES_JOB": ...}}`.
  `argv` is what follows `python`: a script, or `-m` and a module. `env` is the whole
  environment of the worker.
* answer: `{"pid": 123}` at once, and `{"exit": 0}` or `{"signal": 9}` when it has ended; or
  `{"error": "..."}` and nothing more.

A worker has its own session and process group, whose id is its pid, and stdin from /dev/null.
The zygote is its parent and reaps it. A worker outlives a connection that is closed. It dies
with the other end of the pipe that ONES_LIFELINE names, if there is one: see `lifeline`. SIGTERM
ends the zygote, not its workers: they pass to whoever is subreaper. When SOCKET can be
connected to, the zygote is ready.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ones.train.lifeline import hold

_MAX_REQUEST = 4 << 20


@dataclass(slots=True)
class _Caller:
    connection: socket.socket
    received: bytes = b""
    descriptors: list[int] = field(default_factory=list)

    def answer(self, **words: object) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(words).encode() + b"\n")

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()
        self.connection.close()


class Zygote:
    def __init__(self, path: str, lifeline: int | None = None) -> None:
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._workers: dict[int, tuple[int, _Caller]] = {}  # pidfd -> pid, who asked for it
        self._ended = False

    def serve(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        signal.signal(signal.SIGTERM, self._end)
        while not self._ended:
            for key, _ in self._selector.select():
                key.data(key.fileobj)
        os.unlink(self._path)

    def _end(self, *_: object) -> None:
        self._ended = True
        # a signal handler does not wake select(); a connection to ourselves does
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as knock:
            knock.connect(self._path)

    def _accept(self, _: object) -> None:
        caller = _Caller(self._listener.accept()[0])
        self._selector.register(
            caller.connection, selectors.EVENT_READ, lambda _: self._hear(caller)
        )

    def _hear(self, caller: _Caller) -> None:
        room = array.array("i")
        try:
            data, ancillary, _, _ = caller.connection.recvmsg(
                65536, socket.CMSG_SPACE(4 * room.itemsize)
            )
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                room.frombytes(payload[: len(payload) - len(payload) % room.itemsize])
        caller.descriptors.extend(room)
        caller.received += data
        if data and b"\n" not in data and len(caller.received) <= _MAX_REQUEST:
            return
        self._selector.unregister(caller.connection)
        try:
            self._fork(caller, json.loads(caller.received.split(b"\n")[0]))
        except (ValueError, KeyError, TypeError, OSError) as problem:
            if caller.received:
                caller.answer(error=f"{type(problem).__name__}: {problem}")
            caller.close()

    def _fork(self, caller: _Caller, request: dict[str, Any]) -> None:
        argv, cwd, env = list(request["argv"]), str(request["cwd"]), dict(request["env"])
        if not argv or len(caller.descriptors) != 2:
            raise ValueError("a request is argv, cwd, env and two file descriptors")
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._become(argv, cwd, env, caller.descriptors)
        caller.answer(pid=pid)
        for descriptor in caller.descriptors:
            os.close(descriptor)
        caller.descriptors.clear()
        watched = os.pidfd_open(pid)
        self._workers[watched] = (pid, caller)
        self._selector.register(watched, selectors.EVENT_READ, self._reap)

    def _reap(self, watched: Any) -> None:
        pid, caller = self._workers.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            caller.answer(signal=os.WTERMSIG(status))
        else:
            caller.answer(exit=os.WEXITSTATUS(status))
        caller.close()

    def _become(
        self, argv: list[str], cwd: str, env: dict[str, str], outputs: list[int]
    ) -> NoReturn:
        """In the child: be the worker that was asked for."""
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for descriptor, target in ((nothing, 0), (outputs[0], 1), (outputs[1], 2)):
                os.dup2(descriptor, target)
            kept = hold(self._lifeline) if self._lifeline is not None else 2
            # the zygote's own sockets must not live on in a worker: who waits for their end would
            # wait for the worker's, too
            os.closerange(3, kept)
            os.closerange(kept + 1, _most_descriptors())
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


def _most_descriptors() -> int:
    return max((int(name) for name in os.listdir("/proc/self/fd")), default=3) + 1


def _run(argv: list[str]) -> int:
    import atexit
    import threading

    import numpy as np
    import torch

    random.seed()
    np.random.seed()  # noqa: NPY002 - scripts that use the global generator expect a fresh one
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():
        torch.set_num_threads(int(threads))  # libgomp has read its variable long ago
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
    """As the interpreter does it."""
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

    torch.set_num_threads(1)  # no thread pool may exist when we fork
    lifeline = os.environ.get("ONES_LIFELINE", "")
    Zygote(sys.argv[1], int(lifeline) if lifeline else None).serve()


if __name__ == "__main__":
    main()
