"""Submits the jobs of a trace to the running service at their times, for `ones trace play`.

A TOML file names the script of each kind; by default it is the script of `examples/paper`, which
has one for each kind of the paper's workload.
"""

from __future__ import annotations

import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.config import read_toml
from ones.core.events import CancelRequested
from ones.core.job import Job
from ones.errors import InvalidFileError, UnknownNameError, UserError
from ones.lab.installation import examples
from ones.lab.service_client import ServiceClient
from ones.workload import RecordedTraining, Trace, TraceJob, Training

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """How jobs of a kind are started. Arguments may contain {samples}, {classes}, {batch}, ..."""

    command: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceAction:
    """The submission or cancellation of a job at a time."""

    at: float  # seconds from the start of the trace
    job: str  # name in the trace
    recipe: Recipe | None = None  # None: the job is cancelled
    options: Mapping[str, Any] = field(default_factory=dict)  # of the submission


@dataclass(frozen=True, slots=True)
class TraceSchedule:
    actions: tuple[TraceAction, ...]
    left_out: int  # failures and returns of nodes, which cannot be played


@dataclass(frozen=True, slots=True)
class PlayedJob:
    job: str
    id: str  # id in the service
    at: float
    late_seconds: float


#: returns the command of a recipe, and whether it calls `ones.join`
Inspect = Callable[[Recipe], tuple[list[str], bool | None]]


def read_recipes(path: Path) -> dict[str, Recipe]:
    """Recipes by kind, from sections `[kinds.NAME]` (command, cwd, env); `default`: all others."""
    raw = read_toml(path)
    kinds = raw.pop("kinds", None)
    if not isinstance(kinds, dict) or raw:
        what = f"unknown section {next(iter(raw))!r}" if raw else "no section [kinds.NAME]"
        raise InvalidFileError(path, f"{what}; recipes are in [kinds.NAME]")
    return {name: _recipe(path, name, plain) for name, plain in kinds.items()}


def _recipe(path: Path, name: str, plain: object) -> Recipe:
    section = f"kinds.{name}"
    if not isinstance(plain, dict):
        raise InvalidFileError(path, f"{plain!r} is not a section", field=section)
    unknown = [key for key in plain if key not in ("command", "cwd", "env")]
    if unknown:
        problem = str(UnknownNameError("setting", unknown[0], ("command", "cwd", "env")))
        raise InvalidFileError(path, problem, field=section)
    command = plain.get("command")
    is_list = isinstance(command, list) and all(isinstance(part, str) for part in command)
    if not is_list or not command:
        problem = f"{command!r} is not a list of strings"
        raise InvalidFileError(path, problem, field=f"{section}.command")
    env = plain.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise InvalidFileError(path, f"{env!r} is not a table of strings", field=f"{section}.env")
    # paths are relative to the file
    return Recipe(tuple(command), str((path.parent / plain.get("cwd", "")).absolute()), env)


def paper_recipes() -> dict[str, Recipe]:
    """Recipes with the scripts of `examples/paper`, on random tensors."""
    folder = examples() / "paper"
    options = ("--samples", "{samples}", "--classes", "{classes}", "--batch-size", "{base_batch}")
    return {
        path.stem.replace("_", "-"): Recipe((sys.executable, str(path), *options), str(folder))
        for path in sorted(folder.glob("*_*.py"))
    }


def schedule_of(
    trace: Trace, recipes: Mapping[str, Recipe], more: Sequence[str] = ()
) -> TraceSchedule:
    """The actions of a trace in order of time; `more` is appended to every command."""
    actions = [_submission(entry, recipes, more) for entry in trace.jobs]
    cancels = [i for i in trace.incidents if isinstance(i, CancelRequested)]
    actions += [TraceAction(incident.at, incident.job) for incident in cancels]
    actions.sort(key=lambda action: action.at)
    return TraceSchedule(tuple(actions), len(trace.incidents) - len(cancels))


def _submission(entry: TraceJob, recipes: Mapping[str, Recipe], more: Sequence[str]) -> TraceAction:
    job, training = entry.job, entry.training
    if job.stop.joint:
        raise UserError(f"job {job.id}: the service has no joint stop rule; simulate this trace")
    model = training.kind if isinstance(training, Training) else job.kind
    recipe = recipes.get(job.kind) or recipes.get(model) or recipes.get("default")
    if recipe is None:
        raise UnknownNameError(f"kind of job {job.id}", job.kind, recipes)
    values = _values(entry)
    command = [_filled(argument, values, job) for argument in recipe.command]
    options = {
        "name": str(job.id), "kind": job.kind, "priority": job.priority, "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus, "requested_gpus": job.requested_gpus,
        "batch": job.requested_batch, "epochs": job.epochs,
        "target_accuracy": job.stop.target_accuracy, "target_epochs": job.stop.target_epochs,
        "patience": job.stop.patience, "max_epochs": job.stop.max_epochs,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    return TraceAction(
        job.submitted_at, job.id, Recipe((*command, *more), recipe.cwd, recipe.env), given
    )


def _values(entry: TraceJob) -> dict[str, object]:
    job, training = entry.job, entry.training
    classes = 10 if isinstance(training, RecordedTraining) else training.classes
    return {
        "id": job.id, "kind": job.kind, "samples": training.dataset_size, "classes": classes,
        "base_batch": training.base_batch, "gpus": job.requested_gpus,
        "batch": job.requested_batch or training.base_batch,
        "epochs": job.epochs or job.stop.max_epochs or "",
    }  # fmt: skip


def _filled(argument: str, values: Mapping[str, object], job: Job) -> str:
    try:
        for _, name, _, _ in string.Formatter().parse(argument):
            if name is not None and name not in values:
                raise UnknownNameError(f"name in the command of {job.kind}", name, values)
    except ValueError as problem:
        raise UserError(f"command of {job.kind}: {argument!r}: {problem}") from problem
    return argument.format_map(values)


def play(
    client: ServiceClient,
    schedule: TraceSchedule,
    inspect: Inspect,
    *,
    env: Mapping[str, str],
    speed: float = 1.0,
    on_submit: Callable[[PlayedJob], None] = lambda played: None,
) -> list[PlayedJob]:
    """Submit and cancel jobs at their times, `speed` times as fast as the trace.

    `env`: environment of all jobs; recipes add to it.
    """
    # everything is checked before the first job is submitted
    commands = [
        ([], None) if action.recipe is None else inspect(action.recipe)
        for action in schedule.actions
    ]
    began = time.monotonic()
    done: dict[str, PlayedJob] = {}
    for action, (command, elastic) in zip(schedule.actions, commands, strict=True):
        wait = action.at / speed - (time.monotonic() - began)
        if wait > 0:
            time.sleep(wait)
        if action.recipe is None:
            if action.job in done:
                client.post(f"/api/jobs/{done[action.job].id}/cancel")
            continue
        body = {
            **action.options, "command": command, "cwd": action.recipe.cwd,
            "env": {**env, **action.recipe.env}, "elastic": elastic,
        }  # fmt: skip
        id = client.post("/api/jobs", body)["id"]
        late = max(0.0, (time.monotonic() - began) - action.at / speed)
        done[action.job] = PlayedJob(action.job, id, action.at, round(late, 3))
        on_submit(done[action.job])
    return list(done.values())


def await_all(client: ServiceClient, played: Sequence[PlayedJob]) -> list[dict[str, Any]]:
    """Wait until all jobs have ended, and return them."""
    while True:
        cards = [client.get(f"/api/jobs/{job.id}") for job in played]
        if all(card["ended_at"] is not None for card in cards):
            return cards
        time.sleep(POLL_SECONDS)
