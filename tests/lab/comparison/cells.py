"""Cells of small comparisons, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ones.lab.comparison.grid import Cell, Grid
from ones.lab.comparison.summary import Record
from ones.lab.comparison.tasks import run_task
from ones.lab.comparison.variants import parse_variants
from ones.lab.runs import RunSpec

SMALL = RunSpec(policy="", jobs=4)


def cells(*labels: str, seeds: int = 2, **options: Any) -> list[Cell]:
    grid = Grid(variants=parse_variants(labels), seeds=range(5, 5 + seeds), gpus=[16], base=SMALL)
    return replace(grid, **options).cells()


def done(wanted: list[Cell]) -> list[Record]:
    """Without processes."""
    return [Record(cell, run_task(cell.task, cell.spec)) for cell in wanted]
