"""Table of jobs that fits the terminal: the least important columns are left out first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from ones.cli.terminal import visible
from ones.cli.words import duration, eta

COLUMNS = (
    *("job", "owner", "state", "GPUs", "util", "batch", "progress", "loss", "accuracy", "age"),
    "done in",
)
TO_THE_RIGHT = ("GPUs", "util", "batch", "progress", "loss", "accuracy", "age")
RANGE = "done in (90 %)"
#: columns that are left out, in this order, until the reason has this many characters
GIVEN_UP = {"owner": 30, "util": 30, "loss": 30, "age": 30, RANGE: 30, "progress": 30, "batch": 30,
            "accuracy": 16, "done in": 16}  # fmt: skip
BETWEEN = 2


def with_arrays(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The jobs, with one row for all tasks of an array, in the place of the first."""
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for job in jobs:
        rows.setdefault(job.get("array") or job["id"], []).append(job)
    return [
        tasks[0] if not tasks[0].get("array") else _row_of(array, tasks)
        for array, tasks in rows.items()
    ]


def _row_of(array: str, tasks: list[Mapping[str, Any]]) -> dict[str, Any]:
    states = Counter(task["state"] for task in tasks)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    missing = dict.fromkeys(
        ("batch", "loss", "accuracy", "eta", "eta_low", "eta_high", "utilisation")
    )
    sums = ("gpus", "epochs", "queue_seconds", "run_seconds")
    ends = [task["ended_at"] for task in tasks]
    return {
        **tasks[-1],
        **missing,
        **{name: sum(task[name] for task in tasks) for name in sums},
        "id": array,
        "state": counts,
        "planned_epochs": None,
        "work": None,
        "elastic": True,
        "ended_at": None if None in ends else max(ends),
        "message": "",
        "note": f"{len(tasks)} tasks; each of them: ones ps --array {array}",
    }


def job_table(
    jobs: Iterable[Mapping[str, Any]],
    width: int,
    *,
    now: float,
    without: Collection[str] = (),
    color: Mapping[str, str] | None = None,
) -> Table:
    """The table of jobs in a given width, without the columns in `without`."""
    jobs = list(jobs)
    rows = [_cells(job, now) for job in jobs]
    names = _fitting(rows, width, without)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        header_style="bold",
        expand=True,
        padding=(0, BETWEEN - 1, 0, 0),  # rich adds one for the separator
    )
    for name in names:
        right: Literal["left", "right"] = "right" if name in TO_THE_RIGHT else "left"
        table.add_column(name, justify=right, no_wrap=True)
    table.add_column("why", ratio=1, no_wrap=True, overflow="ellipsis")
    for job, row in zip(jobs, rows, strict=True):
        style = "dim" if job["ended_at"] is not None else ""
        hue = (color or {}).get(job["id"], "")
        cells = [Text(row[name]) for name in names[1:]]
        table.add_row(
            Text(row["job"], style=f"{style} {hue}".strip()), *cells, Text(_why(job)), style=style
        )
    return table


def _fitting(rows: list[dict[str, str]], width: int, without: Collection[str]) -> list[str]:
    """The columns that fit the width.

    >>> row = dict.fromkeys((*COLUMNS, RANGE), "12345678")
    >>> _fitting([row], 200, ())[-3:], _fitting([row], 80, ("owner",))
    (['accuracy', 'age', 'done in (90 %)'], ['job', 'state', 'GPUs', 'accuracy', 'done in'])
    """
    names = [name for name in (*COLUMNS[:-1], RANGE) if name not in without]
    for least, reason in GIVEN_UP.items():
        widths = (max(map(len, (name, *(row[name] for row in rows)))) for name in names)
        if sum(BETWEEN + taken for taken in widths) + reason <= width:
            break
        if least == RANGE:
            names[names.index(RANGE)] = COLUMNS[-1]
        elif least in names:
            names.remove(least)
    return names


def _cells(job: Mapping[str, Any], now: float) -> dict[str, str]:
    left = eta(job) or ""
    over = job["ended_at"] is not None
    return {
        "job": visible(job["id"]),
        "owner": visible(job["owner"]),
        "state": visible(job["state"]) + ("" if job["elastic"] else " (fixed)"),
        "GPUs": str(job["gpus"] or ""),
        "util": utilisation(job),
        "batch": _number(job["batch"] if not over else None, "d"),
        "progress": progress(job),
        "loss": _number(job["loss"], ".3f"),
        "accuracy": _number(job["accuracy"], ".3f"),
        "age": duration((job["ended_at"] or now) - job["submitted_at"]),
        RANGE: left,
        COLUMNS[-1]: left.partition(" ")[0],
    }


def progress(job: Mapping[str, Any]) -> str:
    """What a job has done, and what is planned, in its unit; without a unit in epochs.

    >>> progress({"epochs": 3, "planned_epochs": 30, "ended_at": None})
    '3/30'
    >>> progress({"work": {"unit": "tokens", "done": 12_345_678, "total": 2 * 10**9}})
    '12.3M/2G tokens'
    """
    work = job.get("work")
    if work and work["unit"] != "epochs":
        total = "" if work["total"] is None else f"/{rounded(work['total'])}"
        return f"{rounded(work['done'])}{total} {work['unit']}"
    planned = job.get("planned_epochs") if job["ended_at"] is None else None
    return f"{job['epochs']}/{planned}" if job["epochs"] and planned else str(job["epochs"] or "")


def utilisation(job: Mapping[str, Any]) -> str:
    """Part of their GPUs that the workers of a job keep busy.

    >>> utilisation({"utilisation": 0.874}), utilisation({"utilisation": None})
    ('87 %', '')
    """
    share = job.get("utilisation")  # a service of an earlier version does not say
    return "" if share is None else f"{share:.0%}".replace("%", " %")


def reason(job: Mapping[str, Any]) -> str:
    """Why a job has what it has, after what is wrong with its workers."""
    warnings = [
        f"{text}: {', '.join(job[name][:3])}{'...' if len(job[name]) > 3 else ''}."
        for name, text in (("idle_gpus", "Idle GPUs"), ("slow_gpus", "Slow workers"))
        if job.get(name)
    ]
    return " ".join([*warnings, str(job["message"] or job["note"])])


def rounded(count: int) -> str:
    """A count in at most six characters.

    >>> rounded(99_999), rounded(1_234_567), rounded(250_000)
    ('99999', '1.2M', '250k')
    """
    if count < 100_000:
        return str(count)
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f}".removesuffix(".0") + letter
    return str(count)


def _why(job: Mapping[str, Any]) -> str:
    return visible(reason(job))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
