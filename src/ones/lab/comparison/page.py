"""The HTML page of a comparison: tables and figures for each setting, and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ones import __version__
from ones.lab.comparison.frontier import frontier, has_frontier
from ones.lab.comparison.results import Comparison, write_text
from ones.lab.comparison.summary import (
    ComparisonSetting,
    Record,
    by_setting,
    significance_of,
    summary_of,
    times_of,
)
from ones.lab.runs import RunSpec
from ones.report import page as html
from ones.report.charts import Axis, Bar, Curve, bars, boxes, curves, draw, shares

PAGE_NAME, FIGURES = "index.html", "figures"

_TIMES = {
    "label": "policy", "n": "seeds", "mean_jct": "mean s", "mean_jct_low": "95 % from",
    "mean_jct_high": "to", "median_jct": "median s", "p95_jct": "95 % in s",
    "p99_jct": "99 % in s", "mean_exec": "running s", "mean_queue": "queueing s",
    "within_200s": "share in 200 s",
}  # fmt: skip
_CHANGES = {
    "label": "policy", "rescaling": "rescaling", "finished": "jobs finished",
    "longest_exec": "longest run s",
    "makespan": "makespan s", "utilization": "GPUs held", "rescales": "rescales",
    "rescale_rate": "rescales per job and hour",
    "preemptions": "preemptions", "policy_cpu_seconds": "policy CPU s",
}  # fmt: skip
_TESTS = {
    "against": "against", "pairs": "pairs", "completion_reduction_percent": "completion less by %",
    "completion_reduction_low": "95 % from", "completion_reduction_high": "to",
    "execution_reduction_percent": "running %", "queueing_reduction_percent": "queueing %",
    "p_two_sided": "p, two-sided", "p_less": "p, less", "effect": "effect",
    "effect_low": "95 % from", "effect_high": "to",
}  # fmt: skip
TESTS_CAPTION = (
    "Wilcoxon signed-rank tests over the same jobs of the same seeds. `p, less` is small when the"
    " first is faster. Effect: rank-biserial correlation, -1 when it is faster for every job."
    " Intervals by bootstrap over seeds; where there is one, over its jobs."
)


def write_page(comparison: Comparison, home: Path) -> Path:
    """Writes index.html with everything inside; without matplotlib it has no figures."""
    return write_text(
        home / PAGE_NAME, html.page("Comparison of schedulers", _parts(comparison, home))
    )


def _parts(comparison: Comparison, home: Path) -> Iterator[str]:
    records = comparison.records
    seeds = sorted({record.cell.spec.seed for record in records})
    workloads: dict[str, None] = {}
    if records:
        jobs, spec = records[0].row["jobs"], records[0].cell.spec
        workloads = dict.fromkeys(f"`{record.cell.spec.workload}`" for record in records)
        yield html.paragraph(
            f"{jobs} jobs of workload {' and '.join(workloads)}, {len(seeds)} seeds ({seeds[0]} to"
            f" {seeds[-1]}){_unusual(spec)},"
            f" simulated with ones {__version__}. Times in seconds; means over seeds, with 95 %"
            " bootstrap intervals of the mean completion time.",
            quiet=True,
        )
    for failure in comparison.failures:
        yield html.paragraph(f"Failed: {failure}", kind="no")
    summary, tests = summary_of(records), significance_of(records)
    for number, (setting, labels) in enumerate(by_setting(records).items()):
        yield html.heading(title_of(setting, named=len(workloads) > 1))
        rows = [row for row in summary if _within(row, setting)]
        yield summary_table(rows)
        against = [row for row in tests if _within(row, setting)]
        if against:
            yield tests_table(against)
        yield from _figures(labels, rows, home / FIGURES, f"setting-{number + 1}")
        if has_frontier(rows):
            yield from _frontier(rows, home / FIGURES, f"frontier-{number + 1}")
    yield from _against_sizes(summary, home / FIGURES)


def _unusual(spec: RunSpec) -> str:
    parts = [f"{name} x{factor:g}" for name, factor in spec.physics.items()]
    parts += [] if spec.kinds == "given" else [f"kinds {spec.kinds}"]
    return "".join(f", {part}" for part in parts)


def _frontier(rows: Sequence[Mapping[str, Any]], home: Path, name: str) -> Iterator[str]:
    try:
        drawn = draw(home, name, [frontier("mean and slowest", rows)], size=(6.4, 4.0))
    except ImportError:
        return
    yield html.picture(
        drawn,
        "Mean completion time against the time within which 99 % of the jobs of all seeds are"
        " done; left and low is good.",
    )
    yield html.table(
        ["", "mean s", "99 % of all jobs in s"],
        [[row["label"], row["mean_jct"], row["pooled_p99_jct"]] for row in rows],
    )


def title_of(setting: ComparisonSetting, *, named: bool = False) -> str:
    """`named`: with the workload, if there are several."""
    load = "" if setting.load is None else f", load {setting.load:g}"
    workload = f"{setting.workload}: " if named else ""
    return f"{workload}{setting.gpus} GPUs, {setting.mechanism} rescaling{load}"


def summary_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """Two tables, so that each fits a page: times, and changes."""
    return "".join(
        html.table(
            list(columns.values()),
            [[row[key] for key in columns] for row in rows],
            caption=caption if columns is _TIMES else "",
        )
        for columns in (_TIMES, _CHANGES)
    )


def tests_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return html.table(
        list(_TESTS.values()),
        [
            [format_p(row[key]) if key.startswith("p_") else row[key] for key in _TESTS]
            for row in rows
        ],
        caption=f"`{rows[0]['label']}` against each other policy. {TESTS_CAPTION}",
    )


def format_p(p: float) -> str:
    return f"{p:.2e}" if p < 0.001 else f"{p:.5f}" if p > 0.999 else f"{p:.3f}"


def _within(row: Mapping[str, Any], setting: ComparisonSetting) -> bool:
    return (row["gpus"], row["mechanism"], row["load"], row["workload"]) == setting


def _figures(
    labels: Mapping[str, Sequence[Record]], rows: Sequence[Mapping[str, Any]], home: Path, name: str
) -> Iterator[str]:
    times = [(label, times_of(runs, "completion")) for label, runs in labels.items()]
    known = [row for row in rows if row["mean_jct"] is not None]
    if not known:
        return
    try:
        drawn = draw(
            home,
            name,
            [
                bars("mean completion", "seconds", [mean_bar(row) for row in known]),
                boxes("completion", Axis("seconds", log=True), times),
                shares("completion, cumulative", Axis("seconds", log=True), times),
            ],
        )
    except ImportError:
        yield html.paragraph("No figures: matplotlib is not installed.", quiet=True)
        return
    yield html.picture(
        drawn,
        "Completion time: means with 95 % intervals; median, quartiles and the range of 90 % of"
        " the jobs; share of jobs done within a time.",
    )


def mean_bar(row: Mapping[str, Any]) -> Bar:
    return Bar(row["label"], row["mean_jct"], row["mean_jct_low"], row["mean_jct_high"])


def curve(label: str, rows: Sequence[Mapping[str, Any]], key: str) -> Curve:
    """Values against GPUs, with the band of intervals if every row has one."""
    low: list[Any] = [row.get(f"{key}_low") for row in rows]
    high: list[Any] = [row.get(f"{key}_high") for row in rows]
    band = None not in low + high
    at, values = [float(row["gpus"]) for row in rows], [float(row[key]) for row in rows]
    return Curve(label, at, values, low if band else None, high if band else None)


def _against_sizes(summary: Sequence[Mapping[str, Any]], home: Path) -> Iterator[str]:
    """Completion against GPUs, if there are several cluster sizes."""
    groups: dict[tuple[str, float | None, str], dict[str, list[Mapping[str, Any]]]] = {}
    for row in summary:
        if row["mean_jct"] is not None:
            labels = groups.setdefault((row["mechanism"], row["load"], row["workload"]), {})
            labels.setdefault(row["label"], []).append(row)
    for number, ((mechanism, load, _), labels) in enumerate(groups.items()):
        if max(len(rows) for rows in labels.values()) < 2:
            continue
        lines = []
        for label, rows in labels.items():
            ordered = sorted(rows, key=lambda row: int(row["gpus"]))
            lines.append(curve(label, ordered, "mean_jct"))
        sizes = sorted({x for line in lines for x in line.x})
        title = f"{mechanism} rescaling" + ("" if load is None else f", load {load:g}")
        axes = Axis("GPUs", ticks=sizes), Axis("mean completion (s)", start=0)
        try:
            drawn = draw(
                home, f"sizes-{number + 1}", [curves(title, *axes, lines)], size=(6.4, 4.0)
            )
        except ImportError:
            return
        yield html.heading("Against the size of the cluster")
        yield html.picture(drawn, "Mean completion time; bands are 95 % intervals over seeds.")
