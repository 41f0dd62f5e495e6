"""Panels over cluster sizes, and the ablation of `ones`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ones.lab.comparison.page import curve
from ones.lab.comparison.summary import Record, by_setting, reduction, summary_of
from ones.lab.paper import claims
from ones.lab.paper.panel import PaperPanel, Verdict, all_of, count, points
from ones.report import page as html
from ones.report.charts import Axis, Curve, curves, draw


def scaling(
    records: Sequence[Record], strongest: Mapping[str, str], home: Path
) -> list[PaperPanel]:
    """Mean completion against GPUs, and the improvement of ONES against GPUs."""
    rows = [row for row in summary_of(records) if row["mean_jct"] is not None]
    if not rows:
        return []
    return [_against_gpus(rows, home), _improvement(records, strongest, home)]


def _against_gpus(rows: Sequence[Mapping[str, Any]], home: Path) -> PaperPanel:
    sizes = sorted({int(row["gpus"]) for row in rows})
    labels = list(dict.fromkeys(row["label"] for row in rows))
    by = {(row["label"], row["gpus"]): row for row in rows}

    def lines(key: str) -> list[Curve]:
        return [
            curve(label, [by[label, size] for size in sizes if (label, size) in by], key)
            for label in labels
        ]

    axis = Axis("GPUs", ticks=sizes)
    drawn = draw(
        home,
        "scaling",
        [
            curves("completion", axis, Axis("mean (s)", start=0), lines("mean_jct")),
            curves("queueing", axis, Axis("mean (s)", start=0), lines("mean_queue")),
        ],
        columns=2,
        size=(5.6, 3.9),
    )
    small, large = sizes[0], sizes[-1]
    falls = {
        label: by[label, small]["mean_jct"] / by[label, large]["mean_jct"]
        for label in labels
        if (label, small) in by and (label, large) in by
    }
    fall = min(falls.values(), default=1.0)
    table = [
        [label, *(by[label, size]["mean_jct"] if (label, size) in by else None for size in sizes),
         *(by[label, size]["mean_queue"] if (label, size) in by else None for size in sizes)]
        for label in labels
    ]  # fmt: skip
    return PaperPanel(
        anchor="scaling",
        title="Scaling: completion time against GPUs",
        paper="All schedulers show similar trends; the average falls almost linearly with GPUs,"
        " the queueing time linearly. No number in the text.",
        ours=f"From {small} to {large} GPUs the mean falls by a factor of "
        + "; ".join(f"`{label}` {f:.1f}" for label, f in falls.items())
        + ".",
        n=f"{count(rows[0]['n'], 'seed')} of {rows[0]['jobs']} jobs at each size",
        spread="bands: 95 % intervals of the mean over seeds",
        verdict=Verdict(
            fall > 1.0,
            ("Agrees: every" if fall > 1.0 else "Does not agree: not every")
            + " scheduler gets quicker with more GPUs; a fall in proportion would be a factor of"
            f" {large / small:.1f}, the least here is {fall:.1f}.",
        ),
        parts=[
            html.picture(drawn, "Mean completion and queueing time against the size of the"
                         " cluster."),
            html.table(["", *(f"{s} GPUs: mean s" for s in sizes),
                        *(f"{s} GPUs: queueing s" for s in sizes)], table),
        ],
    )  # fmt: skip


def _improvement(records: Sequence[Record], strongest: Mapping[str, str], home: Path) -> PaperPanel:
    found: dict[str, dict[int, tuple[float, float, float]]] = {}
    for setting, labels in by_setting(records).items():
        for rival in claims.RIVALS:
            label = strongest.get(rival, rival)
            if "ones" not in labels or label not in labels:
                continue
            less, least, most = reduction(labels["ones"], labels[label], "completion")
            if less is not None and least is not None and most is not None:
                found.setdefault(rival, {})[setting.gpus] = (less, least, most)
    sizes = sorted({size for points_ in found.values() for size in points_})
    verdicts = []
    lines = []
    rows: list[list[html.Cell]] = []
    for rival, at in found.items():
        label = strongest.get(rival, rival)
        known = sorted(at)
        middle, low, high = ([at[size][i] for size in known] for i in range(3))
        lines.append(Curve(label, known, middle, low, high))
        paper = [claims.IMPROVEMENT.get(size, {}).get(rival) for size in sizes]
        rows.append([label, *(at[size][0] if size in at else None for size in sizes), *paper])
        for size, percent in claims.IMPROVEMENT.items():
            if size in at:
                name = f"Against `{label}` on {size} GPUs the improvement"
                verdicts.append(points(name, at[size][0], percent[rival], 10.0))
        if {16, 64} <= set(at):
            grows = at[64][0] > at[16][0]
            verdicts.append(
                Verdict(grows, f"It {'grows' if grows else 'does not grow'} with GPUs against"
                        f" `{label}`, as the text says." if grows else
                        f"It does not grow with GPUs against `{label}`; the text says it does.")
            )  # fmt: skip
    parts = []
    if lines:
        drawn = draw(
            home,
            "improvement",
            [
                curves(
                    "improvement of ones in mean completion",
                    Axis("GPUs", ticks=sizes),
                    Axis("less by (%)"),
                    lines,
                )
            ],
            size=(6.4, 3.9),
        )
        parts = [
            html.picture(drawn, "How much shorter the mean completion time of `ones` is; bands:"
                         " 95 % intervals over seeds."),
            html.table(["against", *(f"{s} GPUs: %" for s in sizes),
                        *(f"paper, {s} GPUs: %" for s in sizes)], rows),
        ]  # fmt: skip
    return PaperPanel(
        anchor="improvement",
        title="Improvement against GPUs",
        paper="From 16 to 64 GPUs: 19 to 27 % against DRL, 44 to 46 % against Tiresias, 24 to 42 %"
        " against Optimus.",
        ours="; ".join(
            f"`{strongest.get(rival, rival)}` "
            + ", ".join(f"{at[size][0]:.0f} % ({size})" for size in sorted(at))
            for rival, at in found.items()
        )
        + ".",
        n=f"{count(len({r.cell.spec.seed for r in records}), 'seed')} at each size",
        spread="bands: 95 % bootstrap intervals over seeds",
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "No rival of the paper is here."),
        parts=parts,
    )


def ablation(cumulative: Sequence[Record], leave_one_out: Sequence[Record]) -> PaperPanel:
    """One group of settings at a time."""
    steps = summary_of(cumulative)
    rows: list[list[html.Cell]] = []
    before = None
    for row in steps:
        change = None if before is None else 100 * (row["mean_jct"] / before - 1)
        rows.append([row["label"], row["mean_jct"], row["mean_jct_low"], row["mean_jct_high"],
                     change, row["p99_jct"], row["n"]])  # fmt: skip
        before = row["mean_jct"]
    parts = [
        html.table(
            ["", "mean completion s", "95 % from", "to", "change %", "99 % within s", "seeds"],
            rows,
            caption="Upwards: each line adds one group of settings as `ones` has it to all those"
            " above; the last is `ones`.",
        )
    ]
    least = summary_of(leave_one_out)
    if least:
        whole = least[0]["mean_jct"]
        parts.append(
            html.table(
                ["", "mean completion s", "95 % from", "to", "against ones %", "99 % within s"],
                [[row["label"], row["mean_jct"], row["mean_jct_low"], row["mean_jct_high"],
                  100 * (row["mean_jct"] / whole - 1), row["p99_jct"]] for row in least],
                caption="From `ones` downwards: one group at a time is taken back.",
            )
        )  # fmt: skip
    changes = [(row[0], row[4]) for row in rows if isinstance(row[4], float)]
    best = min(changes, key=lambda pair: pair[1], default=None)
    worst = max(changes, key=lambda pair: pair[1], default=None)
    first, last = steps[0]["mean_jct"], steps[-1]["mean_jct"]
    return PaperPanel(
        anchor="ablation",
        title="Ablation of ones: one group of settings at a time",
        paper="None.",
        ours=f"{html.number(first)} s at the start, {html.number(last)} s at the end"
        f" ({100 * (last / first - 1):+.0f} %)."
        + (f" The largest gain: {best[0]} ({best[1]:+.0f} %)." if best and best[1] < 0 else "")
        + (f" The largest loss: {worst[0]} ({worst[1]:+.0f} %)." if worst and worst[1] > 0 else ""),
        n=f"{count(steps[0]['n'], 'seed')} of {steps[0]['jobs']} jobs, 64 GPUs, each"
        " with its native mechanism",
        spread="95 % bootstrap intervals of the mean over seeds",
        verdict=Verdict(None, "The paper has no such table. This one attributes the gain."),
        parts=parts,
    )
