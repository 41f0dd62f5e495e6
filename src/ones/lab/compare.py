"""Many runs, and what they say together: carried out, kept, summed up, written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ones import __version__
from ones.errors import WorldError
from ones.lab.grid import Cell
from ones.lab.kept import Kept
from ones.lab.pace import Pace
from ones.lab.pool import run_all
from ones.lab.tables import TIMES, Record, significance_of, summary_of

RESULTS_NAME, ROWS_NAME, JOBS_NAME = "results.json", "rows.csv", "jobs.csv"


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that ended in an error; the others went on."""

    name: str
    message: str
    exit_code: int
    traceback: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    total: int
    seconds_left: float
    latest: str  # what has just finished, in words


Watch = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for, and what of it is to be done: everybody once, whoever asks for it."""

    cells: Sequence[Cell]
    missing: Sequence[Cell]
    seconds: float

    @classmethod
    def of(cls, cells: Sequence[Cell], kept: Kept, processes: int) -> Plan:
        pace = Pace()
        missing: dict[str, Cell] = {}
        for cell in cells:
            if cell.key in kept:
                pace.saw(cell, kept[cell.key])
            else:
                missing.setdefault(cell.key, cell)
        return cls(cells, list(missing.values()), pace.total(missing.values(), processes))

    def __str__(self) -> str:
        runs = len({cell.key for cell in self.cells})
        kept = runs - len(self.missing)
        there = f", {kept:,} of them kept from before" if kept else ""
        left = f": about {spoken(self.seconds)}" if self.missing else ""
        return f"{runs:,} runs{there}{left}"


def carry_out(
    plan: Plan, kept: Kept, processes: int, watch: Watch = lambda progress: None
) -> list[Failure]:
    """Do what is missing; each result is kept as soon as it is there."""
    pace, failures = Pace(), []
    left = {cell.key: cell for cell in plan.missing}
    for cell in plan.cells:
        if cell.key in kept:
            pace.saw(cell, kept[cell.key])
    work = [(cell, (cell.task, cell.spec)) for cell in plan.missing]
    total = len(work)
    for cell, result in run_all(work, processes):
        del left[cell.key]
        if "error" in result:
            failures.append(Failure(cell.name, **result["error"]))
        else:
            pace.saw(cell, result)
            kept.add(cell.key, cell.name, result)
        seconds = pace.total(left.values(), processes)
        watch(Progress(total - len(left), total, seconds, cell.name))
    return failures


def records_of(cells: Sequence[Cell], kept: Kept, task: str = "run") -> list[Record]:
    """Those that are there, as they were asked for."""
    return [Record(c, kept[c.key]) for c in cells if c.task == task and c.key in kept]


@dataclass(frozen=True, slots=True)
class Comparison:
    records: Sequence[Record]
    failures: Sequence[Failure]

    @property
    def exit_code(self) -> int:
        """Of the worst that happened: 0 if nothing failed."""
        return max((failure.exit_code for failure in self.failures), default=0)

    def told(self) -> dict[str, Any]:
        """What `--json` prints; the keys are a promise."""
        return {
            "rows": [record.row for record in self.records],
            "summary": summary_of(self.records),
            "tests": significance_of(self.records),
            "failures": [asdict(failure) for failure in self.failures],
        }


def write_results(comparison: Comparison, directory: Path) -> list[Path]:
    """results.json, and two tables for spreadsheets: of the runs, and of all their jobs."""
    told = comparison.told()
    texts = {
        RESULTS_NAME: json.dumps({"software": __version__, **told}, indent=2) + "\n",
        ROWS_NAME: _csv([_flat(row) for row in told["rows"]]),
        JOBS_NAME: _csv([row for record in comparison.records for row in _job_rows(record)]),
    }
    return [write(directory / name, text) for name, text in texts.items()]


def write(path: Path, text: str) -> Path:
    """Whole, or not at all."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as problem:
        beside.unlink(missing_ok=True)
        raise WorldError(f"{path}: cannot be written: {problem.strerror}") from problem
    return path


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, dict)}


def _job_rows(record: Record) -> list[dict[str, Any]]:
    cell, jobs = record.cell, record.result["jobs"]
    return [
        {
            "label": cell.label,
            "seed": cell.spec.seed,
            "gpus": cell.spec.gpus,
            "mechanism": cell.asked,
            "load": cell.spec.load,
            "job": job,
            "kind": jobs["kind"][i],
            **{f"{time}_seconds": jobs[time][i] for time in TIMES},
        }
        for i, job in enumerate(jobs["id"])
    ]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def spoken(seconds: float) -> str:
    """
    >>> spoken(40), spoken(400), spoken(10_000)
    ('40 s', '7 min', '2.8 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
