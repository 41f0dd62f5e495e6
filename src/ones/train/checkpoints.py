"""Checkpoints: what a job resumes from when none of its workers is left.

Files are named by generation and step and written atomically. A fenced worker that still writes
does so under its old generation, which is never preferred. The newest two are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from typing import Any

import fsspec
import torch

from ones.train import logs
from ones.train.replica import Replica
from ones.train.tensor_messages import copy_to_cpu

_NAME = re.compile(r"(\d{10})-(\d{6})-(\d{12})\.pt$")
_KEPT = 2
_INTERVAL_SECONDS = 300.0
_EPOCH_END_PART = (
    10  # at an epoch's end a checkpoint is due this many times sooner; the first: at once
)
#: longest wait for disk space before a worker leaves; shorter than the controller's timeout
_TIMEOUT_SECONDS = 90.0
_RETRY_SECONDS = 0.5

_log = logs.logger(__name__)

_Version = tuple[int, int, int]  # plan, incarnation, step


class Checkpoints:
    """The checkpoint files of a job, at any path that fsspec understands."""

    def __init__(self, path: str) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(path)

    def save(self, state: dict[str, Any], generation: tuple[int, int], step: int) -> None:
        name = f"{generation[0]:010d}-{generation[1]:06d}-{step:012d}.pt"
        self._fs.makedirs(self._root, exist_ok=True)
        temporary = f"{self._root}/.{name}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            with self._fs.open(temporary, "wb") as file:
                torch.save(state, file)
                file.flush()
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    os.fsync(file.fileno())
            self._fs.mv(temporary, f"{self._root}/{name}")
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm(temporary)
            raise
        self._prune((*generation, step))

    def load(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; None if there is none."""
        for _, path in reversed(self._all()):
            try:
                with self._fs.open(path, "rb") as file:
                    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:
                _log.warning("checkpoint %s cannot be read, skipped: %s", path, error)
            else:
                return state
        return None

    def _all(self) -> list[tuple[_Version, str]]:
        self._fs.invalidate_cache()  # object stores cache listings; other workers write there, too
        try:
            paths = self._fs.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        found = []
        for path in paths:
            match = _NAME.search(path)
            if match:
                plan, incarnation, step = (int(part) for part in match.groups())
                found.append(((plan, incarnation, step), path))
        return sorted(found)

    def _prune(self, newest: _Version) -> None:
        """Removes files older than the one just written. Those of a newer generation stay."""
        older = [path for version, path in self._all() if version <= newest]
        for path in older[:-_KEPT]:
            with contextlib.suppress(OSError):
                self._fs.rm(path)


class CheckpointSaver:
    """Decides when rank 0 writes a checkpoint."""

    def __init__(self, path: str, replica: Replica) -> None:
        self._checkpoints = Checkpoints(path)
        self._replica = replica
        self._interval = float(os.environ.get("ONES_CHECKPOINT_SECONDS", _INTERVAL_SECONDS))
        self._saved, self._has_saved = time.monotonic(), False
        self._thread: threading.Thread | None = None

    def save(self, generation: tuple[int, int]) -> None:
        """Saves before a worker leaves. Waits for space on a full disk; then raises OSError."""
        self.wait()
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        warned = False
        while True:
            try:
                self._write(self._replica.state(), generation)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise
                if not warned:
                    _log.warning(
                        "the checkpoint cannot be written: %s; waiting for disk space", error
                    )
                    warned = True
                time.sleep(_RETRY_SECONDS)
            else:
                return

    def save_if_due(self, generation: tuple[int, int], *, epoch_ends: bool = False) -> bool:
        """Saves every few minutes and at ends of epochs, in the background, in case all workers
        are lost.

        Returns True if a save has started.
        """
        interval = self._interval
        if epoch_ends:
            interval = interval / _EPOCH_END_PART if self._has_saved else 0.0
        if time.monotonic() - self._saved < interval:
            return False
        if self._thread is not None and self._thread.is_alive():
            return False
        self._saved, self._has_saved = time.monotonic(), True
        state = copy_to_cpu(self._replica.state())
        self._thread = threading.Thread(
            target=self._write_in_background, args=(state, generation), name="ones-save"
        )
        self._thread.start()
        return True

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def load(self) -> None:
        """Loads a checkpoint into a replica without state.

        `has_state` stays False: any worker that has trained since is ahead of a checkpoint.
        """
        if self._replica.is_complete:
            return
        state = self._checkpoints.load()
        if state is not None:
            self._replica.load(state)
            self._replica.has_state = False
            self._replica.is_from_checkpoint = True

    def _write_in_background(self, state: dict[str, Any], generation: tuple[int, int]) -> None:
        try:
            self._write(state, generation)
        except OSError as error:  # the last checkpoint is still there; the next may succeed
            _log.warning("the periodic checkpoint was not written: %s", error)

    def _write(self, state: dict[str, Any], generation: tuple[int, int]) -> None:
        self._checkpoints.save(state, generation, int(state["progress"]["step"]))
