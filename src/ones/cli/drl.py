"""`ones drl`: training of the policy `drl`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ones.cli.options import Json
from ones.cli.output import InterruptedRunError, err, print_json, print_table, say
from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, WorldError

if TYPE_CHECKING:
    from ones.lab.drl import TrainingStatus
    from ones.policies.drl.trained_weights import TrainedWeights

drl = typer.Typer(no_args_is_help=True, help="The learned policy: train its network.")


@drl.callback()
def _group() -> None:
    pass


@drl.command()
def train(
    out: Annotated[Path, typer.Option(help="File for the weights; better ones replace it.")],
    policy: Annotated[str, typer.Option(help="drl, dl2 or deeprm.")] = "drl",
    learner: Annotated[
        str, typer.Option(help="cem (imitate the best episodes) or pg (policy gradient).")
    ] = "cem",
    iterations: Annotated[int, typer.Option(help="Steps, each of 8 episodes.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of weights, workloads and exploration.")] = 1,
    jobs: Annotated[int, typer.Option(help="Jobs of every trace.")] = 50,
    workload: Annotated[
        str, typer.Option(help="Traces: `paper`, `paper-calibrated` or `paper-artifact`.")
    ] = "paper",
    start: Annotated[
        Path | None, typer.Option(help="Start from these weights instead of from the teacher.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file.")] = False,
    json: Json = False,
) -> None:
    """Train the network of `drl`, `dl2` or `deeprm` on simulated traces of seeds 1-40.

    The defaults produce the weights that are shipped. Ctrl-C keeps the best weights so far.

    Use them with `ones sim --policy drl --set weights=FILE`; likewise for the others.

    Example: ones drl train --learner pg --out weights.json
    """
    from ones.lab.drl import LEARNERS, TrainingPlan
    from ones.lab.drl import train as train_network
    from ones.lab.drl.trainables import TRAINABLE
    from ones.lab.drl.training import validate
    from ones.lab.runs import GENERATED

    if learner not in LEARNERS:
        raise UnknownNameError("learner", learner, LEARNERS)
    if policy not in TRAINABLE:
        raise UnknownNameError("trainable policy", policy, TRAINABLE)
    if workload not in GENERATED:
        raise UnknownNameError("workload", workload, GENERATED)
    for name, value, least in (("iterations", iterations, 0), ("seed", seed, 0), ("jobs", jobs, 2)):
        if value < least:
            raise InvalidSettingError(f"--{name}: {value} is not at least {least}")
    begun = None if start is None else _read(start, policy)
    _check_writable(out, overwrite=overwrite)
    plan = TrainingPlan(
        policy=policy,
        learner=learner,
        iterations=iterations,
        seed=seed,
        jobs=jobs,
        workload=workload,
    )
    command = "ones drl train " + shlex.join(
        ([] if policy == "drl" else ["--policy", policy])
        + ["--learner", learner, "--iterations", str(iterations), "--seed", str(seed)]
        + (["--jobs", str(jobs)] if jobs != TrainingPlan().jobs else [])
        + ([] if workload == "paper" else ["--workload", workload])
        + ([] if start is None else ["--start", start.name])
    )

    def keep(learned: TrainedWeights, **more: object) -> TrainedWeights:
        described = replace(learned, training={"command": command, **learned.training, **more})
        _write(out, TRAINABLE[policy].text(described))
        return described

    with _progress() as report:
        learned = train_network(plan, report=report, keep=keep, start=begun)
    if learned.training.get("interrupted"):
        if learned.training["curve"]:
            keep(learned)
            raise InterruptedRunError(f"interrupted; the best weights so far are in {out}")
        raise InterruptedRunError("interrupted before the first weights; nothing was written")
    say("validating on seeds 60-69")
    result = validate(learned, jobs, workload, policy=policy)
    learned = keep(learned, validation=result)
    if json:
        print_json({"out": str(out), **learned.training})
        return
    print_table(
        f"mean completion seconds on seeds 60-69, 64 GPUs ({learner})",
        ["fifo", f"{policy}, checkpoint", f"{policy}, elastic", f"{policy}, sampled"],
        [[result[key] for key in ("fifo", "checkpoint", "elastic", "checkpoint, sampled")]],
    )
    say(f"kept in {out}")


def _read(path: Path, policy: str) -> TrainedWeights:
    from ones.lab.drl.trainables import TRAINABLE

    try:
        return TRAINABLE[policy].read(str(path))
    except ValueError as problem:
        raise InvalidFileError(path, str(problem).removeprefix(f"{path}: ")) from None


def _check_writable(path: Path, *, overwrite: bool) -> None:
    """Raise for a path that cannot be written, before hours of training."""
    if path.is_dir():
        raise InvalidFileError(path, "is a directory, not a file")
    if path.exists() and not overwrite:
        raise InvalidFileError(path, "exists; choose another file, or use --overwrite")
    if not path.parent.is_dir():
        raise InvalidFileError(path, f"the directory {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise WorldError(f"{path}: the directory is not writable")


def _write(path: Path, text: str) -> None:
    from ones.lab.comparison.results import write_text

    write_text(path, text)


@contextmanager
def _progress() -> Iterator[Callable[[TrainingStatus], None]]:
    """A progress bar on a terminal; else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err(), transient=True) as bar:
        tasks: dict[str, object] = {}

        def show(report: TrainingStatus) -> None:
            text = report.stage
            if report.best is not None:
                text += f" (now {report.score:.3f}, best {report.best:.3f} of fifo)"
            if report.stage not in tasks:
                tasks[report.stage] = bar.add_task(text, total=report.of)
            bar.update(tasks[report.stage], description=text, completed=report.done)  # type: ignore[arg-type]

        yield show


class _Lines:
    """Prints a line for each stage and each score."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, report: TrainingStatus) -> None:
        text = report.stage
        if report.best is not None:
            text += f": score {report.score:.3f}, best {report.best:.3f} of fifo"
        if text != self._last:
            say(f"{text} ({report.done} of {report.of})")
            self._last = text
