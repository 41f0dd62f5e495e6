"""`ones wait`: wait until jobs have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ones.cli.change import JOBS, MOST_TASKS, with_tasks
from ones.cli.client import Client, connect, of_job
from ones.cli.durations import seconds_of
from ones.cli.options import Json, StateDirectory
from ones.cli.output import InterruptedRunError, print_json, say
from ones.errors import WorldError

POLL_SECONDS = 0.5
COMPLETED = ("finished", "converged")
FEW = 5  # jobs that are asked for one by one


def wait(
    jobs: Annotated[list[str], JOBS],
    any_: Annotated[bool, typer.Option("--any", help="Only until one of them has ended.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", "-t", metavar="TIME", help="Give up after: 90s, 2h.")
    ] = None,
    state: StateDirectory = None,
    json: Json = False,
) -> int:
    """Wait until jobs have ended. Exit code 0: all completed; 1: some failed or were cancelled.

    Example: ones wait digits-1 digits-2
    """
    client = connect(state)
    limit = None if timeout is None else seconds_of(timeout, "--timeout")
    names = [task for job in jobs for task in with_tasks(client, job, ended=True)]
    return await_all(client, names, json=json, any_one=any_, limit=limit)


def await_all(
    client: Client,
    jobs: Sequence[str],
    *,
    json: bool,
    any_one: bool = False,
    limit: float | None = None,
) -> int:
    """Wait until all jobs have ended, or one of them; prints each end. Returns the exit code."""
    ended: dict[str, dict[str, Any]] = {}
    deadline = None if limit is None else time.monotonic() + limit
    left = list(dict.fromkeys(jobs))
    try:
        while left and not (any_one and ended):
            for job in _perhaps_ended(client, left):
                card = client.get(of_job(job))
                if card["ended_at"] is not None:
                    left.remove(job)
                    ended[job] = card
                    if not json:
                        why = f" ({card['message']})" if card["message"] else ""
                        say(f"{job}: {card['state']}{why}")
            if left and deadline is not None and time.monotonic() >= deadline:
                raise WorldError(f"not ended in time: {', '.join(left[:10])}")
            if left and not (any_one and ended):
                time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        raise InterruptedRunError("the jobs continue; stop them with: ones cancel JOB") from None
    if json:
        print_json(list(ended.values()))
    return int(any(card["state"] not in COMPLETED for card in ended.values()))


def _perhaps_ended(client: Client, jobs: Sequence[str]) -> list[str]:
    """The jobs that are not in the list of unfinished ones: one request for many jobs."""
    if len(jobs) <= FEW:
        return list(jobs)
    alive = {job["id"] for job in client.get("/api/jobs", limit=MOST_TASKS)}
    return [job for job in jobs if job not in alive]
