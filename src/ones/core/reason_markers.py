"""Marks in stored reasons that each reader sees differently, and their replacement.

A reason is stored once in the run log. `⟨job:ID⟩` stands for a job that some readers may not see.
`⟨place:N⟩`, `⟨queue:GPUS⟩`, `⟨running:⟩` and `⟨time:AT⟩` stand for facts that change while the job
waits: they are filled in when the present reason is shown, and left out in the history. Texts
without marks (of older logs) are shown as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

#: instead of the id of a job that the reader may not see
OF_ANOTHER_USER, OF_OTHER_USERS = "a job of another user", "jobs of other users"
#: jobs that a reason names; the others are counted
NAMED_JOBS = 2

_JOB = r"⟨job:[^⟩]+⟩"
_JOBS = re.compile(rf"{_JOB}(?:, {_JOB})*")
_ID = re.compile(r"⟨job:([^⟩]+)⟩")
_LIVE = re.compile(r" ?⟨(place|queue|running|time):(\d*)⟩")

#: whether the reader may see a job
Sees = Callable[[str], bool]
#: the text for a mark (kind, number); empty: nothing is known
Live = Callable[[str, int], str]


def job_references(jobs: Sequence[str]) -> str:
    """The first jobs by reference, and the number of the others.

    >>> job_references(["a", "b", "c"])
    '⟨job:a⟩, ⟨job:b⟩ and 1 more'
    """
    more = len(jobs) - len(jobs[:NAMED_JOBS])
    named = ", ".join(f"⟨job:{job}⟩" for job in jobs[:NAMED_JOBS])
    return f"{named} and {more} more" if more else named


def policy_position(number: int) -> str:
    """The job's position in the order of the policy, from 1."""
    return f" ⟨place:{number}⟩"


def queue_position(gpus: int) -> str:
    """The job's position in the queue (by priority, then submission), with the GPUs it needs."""
    return f" ⟨queue:{gpus}⟩"


#: a sentence with the jobs that have GPUs
RUNNING = " ⟨running:⟩"


def time_until(at: float) -> str:
    """A moment on the engine's clock, shown as the time until then ("in 5 min")."""
    return f" ⟨time:{max(0, round(at))}⟩"


def stored_place(text: str) -> int | None:
    """The position that a stored reason gives the job."""
    if "⟨place:" not in text:
        return None
    return next((int(n) for kind, n in _LIVE.findall(text) if kind == "place" and n), None)


def render(text: str, sees: Sees = lambda job: True, live: Live = lambda kind, number: "") -> str:
    """The text as a reader sees it.

    >>> render("Made room for ⟨job:a⟩, ⟨job:b⟩. ⟨place:3⟩", lambda job: job == "a")
    'Made room for a, a job of another user.'
    >>> render("Waiting. ⟨running:⟩", live=lambda kind, number: "GPUs are used by a.")
    'Waiting. GPUs are used by a.'
    """
    if "⟨" not in text:
        return text
    text = _JOBS.sub(lambda found: names(_ID.findall(found[0]), sees), text)

    def filled(found: re.Match[str]) -> str:
        shown = live(found[1], int(found[2] or 0))
        return f" {shown}" if shown else ""

    return _LIVE.sub(filled, text)


def names(jobs: Iterable[str], sees: Sees) -> str:
    """
    >>> names(["a", "b", "c"], lambda job: job == "b")
    'b, 2 jobs of other users'
    """
    jobs = list(jobs)
    shown = [job for job in jobs if sees(job)]
    hidden = len(jobs) - len(shown)
    if hidden:
        shown.append(OF_ANOTHER_USER if hidden == 1 else f"{hidden} {OF_OTHER_USERS}")
    return ", ".join(shown)
