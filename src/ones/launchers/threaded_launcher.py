"""Base class of launchers with a thread of their own: calls from other threads are queued for it.

No launch, node or connection can end the thread. An exception in a unit of work is logged, and a
launch that fails exits as not started. A turn of the loop that fails is repeated.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial

from ones.exec.output import Chunk
from ones.exec.records import Exit, Launch, not_started
from ones.launchers.api import LaunchedProcess, LauncherEvent, Listener
from ones.launchers.launch_table import LaunchTable
from ones.launchers.run_dirs import RunDirs
from ones.launchers.work_queue import WorkQueue

#: longest duration of one turn of the loop
TURN_SECONDS = 5.0
#: pause after a turn that failed
RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class ThreadedLauncher(ABC):
    def __init__(self, run_dirs: RunDirs) -> None:
        self._listener: Listener = lambda event: None
        self._launches = LaunchTable(self._notify)
        self._work = WorkQueue()
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)
        self._dirs = run_dirs
        self._closing = False  # `_close` was called
        self.beat = time.monotonic()  # start of the last turn, for health checks

    # called from other threads

    def launch(self, launch: Launch) -> None:
        if self._launches.add(launch):
            self._work.add(partial(self._try_launch, launch))

    def prepare(self, launch: Launch) -> None:
        self._work.add(partial(self._prepare, launch))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._work.add(partial(self._stop, id, grace_seconds))

    def forget(self, job: str) -> None:
        self._work.add(partial(self._forget, job))

    def running(self) -> dict[str, LaunchedProcess]:
        return self._launches.all()

    def history(self, job: str) -> list[LaunchedProcess]:
        return self._dirs.history(job)

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return self._dirs.output(job, id, offset, limit)

    def reports(self, job: str, id: str) -> bytes:
        return self._dirs.reports(job, id)

    def close(self, *, kill: bool) -> None:
        self._work.add(partial(self._begin_close, kill))
        if self._thread.is_alive():
            self._thread.join()
        self._work.close()

    def _start_thread(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    # in the launcher's thread

    def _run(self) -> None:
        while not (self._closing and self._is_done()):
            self.beat = time.monotonic()
            try:
                self._turn()
            except Exception:
                log.exception("turn of the launcher failed, tried again")
                time.sleep(RETRY_SECONDS)
        try:
            self._end()
        except Exception:
            log.exception("launcher did not end cleanly")

    def _try_launch(self, launch: Launch) -> None:
        try:
            self._launch(launch)
        except Exception as problem:
            log.exception("launch failed", extra={"launch": launch.id, "job": launch.job})
            with suppress(Exception):
                self._stop(launch.id, 0.0)  # it may have started in spite of the exception
            self._exited(launch.id, not_started(f"{type(problem).__name__}: {problem}"))

    def _begin_close(self, kill: bool) -> None:
        self._closing = True
        if kill:
            self._kill_all()

    def _exited(self, id: str, exit: Exit) -> None:
        self._launches.exited(id, exit)

    def _notify(self, event: LauncherEvent) -> None:
        self._listener(event)

    @abstractmethod
    def _turn(self) -> None:
        """Waits for work, at most TURN_SECONDS, and does it."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether all work that `close` has begun is done."""

    @abstractmethod
    def _end(self) -> None:
        """Cleans up after the last turn."""

    @abstractmethod
    def _kill_all(self) -> None:
        """Begins to end all workers."""

    @abstractmethod
    def _launch(self, launch: Launch) -> None: ...

    @abstractmethod
    def _prepare(self, launch: Launch) -> None: ...

    @abstractmethod
    def _stop(self, id: str, grace: float) -> None: ...

    @abstractmethod
    def _forget(self, job: str) -> None: ...
