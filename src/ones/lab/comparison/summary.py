"""Statistics of finished runs: a row for each, a summary for each setting, paired tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from statistics import fmean, stdev
from typing import Any, NamedTuple

import numpy as np

from ones.lab.comparison.grid import Cell
from ones.report.statistics import (
    mean_interval,
    reduction_interval,
    reduction_percent,
    signed_rank_test,
)

#: "completed within 200 s" is a figure of the paper's text
WITHIN_SECONDS = 200.0
TIMES = ("completion", "execution", "queueing")
#: of a row, averaged over seeds in the summary
AVERAGED = (
    "mean_jct", "median_jct", "p95_jct", "p99_jct", "mean_exec", "mean_queue", "makespan",
    "utilization", "gpu_hours", "mean_rho", "worst_rho", "unfair_share", "rescales", "rescale_rate",
    "preemptions", "finished", "within_200s", "max_exec", "wall_seconds",
    "policy_cpu_seconds", "events",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """A finished run with its request."""

    cell: Cell
    result: dict[str, Any]

    @property
    def row(self) -> dict[str, Any]:
        cell, jobs = self.cell, self.result["jobs"]
        done = jobs["completion"]
        return {
            "label": cell.label,
            **self.result["row"],
            "asked_mechanism": cell.asked,
            "load": cell.spec.load,
            "physics": dict(cell.spec.physics),
            "kinds": cell.spec.kinds,
            "left_out": cell.spec.left_out,
            "shares": asdict(cell.spec.shares),
            "within_200s": _share(done),
            "max_exec": max(jobs["execution"], default=None),
            "resized_jobs": self.result["changes"]["size"],
            "rebatched_jobs": self.result["changes"]["batch"],
        }


class ComparisonSetting(NamedTuple):
    """Cluster, mechanism, load and workload: policies are compared within one setting."""

    gpus: int
    mechanism: str  # as requested
    load: float | None
    workload: str

    @classmethod
    def of(cls, cell: Cell) -> ComparisonSetting:
        return cls(cell.spec.gpus, cell.asked, cell.spec.load, cell.spec.workload)


def by_setting(records: Iterable[Record]) -> dict[ComparisonSetting, dict[str, list[Record]]]:
    """Setting -> label -> runs, in the order of the requests."""
    found: dict[ComparisonSetting, dict[str, list[Record]]] = {}
    for record in records:
        runs = found.setdefault(ComparisonSetting.of(record.cell), {})
        runs.setdefault(record.cell.label, []).append(record)
    return found


def summary_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Means over seeds for each setting and label, and the interval of the mean JCT."""
    summary = []
    for setting, labels in by_setting(records).items():
        for label, runs in labels.items():
            rows = [run.row for run in runs]
            means = [row["mean_jct"] for row in rows if row["mean_jct"] is not None]
            interval = mean_interval(means) if len(means) > 1 else None
            summary.append(
                {
                    "label": label,
                    "policy": runs[0].cell.spec.policy,
                    "settings": dict(runs[0].cell.spec.settings),
                    "workload": runs[0].cell.spec.workload,
                    "gpus": setting.gpus,
                    "mechanism": setting.mechanism,
                    "rescaling": rows[0]["mechanism"],
                    "load": setting.load,
                    "physics": dict(runs[0].cell.spec.physics),
                    "kinds": runs[0].cell.spec.kinds,
                    "left_out": runs[0].cell.spec.left_out,
                    "shares": asdict(runs[0].cell.spec.shares),
                    "jobs": rows[0]["jobs"],
                    "n": len(rows),
                    "first_seed": min(row["seed"] for row in rows),
                    **{name: _mean(row[name] for row in rows) for name in AVERAGED},
                    "pooled_p99_jct": percentile(times_of(runs, "completion"), 99.0),
                    "longest_exec": max((row["max_exec"] or 0.0 for row in rows), default=None),
                    "mean_jct_low": interval and interval.low,
                    "mean_jct_high": interval and interval.high,
                    "mean_jct_sd": stdev(means) if len(means) > 1 else None,
                }
            )
    return summary


class PairedTimes(NamedTuple):
    """The same jobs of the same seeds under two schedulers."""

    first: list[float]
    second: list[float]
    seeds: list[int]


def pairs_of(first: Sequence[Record], second: Sequence[Record], time: str) -> PairedTimes:
    """Times of the jobs that completed under both schedulers."""
    other = {run.cell.spec.seed: _by_job(run, time) for run in second}
    pairs = PairedTimes([], [], [])
    for run in first:
        seed = run.cell.spec.seed
        theirs = other.get(seed, {})
        for job, seconds in _by_job(run, time).items():
            if job in theirs:
                pairs.first.append(seconds)
                pairs.second.append(theirs[job])
                pairs.seeds.append(seed)
    return pairs


def significance_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Tests of the first label against each other one, in each setting."""
    return list(_tests(records))


def _tests(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    for setting, labels in by_setting(records).items():
        ours = next(iter(labels))
        for theirs in labels:
            if theirs == ours:
                continue
            found = paired_test(labels[ours], labels[theirs])
            if found is not None:
                yield {
                    "label": ours,
                    "against": theirs,
                    "gpus": setting.gpus,
                    "mechanism": setting.mechanism,
                    "load": setting.load,
                    "workload": setting.workload,
                    **found,
                }


def paired_test(first: Sequence[Record], second: Sequence[Record]) -> dict[str, Any] | None:
    """Reductions of all three times and the test of completion times; None without pairs."""
    pairs = pairs_of(first, second, "completion")
    if not pairs.first:
        return None
    test = signed_rank_test(*pairs)
    found: dict[str, Any] = {
        "pairs": test.n,
        "seeds": len(set(pairs.seeds)),
        "p_two_sided": test.p_two_sided,
        "p_less": test.p_less,
        "p_greater": test.p_greater,
        "effect": test.effect,
        "effect_low": test.effect_interval.low,
        "effect_high": test.effect_interval.high,
    }
    for time in TIMES:
        for end, value in zip(("percent", "low", "high"), reduction(first, second, time),
                              strict=True):  # fmt: skip
            found[f"{time}_reduction_{end}"] = value
    return found


def reduction(
    first: Sequence[Record], second: Sequence[Record], time: str
) -> tuple[float | None, float | None, float | None]:
    """Reduction in percent with its interval; None if the second has none of that time."""
    pairs = pairs_of(first, second, time)
    percent = reduction_percent(pairs.first, pairs.second)
    if isnan(percent):
        return None, None, None
    interval = reduction_interval(*pairs)
    return percent, interval.low, interval.high


def times_of(records: Iterable[Record], time: str) -> list[float]:
    """Times of all jobs of all seeds."""
    return [seconds for record in records for seconds in record.result["jobs"][time]]


def percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def _by_job(record: Record, time: str) -> dict[str, float]:
    jobs = record.result["jobs"]
    return dict(zip(jobs["id"], jobs[time], strict=True))


def _share(seconds: Sequence[float]) -> float | None:
    if not seconds:
        return None
    return sum(value < WITHIN_SECONDS for value in seconds) / len(seconds)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
