"""Panels on performance: the headline, times of jobs, and their reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from ones.lab.comparison.page import summary_table
from ones.lab.comparison.summary import Record, reduction, summary_of, times_of
from ones.lab.paper import claims
from ones.lab.paper.panel import PaperPanel, Verdict, all_of, count, near, points, same_order
from ones.report import page as html
from ones.report.charts import Axis, Bar, bars, boxes, draw, shares
from ones.report.statistics import Interval, mean_interval

OURS = ("ones", "ones-paper")

Runs = Mapping[str, Sequence[Record]]  # label -> its runs, in the order of the tables


class TimeMeasure(NamedTuple):
    time: str  # of a job
    key: str  # of a row
    title: str
    paper: str
    reductions: Mapping[str, float]


MEASURES = (
    TimeMeasure(
        "completion", "mean_jct", "Completion time",
        "Mean of ONES 244.97 s; 26.9 % less than DRL, 45.6 % than Tiresias, 41.7 % than Optimus"
        " (so 335, 450 and 420 s). Within 200 s: 86 % of the jobs, 60-80 % under the others.",
        claims.JCT_REDUCTION,
    ),
    TimeMeasure(
        "execution", "mean_exec", "Execution time",
        "53.9 % less than Tiresias; less than DRL and Optimus (no number in the text).",
        claims.EXECUTION_REDUCTION,
    ),
    TimeMeasure(
        "queueing", "mean_queue", "Queueing time",
        "31.3 % less than DRL, 19.1 % than Tiresias, 56.6 % than Optimus.",
        claims.QUEUEING_REDUCTION,
    ),
)  # fmt: skip


def performance(runs: Runs, strongest: Mapping[str, str], home: Path) -> list[PaperPanel]:
    """Mean, box and cumulative curve of each time, with the reductions that the paper gives."""
    return [_times(measure, runs, strongest, home) for measure in MEASURES]


def _times(
    measure: TimeMeasure, runs: Runs, strongest: Mapping[str, str], home: Path
) -> PaperPanel:
    means = {label: [r.row[measure.key] for r in found] for label, found in runs.items()}
    middle = {label: fmean(values) for label, values in means.items()}
    spread = {label: mean_interval(v) if len(v) > 1 else None for label, v in means.items()}
    marks = {strongest.get(k, k): v for k, v in claims.IMPLIED_JCT.items()}
    marks["ones"] = claims.MEAN_JCT
    show_marks = measure.time == "completion"
    values = [(label, times_of(found, measure.time)) for label, found in runs.items()]
    log = measure.time != "queueing"
    drawn = draw(
        home,
        measure.time,
        [
            bars(
                f"mean {measure.time}",
                "seconds",
                [
                    Bar(label, middle[label], *_ends(interval),
                        marks.get(label) if show_marks else None)
                    for label, interval in spread.items()
                ],
                marks="paper",
            ),
            boxes(measure.time, Axis("seconds", log=log), values),
            shares(f"{measure.time}, cumulative", Axis("seconds", log=log), values),
        ],
        size=(4.6, 3.8),
    )  # fmt: skip
    table, verdicts = _reductions(measure, runs, strongest)
    if measure.time == "completion":
        verdicts = [*_completion_verdicts(runs, middle, strongest), *verdicts]
    if measure.time == "queueing" and "optimus" in strongest:
        verdicts.append(_half_interval(middle.get(strongest["optimus"])))
    return PaperPanel(
        anchor=measure.time,
        title=f"{measure.title}: mean, distribution, cumulative frequency",
        paper=measure.paper,
        ours="; ".join(f"`{label}` {html.number(value)} s" for label, value in middle.items())
        + ".",
        n=seeds_of(runs),
        spread=_spread(spread),
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "No rival of the paper is here."),
        parts=[
            html.picture(
                drawn,
                f"{measure.title}: means with 95 % intervals; median, quartiles and the range of"
                " 90 % of the jobs; share of jobs with no more. All jobs of all seeds.",
            ),
            table,
        ],
    )


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _spread(intervals: Mapping[str, Interval | None]) -> str:
    parts = [
        f"`{label}` {html.number(interval.low)} to {html.number(interval.high)}"
        for label, interval in intervals.items()
        if interval is not None
    ]
    if not parts:
        return "not known from one seed"
    return "; ".join(parts) + " s (95 % bootstrap interval of the mean over seeds)."


def _reductions(
    measure: TimeMeasure, runs: Runs, strongest: Mapping[str, str]
) -> tuple[str, list[Verdict]]:
    """Reductions of `ones` and `ones-paper` against every other policy."""
    rows: list[list[html.Cell]] = []
    verdicts = []
    ours = [label for label in OURS if label in runs]
    for label in runs:
        if label in OURS:
            continue
        policy = label.partition(":")[0]
        paper = measure.reductions.get(policy)
        found = {name: reduction(runs[name], runs[label], measure.time) for name in ours}
        rows.append([label, paper, *(value for three in found.values() for value in three)])
        if strongest.get(policy) == label and policy in claims.RIVALS and "ones" in found:
            verdicts += _reduced(measure.time, label, found["ones"][0], paper)
    heads = [f"`{name}`: less by %" if i == 0 else ("95 % from", "to")[i - 1]
             for name in ours for i in range(3)]  # fmt: skip
    return (
        html.table(
            ["against", "paper %", *heads],
            rows,
            caption=f"Reduction of mean {measure.time} time. Intervals: bootstrap over seeds.",
        ),
        verdicts,
    )


def _reduced(time: str, label: str, percent: float | None, paper: float | None) -> list[Verdict]:
    name = f"The reduction of mean {time} against `{label}`"
    if paper is None:
        if percent is None or time != "execution":
            return []
        return [Verdict(percent > 0, f"{name} is {percent:.1f} %; the text says smaller.")]
    if percent is None:
        return [Verdict(False, f"{name} is undefined: its {time} time is 0 here; the paper has"
                        f" {paper:.1f} %.")]  # fmt: skip
    return [points(name, percent, paper, 10.0)]


def _completion_verdicts(
    runs: Runs, middle: Mapping[str, float], strongest: Mapping[str, str]
) -> list[Verdict]:
    verdicts = []
    for label in ("ones", "ones-paper"):
        if label in middle:
            verdicts.append(near(f"The mean of `{label}`", middle[label], claims.MEAN_JCT, 0.10))
    for rival, implied in claims.IMPLIED_JCT.items():
        label = strongest.get(rival, rival)
        if label in middle:
            verdicts.append(near(f"The mean of `{label}`", middle[label], implied, 0.15))
    ours = {name: middle[strongest.get(name, name)] for name in claims.SCHEDULERS.values()
            if strongest.get(name, name) in middle}  # fmt: skip
    verdicts.append(same_order(ours, {"ones": claims.MEAN_JCT, **claims.IMPLIED_JCT}))
    if "ones" in runs:
        within = 100 * fmean(r.row["within_200s"] for r in runs["ones"])
        verdicts.append(
            points("The share of jobs within 200 s under `ones`", within,
                   100 * claims.WITHIN_200S, 5.0)
        )  # fmt: skip
    low, high = (100 * share for share in claims.WITHIN_200S_RIVALS)
    for rival in claims.RIVALS:
        label = strongest.get(rival, rival)
        if label in runs:
            within = 100 * fmean(r.row["within_200s"] for r in runs[label])
            agrees = low <= within <= high
            verdicts.append(
                Verdict(agrees, f"Under `{label}` it is {within:.0f} %, {'' if agrees else 'not '}"
                        f"the {low:.0f} to {high:.0f} % of the text.")
            )  # fmt: skip
    return verdicts


def _half_interval(queue: float | None) -> Verdict:
    if queue is None:
        return Verdict(None, "")
    return Verdict(
        None,
        f"The text argues that Optimus waits half of its 600 s interval on average; its own"
        f" percentages imply about 200 s. Here it is {queue:.0f} s.",
    )


def headline(runs: Runs, variants: Runs, missing: Sequence[str], strongest: Mapping[str, str]
             ) -> PaperPanel:  # fmt: skip
    """The main table, the order, and the share under 200 s."""
    rows = summary_of([record for found in runs.values() for record in found])
    parts = [summary_table(rows, "The stronger variant of each rival, by mean completion time.")]
    others = [record for found in variants.values() for record in found]
    if others:
        parts.append(summary_table(summary_of(others), "Other variants, and oracles, which know"
                                   " the true length of every job."))  # fmt: skip
    chosen = [label for label in strongest.values() if ":" in label]
    if missing:
        parts.append(html.paragraph(f"Not here: {', '.join(missing)}.", kind="no"))
    means = {row["label"]: row["mean_jct"] for row in rows}
    order = sorted(means, key=lambda label: float(means[label]))
    best = order[0]
    ones = means.get("ones")
    return PaperPanel(
        anchor="headline",
        title="All schedulers, 64 GPUs, each with its native mechanism",
        paper="Order by mean completion time: ONES 245 s, DRL 335 s, Optimus 420 s, Tiresias 450 s."
        " Pollux, Sia and the others are not in the paper.",
        ours="Order: " + " < ".join(f"`{label}` {html.number(means[label])}" for label in order)
        + " s.",
        n=seeds_of(runs),
        spread="in the table: 95 % intervals of the mean over seeds",
        verdict=Verdict(
            best == "ones",
            f"`{best}` is first"
            + (
                f", `ones` {100 * (ones / means[best] - 1):.0f} % behind it."
                if ones is not None and best != "ones"
                else f", {100 * (1 - means[best] / means[order[1]]):.0f} % ahead of `{order[1]}`."
                if len(order) > 1
                else "."
            )
            + (f" Variants chosen for being stronger: {', '.join(chosen)}." if chosen else ""),
        ),
        parts=parts,
    )  # fmt: skip


def longest(runs: Runs) -> PaperPanel:
    """The longest execution under each scheduler."""
    rows: list[list[html.Cell]] = []
    most = {}
    for label, found in runs.items():
        each = [r.row["max_exec"] for r in found]
        most[label] = max(each)
        rows.append([label, most[label], fmean(each), min(each)])
    verdicts = []
    if "ones" in most:
        under = 100 * fmean(
            seconds < claims.LONGEST_EXECUTION for seconds in times_of(runs["ones"], "execution")
        )
        verdicts.append(
            Verdict(
                under >= 99.0,
                f"Under `ones` {under:.1f} % of all executions are under 2,000 s (basically all,"
                f" in the text), the longest {html.number(most['ones'])} s.",
            )
        )
    rivals = {k: v for k, v in most.items() if k.partition(":")[0] in claims.RIVALS}
    if rivals:
        worst = max(rivals, key=lambda label: rivals[label])
        verdicts.append(
            Verdict(
                rivals[worst] >= 0.5 * claims.LONGEST_EXECUTION_RIVALS,
                f"The longest under the paper's rivals is {html.number(rivals[worst])} s"
                f" (`{worst}`), up to 10,000 s in the text.",
            )
        )
    return PaperPanel(
        anchor="longest",
        title="The longest execution of each scheduler",
        paper="ONES: basically all jobs under 2,000 s. The others: up to 10,000 s.",
        ours="; ".join(f"`{label}` {html.number(value)} s" for label, value in most.items()) + ".",
        n=seeds_of(runs),
        spread="in the table: over seeds",
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "Nothing to compare."),
        parts=[
            html.table(
                ["", "longest of all seeds s", "mean over seeds of the longest s", "least s"], rows
            )
        ],
    )


def seeds_of(runs: Runs) -> str:
    seeds = sorted({record.cell.spec.seed for found in runs.values() for record in found})
    jobs = next(iter(runs.values()))[0].row["jobs"] if runs else 0
    each = {label: len(found) for label, found in runs.items()}
    short = [f"`{label}` {n}" for label, n in each.items() if n < len(seeds)]
    less = f" (only {', '.join(short)})" if short else ""
    which = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
    return f"{count(len(seeds), 'seed')} ({which}) of {jobs} jobs{less}"
