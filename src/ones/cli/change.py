"""`ones set`, `hold`, `release`, `rerun`: change submitted jobs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from ones.cli.client import Client, connect, of_job
from ones.cli.durations import seconds_of
from ones.cli.options import Json, StateDirectory
from ones.cli.output import print_json, say
from ones.cli.terminal import tell
from ones.errors import UnknownNameError, UserError

MOST_TASKS = 10_000  # of an array
JOBS = typer.Argument(help="Job ids.", metavar="JOB...")


def with_tasks(client: Client, job: str, *, ended: bool = False) -> list[str]:
    """The job, or the tasks of the array with this id: those that have not ended, if there are any.

    `ended`: all tasks.
    """
    try:
        client.get(of_job(job))
    except UnknownNameError:
        query: dict[str, Any] = {"array": job, "limit": MOST_TASKS}
        tasks = [] if ended else client.get("/api/jobs", **query)
        tasks = tasks or client.get("/api/jobs", all="true", **query)
        if not tasks:
            raise
        return [str(task["id"]) for task in reversed(tasks)]
    return [job]


def for_each(
    client: Client,
    jobs: Iterable[str],
    act: Callable[[str], Any],
    shown: Callable[[str, Any], str],
    *,
    json: bool,
) -> None:
    """Call `act` for each job, or each task of an array, and print what it returns. A job that is
    refused must not keep the others from being changed: its error comes last."""
    answers: list[Any] = []
    problems: list[UserError] = []
    todo = deque(jobs)
    while todo:
        job = todo.popleft()
        try:
            answers.append(act(job))
        except UnknownNameError as wrong:
            try:
                todo.extendleft(reversed(with_tasks(client, job)))
            except UnknownNameError:
                problems.append(wrong)
            continue
        except UserError as wrong:
            problems.append(wrong)
            continue
        if not json:
            tell(shown(job, answers[-1]))
    if json:
        print_json(answers)
    for problem in problems[:-1]:
        say(f"ones: {problem}")
    if problems:
        raise problems[-1]


def by_state(job: str, answer: dict[str, Any]) -> str:
    return f"{answer['id']}: {answer['state']}"


def set_(
    jobs: Annotated[list[str], JOBS],
    priority: Annotated[
        float | None, typer.Option("--priority", "-p", help="New priority.")
    ] = None,
    min_gpus: Annotated[int | None, typer.Option(help="Minimum number of GPUs.")] = None,
    max_gpus: Annotated[
        int | None, typer.Option(help="Maximum number of GPUs; 0: no maximum.")
    ] = None,
    max_run: Annotated[
        str | None,
        typer.Option("--max-run", "-t", metavar="TIME", help="Run time limit, as 2h; 0: none."),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="Tag, instead of the present ones; repeatable.")
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Change jobs that have not ended, also running ones. What is not given stays.

    Example: ones set digits-1 --priority 5 --max-gpus 4
    """
    change = {
        "priority": priority, "min_gpus": min_gpus, "max_gpus": max_gpus, "tags": tag,
        "max_run_seconds": None if max_run is None else seconds_of(max_run, "--max-run"),
    }  # fmt: skip
    change = {name: value for name, value in change.items() if value is not None}
    if not change:
        options = "--priority, --min-gpus, --max-gpus, --max-run or --tag"
        raise UserError(f"nothing to change; give {options}")
    client = connect(state)
    for_each(client, jobs, lambda job: client.patch(of_job(job), change), by_state, json=json)


def hold(
    jobs: Annotated[list[str], JOBS], state: StateDirectory = None, json: Json = False
) -> None:
    """Keep jobs from starting until they are released. A running job saves its work and waits.

    Example: ones hold digits-1
    """
    client = connect(state)
    for_each(client, jobs, _posted(client, "hold"), by_state, json=json)


def release(
    jobs: Annotated[list[str], JOBS], state: StateDirectory = None, json: Json = False
) -> None:
    """Let jobs start again that are on hold.

    Example: ones release digits-1
    """
    client = connect(state)
    for_each(client, jobs, _posted(client, "release"), by_state, json=json)


def rerun(
    jobs: Annotated[list[str], JOBS], state: StateDirectory = None, json: Json = False
) -> None:
    """Submit jobs again, with the same command and options, and print the new ids.

    The service removes the environment of a job when it ends; then the present one is used.

    Example: ones rerun digits-1
    """
    client = connect(state)
    env = {"env": dict(os.environ)}
    for_each(
        client,
        jobs,
        _posted(client, "rerun", env),
        lambda job, answer: str(answer["id"]),
        json=json,
    )


def _posted(
    client: Client, what: str, body: Mapping[str, Any] | None = None
) -> Callable[[str], Any]:
    return lambda job: client.post(of_job(job, what), body)
