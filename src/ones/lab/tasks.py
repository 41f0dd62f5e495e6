"""What a process of a comparison is asked to do: a description in, plain JSON values out."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ones.core.plan import Plan, Rescale, Start
from ones.core.state import State
from ones.errors import OnesError, described
from ones.lab.runs import Run, RunSpec
from ones.runlog import Entry

#: name -> module and function; a name is part of what a kept result is known by
TASKS = {
    "run": "ones.lab.tasks:simulate",
    "prediction": "ones.lab.paper.prediction:predictions",
}

_INTERNAL = 70


def carry_out(task: str, spec: RunSpec) -> dict[str, Any]:
    """The result, or `error` with what went wrong: a run that fails ends nobody else's."""
    try:
        module, name = TASKS[task].split(":")
        work: Callable[[RunSpec], dict[str, Any]] = getattr(import_module(module), name)
        return work(spec)
    except Exception as problem:
        return {"error": _told(problem)}


def simulate(spec: RunSpec) -> dict[str, Any]:
    """A run: its row, the times of its completed jobs, and what happened to their sizes."""
    run = Run(spec)
    changes = _Changes()
    result = run.simulate(changes)
    return {"row": run.row(result), "jobs": _times(result.state), "changes": changes.counted()}


def _times(state: State) -> dict[str, list[Any]]:
    """Columns, one entry for each completed job, in seconds."""
    done = [outcome for outcome in state.ended.values() if outcome.reason.completed]
    done.sort(key=lambda outcome: outcome.id)
    return {
        "id": [outcome.id for outcome in done],
        "kind": [outcome.kind for outcome in done],
        "completion": [round(outcome.completion_seconds, 6) for outcome in done],
        "execution": [round(outcome.run_seconds, 6) for outcome in done],
        "queueing": [round(outcome.queue_seconds, 6) for outcome in done],
        "pauses": [round(outcome.pause_seconds, 6) for outcome in done],
        "gpu": [round(outcome.gpu_seconds, 6) for outcome in done],
    }


class _Changes:
    """Counts the jobs whose size or batch ever changed, from the orders that were given."""

    def __init__(self) -> None:
        self._sizes: dict[str, set[int]] = {}
        self._batches: dict[str, set[int]] = {}

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Plan):
            return
        for action in entry.actions:
            if isinstance(action, Start | Rescale):
                self._sizes.setdefault(action.job, set()).add(action.allocation.n_gpus)
                if action.allocation.batch:  # 0: the script's own, not known yet
                    self._batches.setdefault(action.job, set()).add(action.allocation.batch)

    def counted(self) -> dict[str, int]:
        return {
            "size": sum(len(sizes) > 1 for sizes in self._sizes.values()),
            "batch": sum(len(batches) > 1 for batches in self._batches.values()),
        }


def _told(problem: Exception) -> dict[str, Any]:
    ours = isinstance(problem, OnesError)
    return {
        "message": str(problem) if ours else described(problem),
        "exit_code": problem.exit_code if isinstance(problem, OnesError) else _INTERNAL,
        "traceback": "".join(traceback.format_exception(problem)),
    }
