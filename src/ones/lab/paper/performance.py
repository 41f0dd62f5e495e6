"""Panels on how schedulers perform: times, reductions, tests, properties, mechanisms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from ones.lab.compare_page import TESTS_TOLD, p_value, summary_table
from ones.lab.paper import claims
from ones.lab.paper.panel import Panel, Verdict, all_of, count, near, points, same_order
from ones.lab.tables import Record, pairs_of, reduction, summary_of, times_of, versus
from ones.report import page as html
from ones.report.charts import Axis, Bar, bars, boxes, draw, shares
from ones.report.statistics import mean_interval, signed_rank_test

OURS = ("ones", "ones-paper")

Runs = Mapping[str, Sequence[Record]]  # label -> its runs, in the order of the tables


class Measure(NamedTuple):
    time: str  # of a job
    key: str  # of a row
    title: str
    paper: str
    reductions: Mapping[str, float]


MEASURES = (
    Measure(
        "completion", "mean_jct", "Completion time",
        "Mean of ONES 244.97 s; 26.9 % less than DRL, 45.6 % than Tiresias, 41.7 % than Optimus"
        " (so 335, 450 and 420 s). Within 200 s: 86 % of the jobs, 60-80 % under the others.",
        claims.JCT_REDUCTION,
    ),
    Measure(
        "execution", "mean_exec", "Execution time",
        "53.9 % less than Tiresias; less than DRL and Optimus (no number in the text).",
        claims.EXECUTION_REDUCTION,
    ),
    Measure(
        "queueing", "mean_queue", "Queueing time",
        "31.3 % less than DRL, 19.1 % than Tiresias, 56.6 % than Optimus.",
        claims.QUEUEING_REDUCTION,
    ),
)  # fmt: skip


def performance(runs: Runs, standing: Mapping[str, str], home: Path) -> list[Panel]:
    """Mean, box and cumulative curve of each time, with the reductions that the paper gives."""
    return [_times(measure, runs, standing, home) for measure in MEASURES]


def _times(measure: Measure, runs: Runs, standing: Mapping[str, str], home: Path) -> Panel:
    means = {label: [r.row[measure.key] for r in found] for label, found in runs.items()}
    middle = {label: fmean(values) for label, values in means.items()}
    spread = {label: mean_interval(values) for label, values in means.items()}
    marks = {standing.get(k, k): v for k, v in claims.IMPLIED_JCT.items()}
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
                    Bar(label, middle[label], spread[label].low, spread[label].high,
                        mark=marks.get(label) if show_marks else None)
                    for label in runs
                ],
                marks="paper",
            ),
            boxes(measure.time, Axis("seconds", log=log), values),
            shares(f"{measure.time}, cumulative", Axis("seconds", log=log), values),
        ],
        size=(4.6, 3.8),
    )  # fmt: skip
    table, verdicts = _reductions(measure, runs, standing)
    if measure.time == "completion":
        verdicts = [*_completion_verdicts(runs, middle, standing), *verdicts]
    if measure.time == "queueing" and "optimus" in standing:
        verdicts.append(_half_interval(middle.get(standing["optimus"])))
    return Panel(
        anchor=measure.time,
        title=f"{measure.title}: mean, distribution, cumulative frequency",
        paper=measure.paper,
        ours="; ".join(f"`{label}` {html.number(value)} s" for label, value in middle.items())
        + ".",
        n=_n(runs),
        spread="; ".join(
            f"`{label}` {html.number(i.low)} to {html.number(i.high)}"
            for label, i in spread.items()
        )
        + " s (95 % bootstrap interval of the mean over seeds).",
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


def _reductions(
    measure: Measure, runs: Runs, standing: Mapping[str, str]
) -> tuple[str, list[Verdict]]:
    """Of `ones` and of `ones-paper`, against everybody else."""
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
        if standing.get(policy) == label and policy in claims.RIVALS and "ones" in found:
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
        return [Verdict(False, f"{name} cannot be told: its {time} time is 0 here; the paper has"
                        f" {paper:.1f} %.")]  # fmt: skip
    return [points(name, percent, paper, 10.0)]


def _completion_verdicts(
    runs: Runs, middle: Mapping[str, float], standing: Mapping[str, str]
) -> list[Verdict]:
    verdicts = []
    for label in ("ones", "ones-paper"):
        if label in middle:
            verdicts.append(near(f"The mean of `{label}`", middle[label], claims.MEAN_JCT, 0.10))
    for rival, implied in claims.IMPLIED_JCT.items():
        label = standing.get(rival, rival)
        if label in middle:
            verdicts.append(near(f"The mean of `{label}`", middle[label], implied, 0.15))
    ours = {name: middle[standing.get(name, name)] for name in claims.SCHEDULERS.values()
            if standing.get(name, name) in middle}  # fmt: skip
    verdicts.append(same_order(ours, {"ones": claims.MEAN_JCT, **claims.IMPLIED_JCT}))
    if "ones" in runs:
        within = 100 * fmean(r.row["within_200s"] for r in runs["ones"])
        verdicts.append(
            points("The share of jobs within 200 s under `ones`", within,
                   100 * claims.WITHIN_200S, 5.0)
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


def headline(runs: Runs, variants: Runs, missing: Sequence[str], standing: Mapping[str, str]
             ) -> Panel:  # fmt: skip
    """The main table, the order, and the share under 200 s."""
    rows = summary_of([record for found in runs.values() for record in found])
    parts = [summary_table(rows, "The stronger variant of each rival, by mean completion time.")]
    others = [record for found in variants.values() for record in found]
    if others:
        parts.append(summary_table(summary_of(others), "Other variants, and oracles that are told"
                                   " the true length of every job."))  # fmt: skip
    chosen = [label for label in standing.values() if ":" in label]
    if missing:
        parts.append(html.paragraph(f"Not here: {', '.join(missing)}.", kind="no"))
    means = {row["label"]: row["mean_jct"] for row in rows}
    order = sorted(means, key=lambda label: float(means[label]))
    best = order[0]
    ones = means.get("ones")
    return Panel(
        anchor="headline",
        title="All schedulers, 64 GPUs, each re-scaling its own way",
        paper="Order by mean completion time: ONES 245 s, DRL 335 s, Optimus 420 s, Tiresias 450 s."
        " Pollux, Sia and the others are not in the paper.",
        ours="Order: " + " < ".join(f"`{label}` {html.number(means[label])}" for label in order)
        + " s.",
        n=_n(runs),
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


def longest(runs: Runs) -> Panel:
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
    return Panel(
        anchor="longest",
        title="The longest execution of each scheduler",
        paper="ONES: basically all jobs under 2,000 s. The others: up to 10,000 s.",
        ours="; ".join(f"`{label}` {html.number(value)} s" for label, value in most.items()) + ".",
        n=_n(runs),
        spread="in the table: over seeds",
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "Nothing to compare."),
        parts=[
            html.table(
                ["", "longest of all seeds s", "mean over seeds of the longest s", "least s"], rows
            )
        ],
    )


def significance(runs: Runs, standing: Mapping[str, str]) -> Panel:
    """Wilcoxon tests, pooled over seeds and, as the paper has one trace, seed by seed."""
    rows: list[list[html.Cell]] = []
    verdicts, told = [], []
    for ours in ("ones", "ones-paper"):
        for label, found in runs.items():
            if ours not in runs or label in ("ones", "ones-paper"):
                continue
            test = versus(runs[ours], found)
            if test is None:
                continue
            single = [_single(runs[ours], [record]) for record in found]
            each = [p for p in single if p is not None]
            policy = label.partition(":")[0]
            paper = claims.P_TWO_SIDED.get(policy)
            rows.append(
                [
                    ours, label, test["pairs"], p_value(test["p_two_sided"]),
                    p_value(test["p_less"]), p_value(test["p_greater"]),
                    test["effect"], test["effect_low"], test["effect_high"],
                    p_value(median(each)) if each else None,
                    "-" if paper is None else f"{paper:.2e}",
                    "-" if paper is None else f"{claims.P_NEGATIVE[policy]:.5f}",
                ]
            )  # fmt: skip
            if ours == "ones":
                told.append(f"`{label}` p = {p_value(test['p_less'])}, effect {test['effect']:.2f}")
                if paper is not None and standing.get(policy) == label:
                    less = test["p_less"] < 0.05
                    verdicts.append(
                        Verdict(
                            less,
                            f"That `ones` is faster than `{label}` is"
                            f" {'' if less else 'not '}significant here, as in the paper."
                            if less
                            else f"That `ones` is faster than `{label}` is not significant here"
                            f" (p = {p_value(test['p_less'])}); in the paper it is.",
                        )
                    )
    return Panel(
        anchor="wilcoxon",
        title="Significance: Wilcoxon tests of completion times",
        paper="ONES against DRL, Tiresias, Optimus: two-sided p 5.17e-4, 4.53e-8, 7.55e-10;"
        " one-sided 'negative' p 0.99974, 0.99999, 0.99999.",
        ours="One-sided, `ones` less than " + "; ".join(told) + "." if told else "-",
        n=_n(runs),
        spread="in the table: bootstrap intervals of the effect, and the median p of single seeds",
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "No rival of the paper is here."),
        parts=[
            html.table(
                ["", "against", "pairs", "p, two-sided", "p, less", "p, greater", "effect",
                 "95 % from", "to", "median two-sided p of one seed", "paper, two-sided",
                 "paper, negative"],
                rows, caption=TESTS_TOLD,
            ),
            html.paragraph(
                "The paper's 'negative' test prints p near 1 and reads it as support. With the"
                " usual meaning that is the test of `greater`, our last column of p; `less` is its"
                " complement. Pooled over seeds there are more pairs than the paper's 50, so p is"
                " smaller for the same effect: the median over single seeds is the one to compare.",
                quiet=True,
            ),
        ],
    )  # fmt: skip


def _single(ours: Sequence[Record], theirs: Sequence[Record]) -> float | None:
    pairs = pairs_of(ours, theirs, "completion")
    return signed_rank_test(*pairs).p_two_sided if pairs.first else None


def properties(runs: Runs) -> Panel:
    """What the schedulers may do, and what they were seen to do."""
    rows: list[list[html.Cell]] = []
    verdicts = []
    for label, found in runs.items():
        policy = label.partition(":")[0]
        jobs = sum(r.row["jobs"] for r in found)
        seen = {
            "preemption": sum(r.row["preemptions"] for r in found),
            "elastic size": sum(r.row["resized_jobs"] for r in found),
            "elastic batch": sum(r.row["rebatched_jobs"] for r in found),
        }
        paper = claims.PROPERTIES.get(policy)
        rows.append([label, *(paper or ("-",) * 4), *seen.values(), jobs])
        if paper:
            for (what, count), allowed in zip(seen.items(), paper[1:], strict=True):
                if allowed == "no" and count:
                    verdicts.append(
                        Verdict(False, f"`{label}` was seen with {what} ({count}), which the"
                                " table denies it.")
                    )  # fmt: skip
    if not verdicts:
        verdicts = [Verdict(True, "Nobody was seen to do what the paper's table denies it.")]
    return Panel(
        anchor="schedulers",
        title="Comparison of the schedulers (the paper's table)",
        paper="ONES: dynamic, preemption, elastic size and batch. DRL: dynamic, elastic size only."
        " Tiresias: greedy, preemption only. Optimus: greedy, preemption and elastic size.",
        ours="Counted in the runs: preemptions, jobs whose number of GPUs changed, jobs whose"
        " global batch changed.",
        n=_n(runs),
        spread="sums over all seeds",
        verdict=all_of(*verdicts),
        parts=[
            html.table(
                ["", "strategy", "preemption", "elastic size", "elastic batch",
                 "preemptions seen", "jobs resized", "jobs re-batched", "jobs"],
                rows, caption="Left: the paper. Right: what happened here.",
            )
        ],
    )  # fmt: skip


def mechanisms(records: Sequence[Record]) -> Panel:
    """The gain of the policy, and the gain of cheap re-scaling."""
    summary = summary_of(records)
    labels = list(dict.fromkeys(row["label"] for row in summary))
    by: dict[tuple[str, str], dict[str, Any]] = {
        (row["label"], row["mechanism"]): row for row in summary
    }
    rows: list[list[html.Cell]] = []
    for label in labels:
        cells: list[html.Cell] = [label]
        for mechanism in ("native", "elastic", "checkpoint"):
            row = by.get((label, mechanism))
            cells += [None, None] if row is None else [row["mean_jct"], row["p99_jct"]]
        rows.append(cells)
    orders = []
    for mechanism in ("elastic", "checkpoint"):
        known = {label: by[label, mechanism]["mean_jct"] for label in labels
                 if (label, mechanism) in by}  # fmt: skip
        if known:
            first = sorted(known, key=lambda label: float(known[label]))
            orders.append(f"{mechanism}: " + " < ".join(f"`{label}`" for label in first))
    cheap = by.get(("ones", "elastic")), by.get(("ones", "checkpoint"))
    gain = (
        f" Under `ones`, re-scaling between two steps instead of through a checkpoint takes"
        f" {100 * (1 - cheap[0]['mean_jct'] / cheap[1]['mean_jct']):.0f} % off the mean."
        if cheap[0] and cheap[1]
        else ""
    )
    return Panel(
        anchor="mechanisms",
        title="Policy and mechanism told apart",
        ours="; ".join(orders) + "." + gain,
        n=count(summary[0]["n"], "seed") + " each",
        spread="means over seeds",
        verdict=Verdict(
            None,
            "The paper compares ONES with its own cheap re-scaling to rivals that pay for"
            " checkpoints; here everybody is also run with the other's costs.",
        ),
        parts=[
            html.table(
                ["", "native: mean s", "99 % within s", "elastic: mean s", "99 % within s",
                 "checkpoint: mean s", "99 % within s"],
                rows,
                caption="Completion time when each pays for changes its own way, everybody a pause"
                " between two steps, everybody a checkpoint.",
            )
        ],
    )  # fmt: skip


def _n(runs: Runs) -> str:
    seeds = sorted({record.cell.spec.seed for found in runs.values() for record in found})
    jobs = next(iter(runs.values()))[0].row["jobs"] if runs else 0
    each = {label: len(found) for label, found in runs.items()}
    short = [f"`{label}` {n}" for label, n in each.items() if n < len(seeds)]
    less = f" (only {', '.join(short)})" if short else ""
    return f"{count(len(seeds), 'seed')} ({seeds[0]} to {seeds[-1]}) of {jobs} jobs{less}"
