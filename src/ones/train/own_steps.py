"""The time of a worker's own part of its steps, to show workers that are slower than their peers.

All workers leave a reduction together. From there on each trains for itself, until its gradients
are complete; then it waits for the others. The step time of the group hides which worker was slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from os import O_CLOEXEC, O_CREAT, O_NOFOLLOW, O_TRUNC, O_WRONLY, fdopen
from os import open as open_file
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ones.wire.encoding import to_json
from ones.wire.samples import OWN_STEPS, OwnSteps

_FIRST_STEPS = 20  # of a new layout; their median is written at once
_WRITE_SECONDS = 30.0
_FEWEST_STEPS = 3
_MOST_STEPS = 10_000


class OwnStepTimer:
    """Writes the median of the last steps to the worker's directory, in a thread of its own.

    On a GPU events of the device are timed, because the host runs ahead of it.
    """

    def __init__(
        self,
        device: torch.device,
        run_dir: str,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_cuda, self._clock = device.type == "cuda", clock
        self._path = Path(run_dir, OWN_STEPS) if run_dir else None
        self._began: Any = None  # mark of the end of the last reduction
        self._complete: Any = None  # mark of this worker's own gradients
        self._seconds: list[float] = []
        self._samples: list[int] = []
        self._due_at: float | None = None  # None: after the first steps
        self._writer: threading.Thread | None = None

    def reset(self) -> None:
        """Starts again, for another layout."""
        self._began = self._due_at = None
        self._seconds, self._samples = [], []

    def forget_step(self) -> None:
        """The next step is not timed: the script does something else before it."""
        self._began = None

    def wait_begins(self) -> None:
        """This worker's gradients are complete: from here on it waits for the others."""
        self._complete = self._mark()

    def wait_ends(self, samples: int) -> None:
        """All gradients are reduced. `samples`: of this worker in this step."""
        if self._began is not None and self._complete is not None:
            self._seconds.append(self._between(self._began, self._complete))
            self._samples.append(samples)
            self._write_if_due()
        self._began, self._complete = self._mark(), None

    def _mark(self) -> Any:
        if not self._is_cuda:
            return self._clock()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> float:
        # the host has waited for the device after the reduction: both events have happened
        return float(begin.elapsed_time(end) / 1000.0 if self._is_cuda else end - begin)

    def _write_if_due(self) -> None:
        steps = len(self._seconds)
        if self._due_at is None:
            is_due = steps >= _FIRST_STEPS
        else:
            is_due = steps >= _FEWEST_STEPS and self._clock() >= self._due_at
        if is_due:
            self._due_at = self._clock() + _WRITE_SECONDS
            self._write(median(self._seconds), median(self._samples))
        if is_due or steps >= _MOST_STEPS:
            self._seconds, self._samples = [], []

    def _write(self, seconds: float, samples: float) -> None:
        if self._path is None or samples <= 0.0:
            return
        if self._writer is not None and self._writer.is_alive():
            return  # a shared directory that hangs
        text = to_json(OwnSteps(seconds=max(seconds, 1e-9), samples=samples))
        self._writer = threading.Thread(target=_write_file, args=(self._path, text), daemon=True)
        self._writer.start()


def _write_file(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    with suppress(OSError):  # a full disk: it is only shown
        flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC
        with fdopen(open_file(beside, flags, 0o640), "w", encoding="ascii") as file:
            file.write(text)
        beside.replace(path)
