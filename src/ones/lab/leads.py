"""How far ahead one scheduler is of its rivals: a row for each setting, paired by seed and job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from ones.lab.tables import Record, Setting, by_setting, percentile, reduction, times_of
from ones.report.page import number
from ones.report.statistics import mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    rival: str
    mean_jct: float
    less_percent: float  # by how much the mean is below the rival's; negative: above
    less_low: float
    less_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """One of ours, in one setting, against every rival there."""

    world: str  # what is not as usual; "": everything is
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
    against: Sequence[Against]

    @property
    def where(self) -> str:
        """In words, for a sentence."""
        load = "" if self.load is None else f"load {self.load:g}"
        return ", ".join(
            part for part in (self.world, f"{self.gpus} GPUs", self.mechanism, load) if part
        )

    @property
    def p99_more_percent(self) -> float | None:
        if self.least_p99_jct is None:
            return None
        return 100.0 * (self.pooled_p99_jct / self.least_p99_jct - 1.0)

    def told(self) -> dict[str, Any]:
        return {**asdict(self), "p99_more_percent": self.p99_more_percent}


def leads_of(records: Sequence[Record], ours: str, world: str = "") -> list[Lead]:
    """Of every label of the policy `ours`. Only seeds that all labels of a setting have count:
    a comparison that is not finished would else set easy seeds against hard ones."""
    return [
        lead
        for setting, labels in by_setting(paired(records)).items()
        for lead in _leads(setting, list(labels.values()), ours, world)
    ]


def paired(records: Sequence[Record]) -> list[Record]:
    """Those of seeds that every label of their setting has."""
    found: list[Record] = []
    for labels in by_setting(records).values():
        common = set.intersection(*({r.cell.spec.seed for r in runs} for runs in labels.values()))
        found += [r for runs in labels.values() for r in runs if r.cell.spec.seed in common]
    return found


def _leads(
    setting: Setting, runs: Sequence[Sequence[Record]], ours: str, world: str
) -> Iterable[Lead]:
    known = [found for found in runs if found and times_of(found, "completion")]
    rivals = [found for found in known if found[0].cell.spec.policy != ours]
    slowest = [percentile(times_of(found, "completion"), 99.0) for found in rivals]
    for found in known:
        first = found[0].cell
        if first.spec.policy != ours:
            continue
        means = [run.row["mean_jct"] for run in found]
        interval = mean_interval(means) if len(means) > 1 else None
        p99 = percentile(times_of(found, "completion"), 99.0)
        assert p99 is not None
        yield Lead(
            world=world,
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
            least_p99_jct=min((s for s in slowest if s is not None), default=None),
            policy_cpu_seconds=fmean(run.row["policy_cpu_seconds"] for run in found),
            against=[_against(found, rival) for rival in rivals],
        )


def _against(ours: Sequence[Record], rival: Sequence[Record]) -> Against:
    less, low, high = reduction(ours, rival, "completion")
    assert less is not None
    assert low is not None
    assert high is not None
    return Against(
        rival=rival[0].cell.label,
        mean_jct=fmean(run.row["mean_jct"] for run in rival),
        less_percent=less,
        less_low=low,
        less_high=high,
    )


@dataclass(frozen=True, slots=True)
class Table:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def table_of(leads: Sequence[Lead]) -> Table:
    """What is the same in all of them has no column."""
    varied = {
        "": [lead.world or "as usual" for lead in leads],
        "GPUs": [f"{lead.gpus:,}" for lead in leads],
        "re-scaling": [lead.mechanism for lead in leads],
        "load": ["-" if lead.load is None else f"{lead.load:g}" for lead in leads],
        "scheduler": [f"`{lead.label}`" for lead in leads],
    }
    columns = {head: cells for head, cells in varied.items() if len(set(cells)) > 1}
    columns |= {
        "seeds": [str(lead.seeds) for lead in leads],
        "mean s (95 %)": [_mean(lead) for lead in leads],
    }
    for rival in dict.fromkeys(a.rival for lead in leads for a in lead.against):
        found = [next((a for a in lead.against if a.rival == rival), None) for lead in leads]
        columns[f"`{rival}` s"] = ["" if a is None else number(a.mean_jct) for a in found]
        columns[f"less than `{rival}` by % (95 %)"] = ["" if a is None else _less(a) for a in found]
    columns |= {
        "99 % within s": [number(lead.pooled_p99_jct) for lead in leads],
        "best rival's s": [number(lead.least_p99_jct) for lead in leads],
        "more by %": [_signed(lead.p99_more_percent) for lead in leads],
    }
    if "GPUs" in columns:  # what it costs to decide grows with them
        columns["policy CPU s a run"] = [number(lead.policy_cpu_seconds) for lead in leads]
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


def sentence_of(leads: Sequence[Lead]) -> str:
    """What the table comes to."""
    pairs = [(a.less_percent, a.rival, lead) for lead in leads for a in lead.against]
    if not pairs:
        return "Nothing to compare with yet."
    compared = [lead for lead in leads if lead.against]
    ahead = sum(all(a.less_percent > 0 for a in lead.against) for lead in compared)
    less, rival, lead = min(pairs, key=lambda pair: pair[0])
    found = (
        f"Ahead of every rival in {ahead} of {len(compared)} rows. The least lead is {less:+.1f} %:"
        f" `{lead.label}` over `{rival}`, {lead.where}."
    )
    tails = [(lead.p99_more_percent, lead) for lead in leads if lead.p99_more_percent is not None]
    more, worst = max(tails, key=lambda pair: pair[0])
    return (
        f"{found} The time within which 99 % of the jobs are done is {more:+.0f} % against the best"
        f" rival's at worst: `{worst.label}`, {worst.where}."
    )


def _mean(lead: Lead) -> str:
    if lead.mean_jct_low is None or lead.mean_jct_high is None:
        return number(lead.mean_jct)
    return f"{number(lead.mean_jct)} ({number(lead.mean_jct_low)} to {number(lead.mean_jct_high)})"


def _less(against: Against) -> str:
    low, high = against.less_low, against.less_high
    return f"{against.less_percent:.1f} ({low:.1f} to {high:.1f})"


def _signed(percent: float | None) -> str:
    return "" if percent is None else f"{percent:+.1f}"
