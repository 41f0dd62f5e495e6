"""The whole evaluation: missing runs, the strongest variants, the panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ones.lab.comparison.execution import RunFailure, RunPlan, run_missing
from ones.lab.comparison.grid import Cell
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.results import Comparison, records_of
from ones.lab.comparison.summary import Record
from ones.lab.paper import (
    comparison_panels,
    contended_panel,
    performance,
    prediction_panel,
    readings,
    scaling,
    training_panels,
)
from ones.lab.paper.design import (
    SCHEDULERS,
    Design,
    EvaluationSize,
    is_oracle,
    missing,
    present,
    strongest_variants,
)
from ones.lab.paper.measurements import Measurement, measurements
from ones.lab.paper.panel import PaperPanel

FIGURES = "figures"

#: executes the missing runs of a plan and shows the progress
RunPlanned = Callable[[RunPlan], Sequence[RunFailure]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    panels: Sequence[PaperPanel]
    comparison: Comparison
    strongest: Mapping[str, str]
    headline: Mapping[str, Sequence[Record]]  # label -> its runs

    def to_json(self) -> dict[str, Any]:
        """The output of `--json`."""
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
            "stronger_variants": dict(self.strongest),
            "missing": missing(),
            **self.comparison.to_json(),
        }


def whole_plan(design: Design, store: ResultStore, processes: int) -> RunPlan:
    """All runs, as far as they are known before the strongest variants are."""
    cells = [*_first(design), *design.mechanisms({}), *design.scaling({})]
    return RunPlan.of(cells, store, processes)


def evaluate(
    design: Design,
    store: ResultStore,
    home: Path,
    run_planned: RunPlanned,
    processes: int,
    measured: Mapping[str, Measurement] | None = None,
    beyond: Sequence[PaperPanel] = (),
) -> Evaluation:
    """Runs the evaluation in two parts: the second needs the strongest variants of the first."""
    first = _first(design)
    failures = list(run_planned(RunPlan.of(first, store, processes)))
    headline = _completed(design.headline(), store)
    strongest = strongest_variants(headline)
    headline_runs, _ = _split(headline, strongest)
    second = [*design.mechanisms(strongest), *design.scaling(strongest)]
    failures += run_planned(RunPlan.of(second, store, processes))
    panels = [
        *_panels(design, store, strongest, home / FIGURES),
        *_training(measurements() if measured is None else measured, home / FIGURES),
        *beyond,
    ]
    records = records_of([*first, *second], store)
    return Evaluation(panels, Comparison(_distinct(records), failures), strongest, headline_runs)


def _first(design: Design) -> list[Cell]:
    band = [cell for linear in (False, True) for cell in design.readings(linear=linear)]
    return [
        *design.headline(),
        *design.prediction(),
        *design.contended(),
        *design.contended_without(),
        *design.cumulative(),
        *design.leave_one_out(),
        *band,
    ]


def _completed(cells: Sequence[Cell], store: ResultStore) -> list[Record]:
    """Records of runs in which a job completed; the others have no times."""
    return [r for r in records_of(cells, store) if r.row["mean_jct"] is not None]


def _distinct(records: Sequence[Record]) -> list[Record]:
    """Each run once, though several panels use it."""
    seen: dict[tuple[str, str, str], Record] = {}
    for record in records:
        seen.setdefault((record.cell.label, record.cell.asked, record.cell.key), record)
    return list(seen.values())


def _panels(
    design: Design, store: ResultStore, strongest: Mapping[str, str], home: Path
) -> Iterator[PaperPanel]:
    runs, others = _split(_completed(design.headline(), store), strongest)
    if runs:
        yield performance.headline(runs, others, missing(), strongest)
        yield from performance.performance(runs, strongest, home)
        yield performance.longest(runs)
        yield comparison_panels.significance(runs, strongest)
    busy = _completed(design.contended(), store)
    if busy:
        yield contended_panel.contended(busy, _completed(design.contended_without(), store))
    mechanisms = _completed(design.mechanisms(strongest), store)
    if mechanisms:
        yield comparison_panels.mechanisms(mechanisms)
    yield from scaling.scaling(_completed(design.scaling(strongest), store), strongest, home)
    cumulative = _completed(design.cumulative(), store)
    if cumulative:
        yield scaling.ablation(cumulative, _completed(design.leave_one_out(), store))
    for linear in (False, True):
        band = readings.panel(
            _completed(design.readings(linear=linear), store), home, linear=linear
        )
        if band is not None:
            yield band
    if runs:
        yield comparison_panels.properties(runs)
    prediction = prediction_panel.prediction(
        records_of(design.prediction(), store, "prediction"), home
    )
    if prediction is not None:
        yield prediction


def _training(measured: Mapping[str, Measurement], home: Path) -> Iterator[PaperPanel]:
    yield training_panels.speed(home)
    yield training_panels.fixed_local_batch(measured["convergence"], home)
    yield from training_panels.growth(measured["convergence"], home)
    yield training_panels.overheads(measured["rescale"], home)


def _split(
    records: Sequence[Record], strongest: Mapping[str, str]
) -> tuple[dict[str, list[Record]], dict[str, list[Record]]]:
    """Runs of the headline in the order of the tables, and the other runs."""
    by: dict[str, list[Record]] = {}
    for record in records:
        by.setdefault(record.cell.label, []).append(record)
    headline_runs = [strongest.get(name, name) for name in present(SCHEDULERS)]
    first = {label: by[label] for label in headline_runs if label in by and not is_oracle(label)}
    return first, {label: found for label, found in by.items() if label not in first}


def with_seeds(size: EvaluationSize, seeds: int | None) -> EvaluationSize:
    """Changes the number of seeds of every part that has as many as the headline."""
    if seeds is None:
        return size

    def some(before: int) -> int:
        return seeds if before == size.seeds else min(before, seeds)

    return replace(
        size,
        seeds=seeds,
        mechanism_seeds=some(size.mechanism_seeds),
        scaling_seeds=some(size.scaling_seeds),
        ablation_seeds=some(size.ablation_seeds),
        prediction_seeds=some(size.prediction_seeds),
        contended_seeds=some(size.contended_seeds),
    )


def planned_runner(store: ResultStore, processes: int, watched: Callable[..., Any]) -> RunPlanned:
    """A function that executes the missing runs of a plan with a progress display."""

    def run_planned(plan: RunPlan) -> Sequence[RunFailure]:
        with watched(len(plan.missing)) as watch:
            return run_missing(plan, store, processes, watch)

    return run_planned
