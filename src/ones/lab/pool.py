"""Many runs over processes, one at a time in each.

Not `concurrent.futures`: there, a process that dies (out of memory, say) takes all runs with
it; here it costs the run it was at. Workers are spawned, with one thread for linear algebra,
leave when the pipe to whoever started them closes, and die with whoever that is.
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
from ones.lab.bench import results_only
from ones.lab.runs import RunSpec

_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_DIED = 70

Item = TypeVar("Item")
Work = tuple[str, RunSpec]


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def run_all(
    work: Sequence[tuple[Item, Work]], processes: int
) -> Iterator[tuple[Item, dict[str, Any]]]:
    """Each item with its result, as they finish. Leaving early ends what is under way."""
    left = deque(work)
    workers: dict[Connection, tuple[_Worker, Item]] = {}

    def give(worker: _Worker | None) -> None:
        """The next run, to this worker or to a new one."""
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
            give(None)
        while workers:
            for ready in wait(list(workers)):
                assert isinstance(ready, Connection)
                worker, item = workers.pop(ready)
                try:
                    result = ready.recv()
                except (EOFError, ConnectionError):
                    told = f"its process died ({worker.last_words()})"
                    result = {"error": {"message": told, "exit_code": _DIED, "traceback": told}}
                    give(None)
                else:
                    give(worker)
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
        """At once."""
        self.pipe.close()
        self._process.terminate()
        self._process.join()

    def last_words(self) -> str:
        """How it ended, of its own."""
        self.leave()
        code = self._process.exitcode
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"


def _serve(pipe: Connection, parent: int) -> None:
    """In the worker: until nobody asks any more."""
    from ones.lab.tasks import carry_out

    die_with_parent(parent)  # a run may take minutes: nobody would get what comes out of it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who started us
    with results_only(), suppress(EOFError, ConnectionError):
        while True:
            task, spec = pipe.recv()
            pipe.send(carry_out(task, spec))


@contextmanager
def _one_thread() -> Iterator[None]:
    """For processes started here: linear algebra reads it when it is first imported."""
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
