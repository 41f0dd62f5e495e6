"""A trace played to the running service: its jobs are submitted at their times, as real scripts.

Which script trains a kind is said in a TOML file, or taken from `examples/paper`, where there
is one for each kind of the paper's workload.
"""

from __future__ import annotations

import string
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ones.core.events import CancelRequested
from ones.core.job import Job
from ones.errors import InvalidFileError, UnknownNameError, UserError
from ones.lab.scene import Client
from ones.lab.scripts import examples
from ones.workload import RecordedTraining, Trace, TraceJob, Training


@dataclass(frozen=True, slots=True)
class Recipe:
    """How jobs of a kind are started. Words may hold {samples}, {classes}, {batch}, ..."""

    command: tuple[str, ...]
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """What is done at a time: a job is submitted, or cancelled."""

    at: float  # seconds from the start of the trace
    job: str  # as the trace calls it
    recipe: Recipe | None = None  # None: it is cancelled
    options: Mapping[str, Any] = field(default_factory=dict)  # of the submission


@dataclass(frozen=True, slots=True)
class Score:
    steps: tuple[Step, ...]
    left_out: int  # nodes that fail or come: nobody can play those


@dataclass(frozen=True, slots=True)
class Played:
    job: str
    id: str  # the service's
    at: float
    late_seconds: float


#: from a recipe to the command as it is submitted, and whether it calls `ones.join`
Look = Callable[[Recipe], tuple[list[str], bool | None]]


def read_recipes(path: Path) -> dict[str, Recipe]:
    """`[kinds.NAME]` with command, cwd, env; NAME `default` is for all that have none."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidFileError(path, f"is not TOML: {problem}") from problem
    kinds = raw.pop("kinds", None)
    if not isinstance(kinds, dict) or raw:
        what = f"unknown section {next(iter(raw))!r}" if raw else "no section [kinds.NAME]"
        raise InvalidFileError(path, f"{what}; recipes are in [kinds.NAME]")
    return {name: _recipe(path, name, plain) for name, plain in kinds.items()}


def _recipe(path: Path, name: str, plain: object) -> Recipe:
    place = f"kinds.{name}"
    if not isinstance(plain, dict):
        raise InvalidFileError(path, f"{plain!r} is not a section", field=place)
    unknown = [key for key in plain if key not in ("command", "cwd", "env")]
    if unknown:
        problem = str(UnknownNameError("setting", unknown[0], ("command", "cwd", "env")))
        raise InvalidFileError(path, problem, field=place)
    command = plain.get("command")
    words = isinstance(command, list) and all(isinstance(word, str) for word in command)
    if not words or not command:
        raise InvalidFileError(path, "a list of words is needed", field=f"{place}.command")
    env = plain.get("env", {})
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise InvalidFileError(path, "names and texts are needed", field=f"{place}.env")
    # paths are meant from where the file lies
    return Recipe(tuple(command), str((path.parent / plain.get("cwd", "")).absolute()), env)


def paper_recipes() -> dict[str, Recipe]:
    """The scripts of `examples/paper`, on random tensors: the cost without the results."""
    folder = examples() / "paper"
    words = ("--samples", "{samples}", "--classes", "{classes}", "--batch-size", "{base_batch}")
    return {
        path.stem.replace("_", "-"): Recipe((sys.executable, str(path), *words), str(folder))
        for path in sorted(folder.glob("*_*.py"))
    }


def score_of(trace: Trace, recipes: Mapping[str, Recipe], more: Sequence[str] = ()) -> Score:
    """What to do when; `more` goes to the end of every command."""
    steps = [_submission(entry, recipes, more) for entry in trace.jobs]
    cancels = [i for i in trace.incidents if isinstance(i, CancelRequested)]
    steps += [Step(incident.at, incident.job) for incident in cancels]
    steps.sort(key=lambda step: step.at)
    return Score(tuple(steps), len(trace.incidents) - len(cancels))


def _submission(entry: TraceJob, recipes: Mapping[str, Recipe], more: Sequence[str]) -> Step:
    job, training = entry.job, entry.training
    model = training.kind if isinstance(training, Training) else job.kind
    recipe = recipes.get(job.kind) or recipes.get(model) or recipes.get("default")
    if recipe is None:
        raise UnknownNameError(f"kind of job {job.id}", job.kind, recipes)
    values = _values(entry)
    words = [_filled(word, values, job) for word in recipe.command]
    options = {
        "name": str(job.id), "kind": job.kind, "priority": job.priority, "min_gpus": job.min_gpus,
        "max_gpus": job.max_gpus, "requested_gpus": job.requested_gpus,
        "batch": job.requested_batch, "epochs": job.epochs,
        "target_accuracy": job.stop.target_accuracy, "target_epochs": job.stop.target_epochs,
        "patience": job.stop.patience, "max_epochs": job.stop.max_epochs,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    return Step(job.submitted_at, job.id, Recipe((*words, *more), recipe.cwd, recipe.env), given)


def _values(entry: TraceJob) -> dict[str, object]:
    job, training = entry.job, entry.training
    classes = 10 if isinstance(training, RecordedTraining) else training.classes
    return {
        "id": job.id, "kind": job.kind, "samples": training.dataset_size, "classes": classes,
        "base_batch": training.base_batch, "gpus": job.requested_gpus,
        "batch": job.requested_batch or training.base_batch,
        "epochs": job.epochs or job.stop.max_epochs or "",
    }  # fmt: skip


def _filled(word: str, values: Mapping[str, object], job: Job) -> str:
    try:
        for _, name, _, _ in string.Formatter().parse(word):
            if name is not None and name not in values:
                raise UnknownNameError(f"name in the command of {job.kind}", name, values)
    except ValueError as problem:
        raise UserError(f"command of {job.kind}: {word!r}: {problem}") from problem
    return word.format_map(values)


def play(
    client: Client,
    score: Score,
    look: Look,
    *,
    env: Mapping[str, str],
    speed: float = 1.0,
    told: Callable[[Played], None] = lambda played: None,
) -> list[Played]:
    """Submit and cancel when it is time, `speed` times as fast as the trace says.

    `env` is the environment of all jobs; recipes add to it.
    """
    # all that can be wrong is found before the first job is there
    ready = [look(step.recipe) if step.recipe is not None else ([], None) for step in score.steps]
    began = time.monotonic()
    done: dict[str, Played] = {}
    for step, (command, elastic) in zip(score.steps, ready, strict=True):
        wait = step.at / speed - (time.monotonic() - began)
        if wait > 0:
            time.sleep(wait)
        if step.recipe is None:
            if step.job in done:
                client.post(f"/api/jobs/{done[step.job].id}/cancel")
            continue
        body = {
            **step.options, "command": command, "cwd": step.recipe.cwd,
            "env": {**env, **step.recipe.env}, "elastic": elastic,
        }  # fmt: skip
        id = client.post("/api/jobs", body)["id"]
        late = max(0.0, (time.monotonic() - began) - step.at / speed)
        done[step.job] = Played(step.job, id, step.at, round(late, 3))
        told(done[step.job])
    return list(done.values())


def await_all(client: Client, played: Sequence[Played], poll: float = 1.0) -> list[dict[str, Any]]:
    """Their cards, once all have ended."""
    while True:
        cards = [client.get(f"/api/jobs/{job.id}") for job in played]
        if all(card["ended_at"] is not None for card in cards):
            return cards
        time.sleep(poll)
