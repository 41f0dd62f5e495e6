"""Tasks of the processes of a comparison: from the description of a run to JSON values."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ones.core.job import JobId
from ones.core.plan import Plan, Rescale, Start
from ones.core.state import State
from ones.errors import OnesError, described
from ones.lab.runs import Run, RunSpec
from ones.runlog import Entry

#: name -> module and function; the name is part of the key of a stored result
TASKS = {
    "run": "ones.lab.comparison.tasks:simulate",
    "prediction": "ones.lab.paper.prediction_task:predictions",
}

_INTERNAL = 70


def run_task(task: str, spec: RunSpec) -> dict[str, Any]:
    """The result, or the `error` of a run that failed; other runs continue."""
    try:
        module, name = TASKS[task].split(":")
        work: Callable[[RunSpec], dict[str, Any]] = getattr(import_module(module), name)
        return work(spec)
    except Exception as problem:
        return {"error": _error(problem)}


def simulate(spec: RunSpec) -> dict[str, Any]:
    """Row of a run, times of its completed jobs, and how many changed size or batch."""
    run = Run(spec)
    changes = _ChangedJobs()
    result = run.simulate(changes)
    jobs = _times(result.state, run.fairness(result))
    return {"row": run.row(result), "jobs": jobs, "changes": changes.counts()}


def _times(state: State, fairness: Mapping[JobId, float]) -> dict[str, list[Any]]:
    """Columns, one entry for each completed job, in seconds; `rho` is a ratio."""
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
        "rho": [round(fairness[outcome.id], 6) for outcome in done],
    }


class _ChangedJobs:
    """Counts the jobs that changed their size or batch, from the plans."""

    def __init__(self) -> None:
        self._sizes: dict[str, set[int]] = {}
        self._batches: dict[str, set[int]] = {}

    def __call__(self, entry: Entry) -> None:
        if not isinstance(entry, Plan):
            return
        for action in entry.actions:
            if isinstance(action, Start | Rescale):
                self._sizes.setdefault(action.job, set()).add(action.allocation.n_gpus)
                if action.allocation.batch:  # 0: the script's own batch, not known yet
                    self._batches.setdefault(action.job, set()).add(action.allocation.batch)

    def counts(self) -> dict[str, int]:
        return {
            "size": sum(len(sizes) > 1 for sizes in self._sizes.values()),
            "batch": sum(len(batches) > 1 for batches in self._batches.values()),
        }


def _error(problem: Exception) -> dict[str, Any]:
    expected = isinstance(problem, OnesError)
    return {
        "message": str(problem) if expected else described(problem),
        "exit_code": problem.exit_code if isinstance(problem, OnesError) else _INTERNAL,
        "traceback": "".join(traceback.format_exception(problem)),
    }
