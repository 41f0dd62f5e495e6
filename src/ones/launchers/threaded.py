"""What launchers with a thread of their own have in common: calls from any thread are written down
in the ledger and done in that one.

Nothing that one launch, node or connection does ends the thread. Each unit of work is guarded by
itself: what it raises is logged, and a launch that could not be passed on exits as not started. A
turn of the loop that fails as a whole is tried again.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial

from ones.exec import Chunk, Exit
from ones.launchers.api import Launch, LauncherEvent, Listener, Process
from ones.launchers.exits import not_started
from ones.launchers.ledger import Ledger
from ones.launchers.loop import Todo
from ones.launchers.run_dirs import RunDirs

#: the loop turns at least so often, whatever happens
TURN_SECONDS = 5.0
#: after a turn that failed
AGAIN_SECONDS = 0.5

log = logging.getLogger(__name__)


class Threaded(ABC):
    def __init__(self, run_dirs: RunDirs) -> None:
        self._listener: Listener = lambda event: None
        self._ledger = Ledger(self._tell)
        self._todo = Todo()
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)
        self._dirs = run_dirs
        self.beat = time.monotonic()  # when the loop turned last: at most TURN_SECONDS ago

    # what callers see

    def launch(self, launch: Launch) -> None:
        if self._ledger.add(launch):
            self._todo.later(partial(self._try_launch, launch))

    def prepare(self, launch: Launch) -> None:
        self._todo.later(partial(self._prepare, launch))

    def stop(self, id: str, grace_seconds: float) -> None:
        self._todo.later(partial(self._stop, id, grace_seconds))

    def forget(self, job: str) -> None:
        self._todo.later(partial(self._forget, job))

    def running(self) -> dict[str, Process]:
        return self._ledger.all()

    def history(self, job: str) -> list[Process]:
        return self._dirs.history(job)

    def logs(self, job: str, id: str, offset: int, limit: int) -> Chunk:
        return self._dirs.output(job, id, offset, limit)

    def reports(self, job: str, id: str) -> bytes:
        return self._dirs.reports(job, id)

    def close(self, *, kill: bool) -> None:
        self._todo.later(partial(self._close, kill))
        if self._thread.is_alive():
            self._thread.join()
        self._todo.close()

    def _begin(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    # in the thread

    def _run(self) -> None:
        while not self._is_done():
            self.beat = time.monotonic()
            try:
                self._turn()
            except Exception:
                log.exception("launcher loop failed, tried again")
                time.sleep(AGAIN_SECONDS)
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
                self._stop(launch.id, 0.0)  # in case that it was passed on all the same
            self._exited(launch.id, not_started(f"{type(problem).__name__}: {problem}"))

    def _exited(self, id: str, exit: Exit) -> None:
        self._ledger.exited(id, exit)

    def _tell(self, event: LauncherEvent) -> None:
        self._listener(event)

    @abstractmethod
    def _turn(self) -> None:
        """Wait for something to do, no longer than TURN_SECONDS, and do it."""

    @abstractmethod
    def _is_done(self) -> bool:
        """`_close` was done, and what it has begun."""

    @abstractmethod
    def _end(self) -> None:
        """After the last turn."""

    @abstractmethod
    def _close(self, kill: bool) -> None: ...

    @abstractmethod
    def _launch(self, launch: Launch) -> None: ...

    @abstractmethod
    def _prepare(self, launch: Launch) -> None: ...

    @abstractmethod
    def _stop(self, id: str, grace: float) -> None: ...

    @abstractmethod
    def _forget(self, job: str) -> None: ...
