"""The panel and the figure of `ones paper artifact`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ones.lab.paper.authors_claims import AUTHORS
from ones.lab.paper.authors_results import Times
from ones.lab.paper.panel import PaperPanel, Verdict, count
from ones.report import page as html
from ones.report.charts import Axis, Bar, bars, boxes, draw, shares

FIGURES, NAME = "figures", "artifact"
#: shown columns of a row
COLUMNS = {
    "policy": "scheduler", "n": "seeds", "mean_jct": "mean completion s",
    "mean_jct_low": "95 % from", "mean_jct_high": "to", "mean_exec": "execution s",
    "mean_queue": "queueing s", "median_jct": "median s", "p90_jct": "90 % within s",
    "max_jct": "longest s", "within_200s": "within 200 s",
}  # fmt: skip


def draw_artifact(
    times: Mapping[str, Times],
    authors: Mapping[str, Times],
    rows: Mapping[str, Mapping[str, Any]],
    home: Path,
) -> Path | None:
    """Means with the authors' as marks, boxes and cumulative shares; None without any run."""
    if not rows:
        return None
    marks = {name: figures.completion.mean for name, figures in AUTHORS.items()}
    values = [(label, found["completion"]) for label, found in times.items()]
    values += [(f"authors: {name}", found["completion"]) for name, found in authors.items()]
    named = {*AUTHORS, *(f"authors: {name}" for name in AUTHORS)}
    compared = [found for found in values if found[0] in named]  # 16 curves hide each other
    axis = Axis("seconds", log=True)
    return draw(
        home / FIGURES,
        NAME,
        [
            bars(
                "mean completion",
                "seconds",
                [
                    Bar(label, row["mean_jct"], row["mean_jct_low"], row["mean_jct_high"],
                        marks.get(label))
                    for label, row in rows.items()
                ],
                marks="authors' files",
            ),
            boxes("completion", axis, values),
            shares("completion, cumulative", axis, compared or values),
        ],
        size=(4.8, 4.6),
    )  # fmt: skip


def cell(row: Mapping[str, Any], key: str) -> html.Cell:
    value: html.Cell = row.get(key)
    if key == "within_200s" and isinstance(value, float):
        return f"{value:.0%}"
    return value


def verdict_word(ok: bool | None) -> str:
    return {True: "ok", False: "miss", None: "-"}[ok]


def bound_sentence(result: Mapping[str, Any]) -> str:
    return (
        "With every job alone on its best number of GPUs, without start-up, the mean execution"
        f" would be {result['least_mean_exec']:.0f} s."
    )


def artifact_panel(result: Mapping[str, Any], home: Path) -> PaperPanel:
    """The panel of a result."""
    rows, targets, setup = result["rows"], result["targets"], result["setup"]
    judged = [check for check in targets if check["ok"] is not None]
    met = sum(check["ok"] for check in judged)
    right = sum(bool(check["ok"]) for check in setup)
    order = sorted(rows, key=lambda row: float(row["mean_jct"]))
    authors = {row["policy"]: row for row in result["authors"]}
    figure = result["figure"]
    seeds = max((row["n"] for row in rows), default=0)
    missed = [check["name"] for check in judged if not check["ok"]]
    sentence = f"{met} of {len(judged)} targets are met; {right} of {len(setup)} set-up checks."
    if missed:
        sentence += f" Missed: {'; '.join(missed)}."
    chosen = [label for label in result["stronger_variants"].values() if ":" in label]
    if chosen:
        sentence += f" Variants that stand for rivals, as the stronger ones: {', '.join(chosen)}."
    if not judged:
        sentence = f"No target can be judged; {right} of {len(setup)} set-up checks are met."
    heads = list(COLUMNS.values())
    return PaperPanel(
        anchor=NAME,
        title="The paper as its authors ran it: their trace, their results",
        paper="The authors' result files: mean completion "
        + ", ".join(f"{name} {html.number(row['mean_jct'])} s" for name, row in authors.items())
        + ".",
        ours=" < ".join(f"`{row['policy']}` {html.number(row['mean_jct'])}" for row in order)
        + f" s. {bound_sentence(result)}",
        n=f"{count(seeds, 'seed')} of {result['jobs']} jobs; {result['trace']}; {result['data']}",
        spread="in the table: 95 % intervals of the mean over seeds",
        verdict=Verdict(met == len(judged) if judged else None, sentence),
        parts=[
            *(
                [
                    html.picture(
                        home / figure,
                        "Completion times as distributions: means with 95 % intervals over seeds;"
                        " median, quartiles and the range of 90 % of the jobs; share of jobs with"
                        " no more. Diamonds: means of the authors' files.",
                    )
                ]
                if figure
                else []
            ),
            html.table(heads, [[cell(row, key) for key in COLUMNS] for row in rows],
                       caption="Our schedulers."),
            html.table(heads, [[cell(row, key) for key in COLUMNS] for row in authors.values()],
                       caption="The authors' files, by our names of the schedulers."),
            _checks("Targets of a replication.", targets),
            _checks("Checks of the set-up.", setup),
            *(html.paragraph(text) for text in result["warnings"]),
        ],
    )  # fmt: skip


def _checks(caption: str, found: list[Mapping[str, Any]]) -> str:
    rows: list[list[html.Cell]] = [
        [check["name"], check["value"], check["low"], check["high"], verdict_word(check["ok"])]
        for check in found
    ]
    return html.table(["", "value", "from", "to", ""], rows, caption=caption)
