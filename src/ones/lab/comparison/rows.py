"""Rows of comparisons: each of our labels against each rival, with p-values for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from ones.lab.comparison.margins import paired_records
from ones.lab.comparison.summary import Record, by_setting, paired_test
from ones.report.page import Cell, number
from ones.report.statistics import holm

#: below which an adjusted p-value counts
LEVEL = 0.05
_FIGURES = ("mean_jct", "p99_jct", "makespan", "gpu_hours", "utilization", "worst_rho",
            "unfair_share")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One label against one rival in one scenario; `p_holm` holds over all rows of a table."""

    scenario: str
    gpus: int
    mechanism: str
    load: float | None
    label: str
    rival: str
    seeds: int
    pairs: int
    less_percent: float  # negative: the mean is above the rival's
    less_low: float
    less_high: float
    effect: float  # rank-biserial correlation; negative: most jobs are faster than under the rival
    p: float  # Wilcoxon signed-rank test, two-sided
    p_holm: float
    figures: dict[str, float]  # means over seeds
    rival_figures: dict[str, float]

    @property
    def result(self) -> str:
        """`faster` or `slower` if the ranks differ significantly and the means in the same
        direction; else `-`."""
        if self.p_holm >= LEVEL or self.less_percent * self.effect >= 0:
            return "-"
        return "faster" if self.less_percent > 0 else "slower"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "result": self.result}


def comparison_rows(
    records: Sequence[Record], ours: Sequence[str], *, scenario: str = ""
) -> list[ComparisonRow]:
    """Rows over the seeds that all labels have. p-values are not adjusted yet: see `adjusted`."""
    found = []
    for setting, labels in by_setting(paired_records(records)).items():
        for label in (name for name in labels if name in ours):
            for rival in (name for name in labels if name not in ours):
                test = paired_test(labels[label], labels[rival])
                if test is None:
                    continue
                found.append(
                    ComparisonRow(
                        scenario=scenario,
                        gpus=setting.gpus,
                        mechanism=setting.mechanism,
                        load=setting.load,
                        label=label,
                        rival=rival,
                        seeds=test["seeds"],
                        pairs=test["pairs"],
                        less_percent=test["completion_reduction_percent"],
                        less_low=test["completion_reduction_low"],
                        less_high=test["completion_reduction_high"],
                        effect=test["effect"],
                        p=test["p_two_sided"],
                        p_holm=test["p_two_sided"],
                        figures=_figures(labels[label]),
                        rival_figures=_figures(labels[rival]),
                    )
                )
    return found


def adjusted(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """The rows with p-values adjusted for their number."""
    return [replace(row, p_holm=p) for row, p in zip(rows, holm([r.p for r in rows]), strict=True)]


def rows_table(rows: Sequence[ComparisonRow]) -> tuple[list[str], list[list[Cell]]]:
    """Heads and cells; p-values are adjusted over these rows."""
    heads = ["", "rescaling", "", "against", "seeds", "mean s", "its mean s", "less by % (95 %)",
             "p", "p, Holm", "result", "worst ρ", "its worst ρ"]  # fmt: skip
    cells: list[list[Cell]] = [
        [
            row.scenario or "as usual",
            row.mechanism,
            row.label,
            row.rival,
            row.seeds,
            number(row.figures["mean_jct"]),
            number(row.rival_figures["mean_jct"]),
            f"{row.less_percent:.1f} ({row.less_low:.1f} to {row.less_high:.1f})",
            f"{row.p:.2g}",
            f"{row.p_holm:.2g}",
            row.result,
            number(row.figures["worst_rho"]),
            number(row.rival_figures["worst_rho"]),
        ]
        for row in adjusted(rows)
    ]
    return heads, cells


def _figures(records: Sequence[Record]) -> dict[str, float]:
    rows = [record.row for record in records]
    return {name: fmean(row[name] for row in rows) for name in _FIGURES}
