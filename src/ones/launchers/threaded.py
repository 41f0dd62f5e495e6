"""What launchers with a thread of their own have in common: calls from any thread are written down
in the ledger and done in that one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from functools import partial

from ones.exec import Chunk
from ones.launchers.api import Launch, LauncherEvent, Listener, Process
from ones.launchers.ledger import Ledger
from ones.launchers.loop import Todo
from ones.launchers.run_dirs import RunDirs


class Threaded(ABC):
    def __init__(self, run_dirs: RunDirs) -> None:
        self._listener: Listener = lambda event: None
        self._ledger = Ledger(self._tell)
        self._todo = Todo()
        self._thread = threading.Thread(target=self._run, name="ones-launcher", daemon=True)
        self._dirs = run_dirs

    # what callers see

    def launch(self, launch: Launch) -> None:
        if self._ledger.add(launch):
            self._todo.later(partial(self._launch, launch))

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

    def close(self, *, kill: bool) -> None:
        self._todo.later(partial(self._close, kill))
        if self._thread.is_alive():
            self._thread.join()
        self._todo.close()

    def _begin(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    # in the thread

    def _tell(self, event: LauncherEvent) -> None:
        self._listener(event)

    @abstractmethod
    def _run(self) -> None:
        """Until `_close` was done, and what it has begun."""

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
