"""The whole evaluation: carry out what is missing, choose who stands for whom, make the panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ones.lab.compare import Comparison, Failure, Plan, carry_out, records_of
from ones.lab.grid import Cell
from ones.lab.kept import Kept
from ones.lab.paper import performance, predicted, scaling, trained, training, traits
from ones.lab.paper.design import SCHEDULERS, Depth, Design, is_oracle, missing, present, stronger
from ones.lab.paper.measured import Measurement, measurements
from ones.lab.paper.panel import Panel
from ones.lab.tables import Record

FIGURES = "figures"

#: opens a watch over so many runs
Watching = Callable[[Plan], Sequence[Failure]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    panels: Sequence[Panel]
    comparison: Comparison
    standing: Mapping[str, str]
    headline: Mapping[str, Sequence[Record]]  # label -> its runs

    def told(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "panels": [
                {
                    "panel": panel.anchor,
                    "title": panel.title,
                    "paper": panel.paper,
                    "here": panel.ours,
                    "n": panel.n,
                    "spread": panel.spread,
                    "agrees": panel.verdict.agrees,
                    "sentence": panel.verdict.sentence,
                    "assumption": panel.assumption,
                    "measured": panel.measured or None,
                }
                for panel in self.panels
            ],
            "stronger_variants": dict(self.standing),
            "missing": missing(),
            **self.comparison.told(),
        }


def whole_plan(design: Design, kept: Kept, processes: int) -> Plan:
    """All of it, as far as it is known before the stronger variants are."""
    cells = [*_first(design), *design.mechanisms({}), *design.scaling({})]
    return Plan.of(cells, kept, processes)


def evaluate(
    design: Design,
    kept: Kept,
    home: Path,
    carry: Watching,
    processes: int,
    measured: Mapping[str, Measurement] | None = None,
    beyond: Sequence[Panel] = (),
) -> Evaluation:
    """In two parts: who is the stronger variant is known after the first."""
    first = _first(design)
    failures = list(carry(Plan.of(first, kept, processes)))
    headline = _told_by(design.headline(), kept)
    standing = stronger(headline)
    leading, _ = _split(headline, standing)
    second = [*design.mechanisms(standing), *design.scaling(standing)]
    failures += carry(Plan.of(second, kept, processes))
    panels = [
        *_panels(design, kept, standing, home / FIGURES),
        *_training(measurements() if measured is None else measured, home / FIGURES),
        *beyond,
    ]
    records = records_of([*first, *second], kept)
    return Evaluation(panels, Comparison(_once(records), failures), standing, leading)


def _first(design: Design) -> list[Cell]:
    return [*design.headline(), *design.prediction(), *design.up(), *design.without()]


def _told_by(cells: Sequence[Cell], kept: Kept) -> list[Record]:
    """Runs in which some job completed: of the others there are no times."""
    return [r for r in records_of(cells, kept) if r.row["mean_jct"] is not None]


def _once(records: Sequence[Record]) -> list[Record]:
    """A run that several panels use is one row."""
    seen: dict[tuple[str, str, str], Record] = {}
    for record in records:
        seen.setdefault((record.cell.label, record.cell.asked, record.cell.key), record)
    return list(seen.values())


def _panels(design: Design, kept: Kept, standing: Mapping[str, str], home: Path) -> Iterator[Panel]:
    runs, others = _split(_told_by(design.headline(), kept), standing)
    if runs:
        yield performance.headline(runs, others, missing(), standing)
        yield from performance.performance(runs, standing, home)
        yield performance.longest(runs)
        yield traits.significance(runs, standing)
    mechanisms = _told_by(design.mechanisms(standing), kept)
    if mechanisms:
        yield traits.mechanisms(mechanisms)
    yield from scaling.scaling(_told_by(design.scaling(standing), kept), standing, home)
    up = _told_by(design.up(), kept)
    if up:
        yield scaling.ablation(up, _told_by(design.without(), kept))
    if runs:
        yield traits.properties(runs)
    prediction = predicted.prediction(records_of(design.prediction(), kept, "prediction"), home)
    if prediction is not None:
        yield prediction


def _training(measured: Mapping[str, Measurement], home: Path) -> Iterator[Panel]:
    """What was measured on real training, and else what the simulator assumes."""
    yield training.speed(home)
    found = measured.get("convergence")
    if found is None:
        yield training.fixed_local_batch(home)
        yield from training.growth(home)
    else:
        yield trained.fixed_local_batch(found, home)
        yield from trained.growth(found, home)
    pauses = measured.get("rescale")
    yield training.overheads(home) if pauses is None else trained.overheads(pauses, home)


def _split(
    records: Sequence[Record], standing: Mapping[str, str]
) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """The headline, in the order of the tables, and the rest."""
    by: dict[str, list[Record]] = {}
    for record in records:
        by.setdefault(record.cell.label, []).append(record)
    leading = [standing.get(name, name) for name in present(SCHEDULERS)]
    first = {label: by[label] for label in leading if label in by and not is_oracle(label)}
    return first, {label: found for label, found in by.items() if label not in first}


def with_seeds(depth: Depth, seeds: int | None) -> Depth:
    """Another number of seeds, for every part that has as many as the headline."""
    if seeds is None:
        return depth

    def some(before: int) -> int:
        return seeds if before == depth.seeds else min(before, seeds)

    return replace(
        depth,
        seeds=seeds,
        mechanism_seeds=some(depth.mechanism_seeds),
        scaling_seeds=some(depth.scaling_seeds),
        ladder_seeds=some(depth.ladder_seeds),
        prediction_seeds=some(depth.prediction_seeds),
    )


def carrying(kept: Kept, processes: int, watched: Callable[..., Any]) -> Watching:
    """Runs a plan under a watch that is opened for it."""

    def carry(plan: Plan) -> Sequence[Failure]:
        with watched(len(plan.missing)) as watch:
            return carry_out(plan, kept, processes, watch)

    return carry
