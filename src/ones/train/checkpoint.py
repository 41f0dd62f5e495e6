"""The last resort: what a job goes on from when none of its workers is left.

Files are named by generation and step, written beside and renamed, so that a half-written
one is never read. A worker that was given up and still writes does so under its old
generation and is never preferred. The newest two are kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from typing import Any

import fsspec
import torch

from ones.train import logs

_NAME = re.compile(r"(\d{10})-(\d{6})-(\d{12})\.pt$")
_KEPT = 2

_log = logs.logger(__name__)

Order = tuple[int, int, int]  # plan, incarnation, step


class Checkpoints:
    def __init__(self, path: str) -> None:
        self._fs, self._root = fsspec.core.url_to_fs(path)

    def save(self, state: dict[str, Any], generation: tuple[int, int], step: int) -> None:
        name = f"{generation[0]:010d}-{generation[1]:06d}-{step:012d}.pt"
        self._fs.makedirs(self._root, exist_ok=True)
        fresh = f"{self._root}/.{name}.{os.getpid()}-{uuid.uuid4().hex[:8]}"
        try:
            with self._fs.open(fresh, "wb") as file:
                torch.save(state, file)
                file.flush()
                with contextlib.suppress(AttributeError, OSError, ValueError):
                    os.fsync(file.fileno())
            self._fs.mv(fresh, f"{self._root}/{name}")
        except BaseException:
            with contextlib.suppress(OSError):
                self._fs.rm(fresh)
            raise
        self._prune((*generation, step))

    def load(self) -> dict[str, Any] | None:
        """The newest that can be read; None: there is none."""
        for _, path in reversed(self._all()):
            try:
                with self._fs.open(path, "rb") as file:
                    state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as problem:
                _log.warning("checkpoint %s cannot be read: %s", path, problem)
            else:
                return state
        return None

    def _all(self) -> list[tuple[Order, str]]:
        self._fs.invalidate_cache()  # object stores remember listings; others write there, too
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

    def _prune(self, newest: Order) -> None:
        """Only what is older than our own: a newer generation's files are not ours to remove."""
        older = [path for order, path in self._all() if order <= newest]
        for path in older[:-_KEPT]:
            with contextlib.suppress(OSError):
                self._fs.rm(path)


def copied(value: Any) -> Any:
    """The same, with tensors copied to host memory: training may go on while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(item) for item in value)
    return value
