"""When the job's state is written down, and by whom."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from ones.train import logs
from ones.train.checkpoint import Checkpoints, copied
from ones.train.replica import Replica

_EVERY_SECONDS = 300.0
#: for room on the disk, before somebody leaves; less than the controller's patience
_PATIENCE_SECONDS = 90.0
_RETRY_SECONDS = 0.5

_log = logs.logger(__name__)


class Saver:
    """The first worker's: its replica is as good as any."""

    def __init__(self, path: str, replica: Replica) -> None:
        self._checkpoints = Checkpoints(path)
        self._replica = replica
        self._every = float(os.environ.get("ONES_CHECKPOINT_SECONDS", _EVERY_SECONDS))
        self._saved = time.monotonic()
        self._writing: threading.Thread | None = None

    def now(self, generation: tuple[int, int]) -> None:
        """Before somebody leaves. A full disk is waited for: what is not written is lost."""
        self.wait()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        told = False
        while True:
            try:
                self._checkpoints.save(*self._what(self._replica.state(), generation))
            except OSError as problem:
                if time.monotonic() > deadline:
                    raise
                if not told:
                    _log.warning("the checkpoint cannot be written: %s; waiting for room", problem)
                    told = True
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def sometimes(self, generation: tuple[int, int]) -> None:
        """Every few minutes, in the background: for when nobody survives."""
        if time.monotonic() - self._saved < self._every:
            return
        if self._writing is not None and self._writing.is_alive():
            return
        self._saved = time.monotonic()
        state = copied(self._replica.state())
        self._writing = threading.Thread(
            target=self._write, args=(state, generation), name="ones-save"
        )
        self._writing.start()

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.join()

    def load(self) -> None:
        """Into a replica that has not trained. It still has nothing to offer: whoever has
        trained since is ahead of any checkpoint."""
        if self._replica.has_state:
            return
        state = self._checkpoints.load()
        if state is not None:
            self._replica.load(state)
            self._replica.has_state = False

    def _write(self, state: dict[str, Any], generation: tuple[int, int]) -> None:
        try:
            self._checkpoints.save(*self._what(state, generation))
        except OSError as problem:  # the last one still holds, and the next may go well
            _log.warning("a checkpoint was not written: %s", problem)

    def _what(
        self, state: dict[str, Any], generation: tuple[int, int]
    ) -> tuple[dict[str, Any], tuple[int, int], int]:
        return state, generation, int(state["progress"]["step"])
