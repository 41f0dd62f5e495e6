"""Every ones-exec of a launcher, with one selector for all. Lives in the launcher's thread."""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from pathlib import Path

from ones.launchers.keeper import Keeper, Phase
from ones.launchers.loop import HasFile

RETRY_SECONDS = 0.5

log = logging.getLogger(__name__)


class Keepers:
    """By run directory. Whoever waits is woken by `bell`, too."""

    def __init__(self, bell: HasFile) -> None:
        self._keepers: dict[Path, Keeper] = {}
        self._selector = selectors.DefaultSelector()
        self._registered: dict[Keeper, tuple[int, int]] = {}  # its file and events
        self._selector.register(bell, selectors.EVENT_READ, None)

    def get(self, run_dir: Path) -> Keeper | None:
        return self._keepers.get(run_dir)

    def add(self, keeper: Keeper) -> None:
        self._keepers[keeper.run_dir] = keeper

    def of_job(self, job: Path) -> list[Keeper]:
        """Whose run directories are below this one."""
        return [keeper for keeper in self._keepers.values() if keeper.run_dir.parent == job]

    @property
    def are_closing(self) -> bool:
        return any(keeper.closing for keeper in self._keepers.values())

    def close_all(self, grace: float) -> None:
        for keeper in list(self._keepers.values()):
            self.guarded(keeper, lambda keeper: keeper.close(grace))

    # one turn

    def wait(self, most: float) -> None:
        """Until somebody has said something, which is heard, or one is to be tried again; no longer
        than that."""
        self._register_all()
        for key, events in self._selector.select(self._patience(most)):
            if key.data is None:
                continue
            if events & selectors.EVENT_WRITE:
                self.guarded(key.data, Keeper.flush)
            if events & selectors.EVENT_READ:
                self._unregister(key.data)  # its file may be another one afterwards
                self.guarded(key.data, Keeper.serve)

    def retry(self) -> None:
        now = time.monotonic()
        for keeper in list(self._keepers.values()):
            if keeper.retry_at is not None and keeper.retry_at <= now:
                self.guarded(keeper, Keeper.retry)

    def take_ended(self) -> list[Keeper]:
        """Those whose job is over and whose ones-exec is gone: they are ours no more."""
        ended = [
            keeper
            for keeper in self._keepers.values()
            if keeper.closing and keeper.phase is Phase.ABSENT and not keeper.open
        ]
        for keeper in ended:
            self._unregister(keeper)
            del self._keepers[keeper.run_dir]
        return ended

    def let_go(self) -> None:
        """Leave them all alone: they go on without us."""
        for keeper in self._keepers.values():
            self._unregister(keeper)
            self.guarded(keeper, Keeper.let_go)
        self._selector.close()

    def guarded(self, keeper: Keeper, what: Callable[[Keeper], None]) -> None:
        """The system may refuse anything at any time, and a run directory or an ones-exec may say
        anything: then its line is closed, and it is asked again."""
        try:
            what(keeper)
        except Exception as problem:
            if not isinstance(problem, OSError):
                log.exception("ones-exec not understood", extra={"path": str(keeper.run_dir)})
            keeper.hang_up()
            keeper.retry_at = time.monotonic() + RETRY_SECONDS

    def _patience(self, most: float) -> float:
        times = [k.retry_at for k in self._keepers.values() if k.retry_at is not None]
        return min(most, max(0.0, min(times) - time.monotonic())) if times else most

    def _register_all(self) -> None:
        for keeper in self._keepers.values():
            if not keeper.listens:
                self._unregister(keeper)
                continue
            events = selectors.EVENT_READ
            if keeper.wants_to_write:
                events |= selectors.EVENT_WRITE
            wanted = (keeper.fileno(), events)
            if self._registered.get(keeper) != wanted:
                self._unregister(keeper)
                self._selector.register(wanted[0], events, keeper)
                self._registered[keeper] = wanted

    def _unregister(self, keeper: Keeper) -> None:
        registered = self._registered.pop(keeper, None)
        if registered is not None:
            self._selector.unregister(registered[0])
