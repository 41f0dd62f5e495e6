"""Draws a running service in the terminal: slots, jobs, latest decisions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.text import Text

from ones.apps.service_snapshot import ServiceSnapshot
from ones.cli.joblist import job_table
from ones.cli.terminal import visible
from ones.cli.words import duration, not_used, short

COLORS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
#: maximum number of slots that are drawn one by one
MOST_SLOTS = 64
DECISIONS = 6


def is_live(console: Console) -> bool:
    """Whether the console can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal and os.environ.get("TERM") != "dumb"


def picture(
    snapshot: ServiceSnapshot, title: str, width: int, *, ended: int = 20
) -> RenderableType:
    """The snapshot in `width` columns, with the last `ended` jobs that have ended."""
    over = [job["id"] for job in snapshot.jobs if job["ended_at"] is not None]
    hidden = set(over[: max(0, len(over) - ended)])
    jobs = [job for job in snapshot.jobs if job["id"] not in hidden]
    color = {job["id"]: COLORS[i % len(COLORS)] for i, job in enumerate(snapshot.jobs)}
    missing = visible(not_used(snapshot.cluster))
    return Group(
        Text(visible(title), style="bold"),
        _slots(snapshot, color),
        *([Text(missing, style="yellow")] if missing else []),
        job_table(jobs, width, now=snapshot.now, without=("owner",), color=color),
        *_decisions(snapshot, color),
    )


def _slots(snapshot: ServiceSnapshot, color: dict[str, str]) -> RenderableType:
    slots = snapshot.cluster["slots"]
    busy = sum(slot["owner"] is not None for slot in slots)
    line = Text(f"{busy} of {len(slots)} slots in use  ", style="dim")
    if len(slots) > MOST_SLOTS:
        return line
    for slot in slots:
        job = slot["job"] or ("in use" if slot["owner"] or slot["used_by"] else None)
        if job is None:
            line.append("[ out ] " if slot.get("aside") else "[ free ] ", style="dim")
            continue
        batch = f" {slot['batch']}" if slot["batch"] else ""
        mark = " ↓" if slot["leaving"] else " ↑" if slot.get("coming") else ""
        line.append(f"[{visible(job)}{batch}{mark}]", style=f"{color.get(job, 'white')} reverse")
        line.append(" ")
    return line


def _decisions(snapshot: ServiceSnapshot, color: dict[str, str]) -> list[Text]:
    lines = []
    for at, job, text, _ in reversed(list(_actions(snapshot))[:DECISIONS]):
        line = Text(f"{datetime.fromtimestamp(at).astimezone():%H:%M:%S} ", style="dim")
        line.append(visible(job), style=color.get(job, ""))
        line.append(f": {visible(short(text, 160))}", style="not dim")
        lines.append(line)
    return lines


def _actions(snapshot: ServiceSnapshot) -> Iterable[tuple[float, str, str, int]]:
    """Actions of decisions as (time, job, text, number), the newest first."""
    for plan in snapshot.decisions:
        for action in reversed(plan["actions"]):
            yield plan["at"], action["job"], action["text"], plan["number"]


class Lines:
    """Prints a line per decision and end of a job, for consoles that cannot be redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = -1
        self._ended: set[str] = set()

    def __call__(self, snapshot: ServiceSnapshot, seconds: float) -> None:
        # an action without a reason of its own completes an earlier change, or ends a job
        notes = {plan["number"]: plan["notes"] for plan in snapshot.decisions}
        new = [action for action in _actions(snapshot) if action[3] > self._last]
        for _, job, text, number in reversed(new):
            if job in notes[number]:
                self._print(seconds, f"{job}: {text}")
            self._last = max(self._last, number)
        for card in snapshot.jobs:
            if card["ended_at"] is not None and card["id"] not in self._ended:
                self._ended.add(card["id"])
                why = f" {card['message']}" if card["message"] else ""
                self._print(seconds, f"{card['id']}: Ended: {card['state']}.{why}")

    def _print(self, seconds: float, text: str) -> None:
        self._console.print(
            f"{duration(seconds):>5}  {visible(text)}", markup=False, soft_wrap=True
        )
