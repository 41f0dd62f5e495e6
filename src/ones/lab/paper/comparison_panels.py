"""Panels on significance, properties of the schedulers, and the cost of rescaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ones.lab.comparison.page import TESTS_CAPTION, format_p
from ones.lab.comparison.summary import Record, paired_test, pairs_of, summary_of
from ones.lab.paper import claims
from ones.lab.paper.panel import PaperPanel, Verdict, all_of, count
from ones.lab.paper.performance import OURS, Runs, seeds_of
from ones.report import page as html
from ones.report.statistics import signed_rank_test


def significance(runs: Runs, strongest: Mapping[str, str]) -> PaperPanel:
    """Wilcoxon tests, pooled over seeds and for single seeds, because the paper has one trace."""
    rows: list[list[html.Cell]] = []
    verdicts, results = [], []
    for ours in OURS:
        for label, found in runs.items():
            if ours not in runs or label in OURS:
                continue
            test = paired_test(runs[ours], found)
            if test is None:
                continue
            single = [_single(runs[ours], [record]) for record in found]
            each = [p for p in single if p is not None]
            policy = label.partition(":")[0]
            paper = claims.P_TWO_SIDED.get(policy)
            rows.append(
                [
                    ours, label, test["pairs"], format_p(test["p_two_sided"]),
                    format_p(test["p_less"]), format_p(test["p_greater"]),
                    test["effect"], test["effect_low"], test["effect_high"],
                    format_p(median(each)) if each else None,
                    "-" if paper is None else f"{paper:.2e}",
                    "-" if paper is None else f"{claims.P_NEGATIVE[policy]:.5f}",
                ]
            )  # fmt: skip
            if ours == "ones":
                results.append(
                    f"`{label}` p = {format_p(test['p_less'])}, effect {test['effect']:.2f}"
                )
                if paper is not None and strongest.get(policy) == label:
                    less = test["p_less"] < 0.05
                    verdicts.append(
                        Verdict(
                            less,
                            f"That `ones` is faster than `{label}` is significant here, as in the"
                            " paper."
                            if less
                            else f"That `ones` is faster than `{label}` is not significant here"
                            f" (p = {format_p(test['p_less'])}); in the paper it is.",
                        )
                    )
    return PaperPanel(
        anchor="wilcoxon",
        title="Significance: Wilcoxon tests of completion times",
        paper="ONES against DRL, Tiresias, Optimus: two-sided p 5.17e-4, 4.53e-8, 7.55e-10;"
        " one-sided 'negative' p 0.99974, 0.99999, 0.99999.",
        ours="One-sided, `ones` less than " + "; ".join(results) + "." if results else "-",
        n=seeds_of(runs),
        spread="in the table: bootstrap intervals of the effect, and the median p of single seeds",
        verdict=all_of(*verdicts) if verdicts else Verdict(None, "No rival of the paper is here."),
        parts=[
            html.table(
                ["", "against", "pairs", "p, two-sided", "p, less", "p, greater", "effect",
                 "95 % from", "to", "median two-sided p of one seed", "paper, two-sided",
                 "paper, negative"],
                rows, caption=TESTS_CAPTION,
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


def properties(runs: Runs) -> PaperPanel:
    """Panel of abilities: of the schedulers in the paper's table, and those seen in the runs."""
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
                        Verdict(False, f"`{label}` shows {what} ({count}), which the"
                                " paper's table excludes.")
                    )  # fmt: skip
    if not verdicts:
        verdicts = [Verdict(True, "No scheduler did what the paper's table excludes for it.")]
    return PaperPanel(
        anchor="schedulers",
        title="Comparison of the schedulers (the paper's table)",
        paper="ONES: dynamic, preemption, elastic size and batch. DRL: dynamic, elastic size only."
        " Tiresias: greedy, preemption only. Optimus: greedy, preemption and elastic size.",
        ours="Counted in the runs: preemptions, jobs with a change of their number of GPUs, and"
        " jobs with a change of their global batch.",
        n=seeds_of(runs),
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


def mechanisms(records: Sequence[Record]) -> PaperPanel:
    """The gain of the policy and the gain of cheap rescaling, separately."""
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
        f" Under `ones`, rescaling between two steps instead of through a checkpoint takes"
        f" {100 * (1 - cheap[0]['mean_jct'] / cheap[1]['mean_jct']):.0f} % off the mean."
        if cheap[0] and cheap[1]
        else ""
    )
    return PaperPanel(
        anchor="mechanisms",
        title="Policy and mechanism, separately",
        ours="; ".join(orders) + "." + gain,
        n=count(summary[0]["n"], "seed") + " each",
        spread="means over seeds",
        verdict=Verdict(
            None,
            "The paper compares ONES with its own cheap rescaling to rivals that pay for"
            " checkpoints; here every scheduler also runs with the mechanism of the other.",
        ),
        parts=[
            html.table(
                ["", "native: mean s", "99 % within s", "elastic: mean s", "99 % within s",
                 "checkpoint: mean s", "99 % within s"],
                rows,
                caption="Completion time with the native mechanism of each scheduler, with a pause"
                " between two steps for all, and with a checkpoint for all.",
            )
        ],
    )  # fmt: skip
