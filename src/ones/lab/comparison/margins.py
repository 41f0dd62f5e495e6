"""Margins of one policy over its rivals in each setting, paired by seed and job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ones.lab.comparison.summary import (
    ComparisonSetting,
    Record,
    by_setting,
    percentile,
    reduction,
    times_of,
)
from ones.report.page import number
from ones.report.statistics import mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalMargin:
    """Reduction of the mean completion time against one rival."""

    rival: str
    mean_jct: float
    less_percent: float  # negative: the mean is above the rival's
    less_low: float
    less_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMargin:
    """One variant of our policy in one setting, against every rival."""

    scenario: str  # what differs from the usual; "": nothing
    gpus: int
    mechanism: str
    load: float | None
    label: str
    jobs: int  # of a run
    seeds: int
    mean_jct: float
    mean_jct_low: float | None
    mean_jct_high: float | None
    pooled_p99_jct: float
    least_p99_jct: float | None  # of the rivals
    policy_cpu_seconds: float  # of a run
    against: Sequence[RivalMargin]

    @property
    def where(self) -> str:
        """The setting in words."""
        load = "" if self.load is None else f"load {self.load:g}"
        return ", ".join(
            part for part in (self.scenario, f"{self.gpus} GPUs", self.mechanism, load) if part
        )

    @property
    def p99_more_percent(self) -> float | None:
        if self.least_p99_jct is None:
            return None
        return 100.0 * (self.pooled_p99_jct / self.least_p99_jct - 1.0)

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        world = {"world": fields.pop("scenario")}  # its key in sweeps.json
        return {**world, **fields, "p99_more_percent": self.p99_more_percent}


def margins_of(records: Sequence[Record], ours: str, scenario: str = "") -> list[PolicyMargin]:
    """Margins of every label of the policy `ours`, over the seeds that all labels of a setting
    have: an unfinished comparison would otherwise set easy seeds against hard ones."""
    return [
        margin
        for setting, labels in by_setting(paired_records(records)).items()
        for margin in _margins(setting, list(labels.values()), ours, scenario)
    ]


def paired_records(records: Sequence[Record]) -> list[Record]:
    """Records of the seeds that every label of their setting has."""
    found: list[Record] = []
    for labels in by_setting(records).values():
        common = set.intersection(*({r.cell.spec.seed for r in runs} for runs in labels.values()))
        found += [r for runs in labels.values() for r in runs if r.cell.spec.seed in common]
    return found


def _margins(
    setting: ComparisonSetting, runs: Sequence[Sequence[Record]], ours: str, scenario: str
) -> Iterable[PolicyMargin]:
    known = [found for found in runs if found and times_of(found, "completion")]
    rivals = [found for found in known if found[0].cell.spec.policy != ours]
    rival_p99s = [percentile(times_of(found, "completion"), 99.0) for found in rivals]
    for found in known:
        first = found[0].cell
        if first.spec.policy != ours:
            continue
        means = [run.row["mean_jct"] for run in found]
        interval = mean_interval(means) if len(means) > 1 else None
        p99 = percentile(times_of(found, "completion"), 99.0)
        assert p99 is not None
        yield PolicyMargin(
            scenario=scenario,
            gpus=setting.gpus,
            mechanism=setting.mechanism,
            load=setting.load,
            label=first.label,
            jobs=found[0].row["jobs"],
            seeds=len(found),
            mean_jct=fmean(means),
            mean_jct_low=None if interval is None else interval.low,
            mean_jct_high=None if interval is None else interval.high,
            pooled_p99_jct=p99,
            least_p99_jct=min((s for s in rival_p99s if s is not None), default=None),
            policy_cpu_seconds=fmean(run.row["policy_cpu_seconds"] for run in found),
            against=[_against(found, rival) for rival in rivals],
        )


def _against(ours: Sequence[Record], rival: Sequence[Record]) -> RivalMargin:
    less, low, high = reduction(ours, rival, "completion")
    assert less is not None
    assert low is not None
    assert high is not None
    return RivalMargin(
        rival=rival[0].cell.label,
        mean_jct=fmean(run.row["mean_jct"] for run in rival),
        less_percent=less,
        less_low=low,
        less_high=high,
    )


@dataclass(frozen=True, slots=True)
class MarginTable:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def table_of(margins: Sequence[PolicyMargin]) -> MarginTable:
    """A column for each field that varies, and for each rival."""
    varied = {
        "": [margin.scenario or "as usual" for margin in margins],
        "GPUs": [f"{margin.gpus:,}" for margin in margins],
        "rescaling": [margin.mechanism for margin in margins],
        "load": ["-" if margin.load is None else f"{margin.load:g}" for margin in margins],
        "scheduler": [f"`{margin.label}`" for margin in margins],
    }
    columns = {head: cells for head, cells in varied.items() if len(set(cells)) > 1}
    columns |= {
        "seeds": [str(margin.seeds) for margin in margins],
        "mean s (95 %)": [_mean(margin) for margin in margins],
    }
    for rival in dict.fromkeys(a.rival for margin in margins for a in margin.against):
        found = [next((a for a in margin.against if a.rival == rival), None) for margin in margins]
        columns[f"`{rival}` s"] = ["" if a is None else number(a.mean_jct) for a in found]
        columns[f"less than `{rival}` by % (95 %)"] = ["" if a is None else _less(a) for a in found]
    columns |= {
        "99 % within s": [number(margin.pooled_p99_jct) for margin in margins],
        "best rival's s": [number(margin.least_p99_jct) for margin in margins],
        "more by %": [_signed(margin.p99_more_percent) for margin in margins],
    }
    if "GPUs" in columns:  # the cost of decisions grows with them
        columns["policy CPU s a run"] = [number(margin.policy_cpu_seconds) for margin in margins]
    return MarginTable(list(columns), list(zip(*columns.values(), strict=True)))


def sentence_of(margins: Sequence[PolicyMargin]) -> str:
    """The table in a sentence."""
    pairs = [(a.less_percent, a.rival, margin) for margin in margins for a in margin.against]
    if not pairs:
        return "Nothing to compare with yet."
    compared = [margin for margin in margins if margin.against]
    ahead = sum(all(a.less_percent > 0 for a in margin.against) for margin in compared)
    less, rival, margin = min(pairs, key=lambda pair: pair[0])
    found = (
        f"Ahead of every rival in {ahead} of {len(compared)} rows. The least lead is {less:+.1f} %:"
        f" `{margin.label}` over `{rival}`, {margin.where}."
    )
    tails = [
        (margin.p99_more_percent, margin)
        for margin in margins
        if margin.p99_more_percent is not None
    ]
    more, worst = max(tails, key=lambda pair: pair[0])
    return (
        f"{found} The time within which 99 % of the jobs are done is {more:+.0f} % against the best"
        f" rival's at worst: `{worst.label}`, {worst.where}."
    )


def _mean(margin: PolicyMargin) -> str:
    if margin.mean_jct_low is None or margin.mean_jct_high is None:
        return number(margin.mean_jct)
    low, high = number(margin.mean_jct_low), number(margin.mean_jct_high)
    return f"{number(margin.mean_jct)} ({low} to {high})"


def _less(against: RivalMargin) -> str:
    low, high = against.less_low, against.less_high
    return f"{against.less_percent:.1f} ({low:.1f} to {high:.1f})"


def _signed(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+.1f}"
