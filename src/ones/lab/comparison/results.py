"""The results of a comparison: as JSON, and as files of its directory."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ones import __version__
from ones.errors import WorldError
from ones.lab.comparison.execution import RunFailure
from ones.lab.comparison.grid import Cell
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.summary import TIMES, Record, significance_of, summary_of

RESULTS_NAME, ROWS_NAME, JOBS_NAME = "results.json", "rows.csv", "jobs.csv"


@dataclass(frozen=True, slots=True)
class Comparison:
    records: Sequence[Record]
    failures: Sequence[RunFailure]

    @property
    def exit_code(self) -> int:
        """Exit code of the worst failure; 0 without failures."""
        return max((failure.exit_code for failure in self.failures), default=0)

    def to_json(self) -> dict[str, Any]:
        """The output of `--json`; the keys are documented in results.md."""
        return {
            "rows": [record.row for record in self.records],
            "summary": summary_of(self.records),
            "tests": significance_of(self.records),
            "failures": [asdict(failure) for failure in self.failures],
        }


def records_of(cells: Sequence[Cell], store: ResultStore, task: str = "run") -> list[Record]:
    """The finished runs of this task, in the order of the cells."""
    return [Record(c, store[c.key]) for c in cells if c.task == task and c.key in store]


def write_results(comparison: Comparison, directory: Path) -> list[Path]:
    """Writes results.json, and two tables for spreadsheets: of the runs, and of all their jobs."""
    results = comparison.to_json()
    texts = {
        RESULTS_NAME: json.dumps({"software": __version__, **results}, indent=2) + "\n",
        ROWS_NAME: _csv([_flat(row) for row in results["rows"]]),
        JOBS_NAME: _csv([row for record in comparison.records for row in _job_rows(record)]),
    }
    return [write_text(directory / name, text) for name, text in texts.items()]


def write_text(path: Path, text: str) -> Path:
    """Writes the file atomically."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
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
            "rho": jobs["rho"][i],
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
