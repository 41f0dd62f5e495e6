"""A band of readings of the paper: `ones-paper` with other defensible choices, beside the margins
that the paper reports.

Each reading changes one choice alone, or several that belong together. Under "linear goodput" a
sample of a large batch is worth as much as any, which the paper assumes: the rivals have other runs
there too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.summary import Record, reduction
from ones.lab.comparison.variants import Variant
from ones.lab.paper import claims
from ones.lab.paper.panel import PaperPanel, Verdict, count
from ones.lab.runs import RunSpec
from ones.report import page as html
from ones.report.charts import Bar, bars, draw

POLICY = "ones-paper"
#: factor on gradient noise scales from which on a batch of any size is as good as a small one
LINEAR_GOODPUT: Mapping[str, float] = {"noise": 1e6}

#: name -> settings that differ from the default reading
READINGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "sigma = arrivals": {"sigma": "arrivals"},
    "scale-down printed": {"scale_down": "printed"},
    "scale-down never": {"scale_down": "never"},
    "settled jobs block": {"update": "settled"},
    "affected jobs block": {"update": "affected"},
    "jobs stay": {"placement": "stay"},
    "fitted throughput": {"throughput": "fitted"},
    "GPR": {"predictor": "gaussian-process"},
    "fill as printed": {"fill": "gain"},
    "limit held": {"limits": "held"},
    "largest batch": {"batch": "largest"},
    "all as printed": {"sigma": "arrivals", "scale_down": "printed", "fill": "gain"},
    "jobs stay, affected block": {"placement": "stay", "update": "affected"},
    "jobs stay, affected block, fitted": {
        "placement": "stay", "update": "affected", "throughput": "fitted",
    },
}  # fmt: skip


def variants() -> list[Variant]:
    return [
        Variant(label=f"{POLICY}: {name}", policy=POLICY, settings=dict(settings))
        for name, settings in READINGS.items()
    ]


def cells(seeds: Sequence[int], *, jobs: int, linear: bool) -> list[Cell]:
    """All readings and the paper's rivals, on 64 GPUs, each with its native mechanism."""
    rivals = [Variant(label=name, policy=name) for name in claims.RIVALS]
    physics = LINEAR_GOODPUT if linear else {}
    base = RunSpec(policy="", jobs=jobs, physics=physics)
    return Grid(variants=[*variants(), *rivals], seeds=seeds, base=base).cells()


def band(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One row for each reading: mean completion, and reductions against the rivals in percent."""
    by_label: dict[str, list[Record]] = {}
    for record in records:
        by_label.setdefault(record.cell.label, []).append(record)
    rows = []
    for name in READINGS:
        runs = by_label.get(f"{POLICY}: {name}", [])
        if not runs:
            continue
        means = [record.row["mean_jct"] for record in runs]
        row: dict[str, Any] = {"reading": name, "mean_jct": sum(means) / len(means), "n": len(runs)}
        for rival in claims.RIVALS:
            row[rival], row[f"{rival}_low"], row[f"{rival}_high"] = reduction(
                runs, by_label.get(rival, []), "completion"
            )
        rows.append(row)
    return rows


def distance(row: Mapping[str, Any]) -> float:
    """Mean absolute difference of a reading's reductions from the paper's, in points."""
    found = [abs(row[r] - claims.JCT_REDUCTION[r]) for r in claims.RIVALS if row[r] is not None]
    return sum(found) / len(found) if found else float("inf")


def draw_band(rows: Sequence[Mapping[str, Any]], home: Path, *, linear: bool) -> Path:
    """Draws the reductions of each reading beside the paper's; returns the path of the .svg."""
    return draw(
        home,
        _anchor(linear=linear),
        [
            bars(
                f"reduction against {rival}",
                "percent",
                [Bar(row["reading"], row[rival] or 0.0, row[f"{rival}_low"], row[f"{rival}_high"],
                     claims.JCT_REDUCTION[rival]) for row in rows],
                marks="the paper",
            )
            for rival in claims.RIVALS
        ],
        size=(5.2, 0.32 * len(rows) + 1.2),
    )  # fmt: skip


def _anchor(*, linear: bool) -> str:
    return "readings-linear" if linear else "readings"


def panel(records: Sequence[Record], home: Path, *, linear: bool) -> PaperPanel | None:
    """The band as a figure and a table; None without runs."""
    rows = band(records)
    if not rows:
        return None
    figure = draw_band(rows, home, linear=linear)
    nearest = min(rows, key=distance)
    table = html.table(
        ["reading", "mean completion s", *(f"less than {r} by %" for r in claims.RIVALS), "seeds"],
        [[row["reading"], row["mean_jct"], *(row[r] for r in claims.RIVALS), row["n"]]
         for row in rows],
    )  # fmt: skip
    paper = ", ".join(f"{claims.JCT_REDUCTION[r]} % ({r})" for r in claims.RIVALS)
    return PaperPanel(
        anchor=_anchor(linear=linear),
        title="Readings of the paper" + (", with linear goodput" if linear else ""),
        paper=f"Mean completion time less by {paper}.",
        ours=f"{html.number(min(row['mean_jct'] for row in rows))} to"
        f" {html.number(max(row['mean_jct'] for row in rows))} s. Nearest to the paper's margins:"
        f" {nearest['reading']} ({distance(nearest):.0f} points off on average).",
        n=f"{count(rows[0]['n'], 'seed')}, 64 GPUs, each with its native mechanism",
        spread="95 % bootstrap intervals",
        verdict=Verdict(None, "A band, not a claim."),
        parts=[html.picture(figure, "Reductions of each reading; diamonds: the paper."), table],
    )
