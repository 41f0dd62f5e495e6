"""`ones paper artifact`: our schedulers on the authors' trace, beside the authors' results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ones import __version__
from ones.errors import InvalidFileError
from ones.lab.comparison.execution import RunFailure
from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.results import records_of, write_text
from ones.lab.comparison.summary import TIMES, Record, summary_of, times_of
from ones.lab.comparison.variants import parse_variants
from ones.lab.paper import artifact_checks as checks
from ones.lab.paper.artifact_panel import artifact_panel, draw_artifact
from ones.lab.paper.authors_claims import AUTHORS, JOBS, TRACE_NAME, WARNINGS
from ones.lab.paper.authors_results import (
    Times,
    check_directory,
    read_results,
    row_of_figures,
    row_of_times,
)
from ones.lab.paper.panel import PaperPanel
from ones.lab.runs import RunSpec, trace_of
from ones.report import page as html

RESULT_NAME, PAGE_NAME = "artifact.json", "artifact.html"
#: in the order of the tables
SCHEDULERS = (
    checks.OURS, checks.LARGE, checks.PREDICTOR, "ones-paper", "ones", "drl", "optimus",
    "optimus:strict", "tiresias", "tiresias:published", "fifo", "fifo:backfill",
)  # fmt: skip
#: settings beside the defaults: the weights that were trained on this workload
SETTINGS: Mapping[str, Mapping[str, Any]] = {"drl": {"weights": "artifact"}}
GPUS, GPUS_PER_NODE = 64, 4
_SUMMARY = ("n", "first_seed", "mean_jct_low", "mean_jct_high", "rescales", "preemptions",
            "finished", "utilization")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactDesign:
    """What is run, and on which trace."""

    data: Path | None  # directory of the authors' files; None: their figures and the generator
    jobs: int = JOBS
    first_seed: int = 1000
    seeds: int = 10
    labels: Sequence[str] = SCHEDULERS

    @property
    def workload(self) -> str:
        return "paper-artifact" if self.data is None else str(check_directory(self.data))

    def cells(self) -> list[Cell]:
        return Grid(
            variants=parse_variants(self.labels, settings=SETTINGS),
            seeds=range(self.first_seed, self.first_seed + self.seeds),
            gpus=(GPUS,),
            base=RunSpec(
                policy="", workload=self.workload, jobs=self.jobs, gpus_per_node=GPUS_PER_NODE
            ),
        ).cells()


def artifact_result(
    design: ArtifactDesign, store: ResultStore, home: Path, failures: Sequence[RunFailure] = ()
) -> dict[str, Any]:
    """The output of `--json`, from the runs that are stored; draws its figure."""
    records = [r for r in records_of(design.cells(), store) if r.row["mean_jct"] is not None]
    runs: dict[str, list[Record]] = {}
    for record in records:
        runs.setdefault(record.cell.label, []).append(record)
    rows = {row["label"]: scheduler_row(row, runs[row["label"]]) for row in summary_of(records)}
    authors = {} if design.data is None else read_results(design.data)
    trace = trace_of(
        RunSpec(policy="", workload=design.workload, jobs=design.jobs, seed=design.first_seed)
    )
    setup = checks.setup_checks(trace, design.workload, is_authors=design.data is not None)
    strongest = checks.strongest_rivals(rows)
    result: dict[str, Any] = {
        "software": __version__,
        "data": "figures of the authors' files" if design.data is None else "the authors' files",
        "trace": trace.name if design.data is None else TRACE_NAME,
        "jobs": len(trace.jobs),
        "setup": [check.to_json() for check in setup],
        "rows": list(rows.values()),
        "authors": [
            {
                "policy": name,
                "file": figures.file,
                **(row_of_times(authors[name]) if name in authors else row_of_figures(figures)),
            }
            for name, figures in AUTHORS.items()
        ],
        "targets": [check.to_json() for check in checks.target_checks(runs, rows, strongest)],
        "stronger_variants": strongest,
        "least_mean_exec": checks.least_mean_execution(trace, GPUS),
        "warnings": list(WARNINGS),
        "failures": [str(failure) for failure in failures],
    }
    drawn = draw_artifact(_times(runs), authors, rows, home)
    result["figure"] = str(drawn.relative_to(home)) if drawn is not None else None
    return result


def write_artifact(result: Mapping[str, Any], command: str, home: Path) -> list[Path]:
    """Writes the page and `artifact.json`, which `ones paper --artifact` reads."""
    panel = artifact_panel(result, home)
    body = [html.paragraph("Rebuilt by:"), html.command(command), *panel.html()]
    return [
        write_text(home / PAGE_NAME, html.page("The paper as its authors ran it", body)),
        write_text(home / RESULT_NAME, json.dumps(result, indent=2) + "\n"),
    ]


def read_artifact_panel(home: Path) -> PaperPanel:
    """Reads a stored result as a panel of the page of the paper's evaluation."""
    path = home / RESULT_NAME
    try:
        return artifact_panel(json.loads(path.read_text(encoding="utf-8")), home)
    except OSError as problem:
        raise InvalidFileError(path, f"cannot be read: {problem.strerror}") from problem
    except (ValueError, KeyError, TypeError) as problem:
        raise InvalidFileError(path, "is not what `ones paper artifact` writes") from problem


def scheduler_row(summary: Mapping[str, Any], records: Sequence[Record]) -> dict[str, Any]:
    """A row of the result: means over seeds; p90 and the longest over the jobs of all seeds."""
    pooled = row_of_times({time: times_of(records, time) for time in TIMES})
    means = ("mean_jct", "mean_exec", "mean_queue", "median_jct", "within_200s")
    return {
        "policy": summary["label"],
        "mechanism": summary["rescaling"],
        **{key: summary[key] for key in means},
        "p90_jct": pooled["p90_jct"],
        "max_jct": pooled["max_jct"],
        **{key: summary[key] for key in _SUMMARY},
    }


def _times(runs: Mapping[str, Sequence[Record]]) -> dict[str, Times]:
    return {label: {time: times_of(found, time) for time in TIMES} for label, found in runs.items()}
