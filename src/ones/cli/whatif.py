"""`ones whatif`: the last hours of jobs under another policy, beside what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

from ones.cli.client import Client, connect
from ones.cli.options import Json, StateDirectory
from ones.cli.output import InterruptedRunError, print_json, print_table, progress_bar, say
from ones.cli.terminal import tell
from ones.cli.words import duration
from ones.errors import OnesError, WorldError

POLL_SECONDS = 0.3
COLUMNS = ("done in", "simulated", "what if", "waited", "simulated", "what if")


def whatif(
    policy: Annotated[str, typer.Option("--policy", "-p", help="The other policy.")],
    hours: Annotated[
        float, typer.Option("--hours", min=0.01, max=744, help="Replay the last N hours.")
    ] = 6.0,
    state: StateDirectory = None,
    json: Json = False,
) -> None:
    """Replay the jobs of the last hours under another policy, and compare with what happened.

    The service simulates in the background, at the lowest priority. Ctrl-C cancels the replay.

    Example: ones whatif --policy srtf --hours 6
    """
    client = connect(state)
    client.post("/api/whatif", {"policy": policy, "hours": hours})
    try:
        found = _awaited(client)
    except KeyboardInterrupt:
        with suppress(OnesError):
            client.post("/api/whatif/cancel")
        raise InterruptedRunError("the replay was cancelled") from None
    if found["state"] != "done":
        raise WorldError(found["problem"] or "the replay was cancelled")
    result = found["result"]
    if json:
        print_json(result)
        return
    _print(result)


def _awaited(client: Client) -> Any:  # noqa: ANN401
    with progress_bar("replay") as progress:
        while (found := client.get("/api/whatif"))["state"] == "running":
            progress(found["done"], found["total"])
            time.sleep(POLL_SECONDS)
    return found


def _print(result: Mapping[str, Any]) -> None:
    names = {
        "happened": f"what happened ({result['policy_then']})",
        "simulated": f"simulated ({result['policy_then']})",
        "whatif": f"what if ({result['policy']})",
    }
    n = result["happened"]["jobs"]
    rows = [
        (
            name,
            *(
                _seconds(result[key][value])
                for value in (
                    "mean_completion_seconds",
                    "mean_waiting_seconds",
                    "mean_completion_of_all",
                    "mean_waiting_of_all",
                )
            ),
        )
        for key, name in names.items()
    ]
    ended = "1 ended job" if n == 1 else f"{n} ended jobs"
    heads = [f"mean of {ended}", "completion", "waiting", "completion, all", "waiting, all"]
    print_table(None, heads, rows)
    jobs = [
        (
            job["job"],
            job["owner"],
            *(
                _seconds(job[key] and job[key][value])
                for value in ("completion_seconds", "waiting_seconds")
                for key in names
            ),
            job["assumed"] or None,
        )
        for job in result["jobs"]
    ]
    if jobs:
        print_table(None, ["job", "owner", *COLUMNS, "assumed length"], jobs)
    if result["jobs_of_others"]:
        say(f"{result['jobs_of_others']} jobs of other users count in the means")
    for sentence in result["assumptions"]:
        tell(sentence)


def _seconds(value: float | None) -> str | None:
    return None if value is None else duration(value)
