"""A pool of processes, each with one run at a time.

With `concurrent.futures`, a process that dies (out of memory) ends all runs; here only its own.
The processes are spawned with one thread for linear algebra. They exit when the pipe to their
parent closes, and die with it.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ones.exec.processes import die_with_parent
from ones.lab.processes import results_only
from ones.lab.runs import RunSpec

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DIED = 70

Item = TypeVar("Item")
Work = tuple[str, RunSpec]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(
    work: Sequence[tuple[Item, Work]], processes: int
) -> Iterator[tuple[Item, dict[str, Any]]]:
    """Yields each item with its result as it finishes. Leaving early ends the current runs."""
    left = deque(work)
    workers: dict[Connection, tuple[_Worker, Item]] = {}

    def start_next(worker: _Worker | None) -> None:
        """Gives the next run to this worker or to a new one."""
        if not left:
            if worker is not None:
                worker.leave()
            return
        item, (task, spec) = left.popleft()
        worker = worker or _Worker()
        workers[worker.pipe] = (worker, item)
        worker.pipe.send((task, spec))

    try:
        for _ in range(min(processes, len(left))):
            start_next(None)
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                worker, item = workers.pop(ready)
                try:
                    result = ready.recv()
                except (EOFError, ConnectionError):
                    message = f"its process died ({worker.exit_reason()})"
                    result = {
                        "error": {"message": message, "exit_code": _DIED, "traceback": message}
                    }
                    start_next(None)
                else:
                    start_next(worker)
                yield item, result
    finally:
        for worker, _ in workers.values():
            worker.end()


class _Worker:
    def __init__(self) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        with _one_thread():
            self._process.start()
        theirs.close()

    def leave(self) -> None:
        self.pipe.close()
        self._process.join()

    def end(self) -> None:
        """Ends the process at once."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()

    def exit_reason(self) -> str:
        """Signal or exit code of a process that has ended by itself."""
        self.leave()
        code = self._process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"


def _serve(pipe: Connection, parent: int) -> None:
    """Executes tasks in the worker until the pipe closes."""
    from ones.lab.comparison.tasks import run_task

    die_with_parent(parent)  # a run may take minutes, and its result would be lost
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    with results_only(), suppress(EOFError, ConnectionError):
        while True:
            task, spec = pipe.recv()
            pipe.send(run_task(task, spec))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sets the environment of processes started here: one thread for linear algebra."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
