"""Panel of the contended workload, with and without the kind that makes most of the work."""

from __future__ import annotations

from collections.abc import Sequence

from ones.lab.comparison.page import summary_table
from ones.lab.comparison.rows import comparison_rows, rows_table
from ones.lab.comparison.summary import Record, summary_of
from ones.lab.paper import claims
from ones.lab.paper.contended import (
    DOMINATING_KIND,
    LOAD,
    LOAD_WITHOUT,
    MIN_DIFFERENCE,
    MIN_QUEUE_SHARE,
)
from ones.lab.paper.panel import PaperPanel, Verdict, all_of, count, points
from ones.lab.paper.performance import OURS
from ones.report import page as html


def contended(records: Sequence[Record], without: Sequence[Record]) -> PaperPanel:
    """Means, margins and Holm-adjusted tests where jobs queue."""
    summary = summary_of(records)
    means = {row["label"]: row["mean_jct"] for row in summary}
    order = sorted(means, key=lambda label: float(means[label]))
    rows = comparison_rows(records, OURS, scenario=f"load {LOAD:g}")
    if without:
        scenario = f"load {LOAD_WITHOUT:g}, without {DOMINATING_KIND}"
        rows = [*rows, *comparison_rows(without, OURS, scenario=scenario)]
    parts = [summary_table(summary, f"Load {LOAD:g}, all kinds.")]
    if without:
        caption = f"Load {LOAD_WITHOUT:g}, without {DOMINATING_KIND}."
        parts.append(summary_table(summary_of(without), caption))
    heads, cells = rows_table(rows)
    parts.append(
        html.table(heads, cells, caption="p: Wilcoxon, two-sided; adjusted by Holm over all rows.")
    )
    verdicts = [
        points(
            f"The reduction by `{row.label}` against `{row.rival}`",
            row.less_percent,
            claims.JCT_REDUCTION[row.rival],
            10.0,
        )
        for row in rows
        if row.scenario == f"load {LOAD:g}" and row.rival in claims.JCT_REDUCTION
    ]
    jobs = records[0].row["jobs"]
    waits = {row["label"]: row["mean_queue"] / row["mean_jct"] for row in summary}
    share = f" In these runs the share is {100 * waits['fifo']:.0f} %." if "fifo" in waits else ""
    return PaperPanel(
        anchor="contended",
        title="Where jobs queue: a load chosen by fifo and tiresias alone",
        paper="Reductions by ONES: 26.9 % against DRL, 45.6 % against Tiresias, 41.7 % against"
        " Optimus, on the paper's own trace.",
        ours="Order: " + " < ".join(f"`{label}` {html.number(means[label])}" for label in order)
        + " s.",
        n=f"{count(summary[0]['n'], 'seed')} of {jobs} jobs",
        spread="in the tables: 95 % bootstrap intervals over seeds",
        verdict=all_of(
            *verdicts,
            Verdict(
                None,
                f"The load is the smallest at which jobs wait for over {MIN_QUEUE_SHARE:.0%} of"
                f" their completion time under `fifo` and `tiresias` is at least"
                f" {MIN_DIFFERENCE:.0%} below `fifo` on seeds 1 to 3.".replace("%", " %") + share,
            ),
        ),
        parts=parts,
    )  # fmt: skip
