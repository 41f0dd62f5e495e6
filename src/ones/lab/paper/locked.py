"""`ones paper --locked`: the final evaluation, on seeds that nothing was chosen on, at one commit.

Its plan is fixed when it begins and stored beside the runs: the same command again continues it. If
the time does not suffice for all seeds, there are fewer seeds, and all rivals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ones.errors import InvalidFileError, UserError
from ones.lab.bench.result import bench_result, commit_of_checkout
from ones.lab.comparison.execution import format_duration
from ones.lab.comparison.grid import Cell
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.results import records_of, write_text
from ones.lab.comparison.rows import ComparisonRow, adjusted, comparison_rows, rows_table
from ones.lab.comparison.summary import Record, summary_of
from ones.lab.comparison.time_estimates import TimeEstimator
from ones.lab.paper import contended
from ones.lab.paper.design import SCHEDULERS, native_labels, present
from ones.lab.paper.sweep_results import markdown_table
from ones.lab.paper.sweeps import SweepPart, harder, rigid_mixes
from ones.lab.paper.tuned import TUNED, TUNED_CONTENDED, tuned_labels

FIRST_SEED = 2000  # below: seeds of the calibration and of earlier evaluations
TRIAL_SEED = 1  # a trial must not show results of the locked seeds
MIN_SEEDS, MAX_SEEDS = 3, 10
BUDGET_SECONDS = 2.5 * 3600
PLAN_NAME, RESULT_NAME, TABLES_NAME = "plan.json", "locked.json", "locked.md"
OURS = ("ones", "ones-paper", "ones-artifact")
ADAPTIVE = ("sia", "pollux", "equi")  # rivals that choose sizes and batches


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """Comparisons that belong together. Holm's correction is over the rows of all sets."""

    name: str
    title: str
    parts: Sequence[SweepPart]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSize:
    headline_jobs: int = 50
    jobs: int = contended.JOBS
    rigid: Sequence[float] = (0.25, 0.5, 0.75, 1.0)
    conditions: int | None = None  # of the hard ones; None: all


FULL = LockedSize()
QUICK = LockedSize(headline_jobs=6, jobs=12, rigid=(0.5,), conditions=1)


def row_sets(size: LockedSize, seeds: int) -> list[RowSet]:
    """All comparisons, the most important first."""
    ours = present(OURS)
    more = [name for name in ours if name not in SCHEDULERS]
    every = [*more, *native_labels(TUNED_CONTENDED)]
    usual = [*more, *native_labels(TUNED)]
    busy = SweepPart(
        policies=every,
        seeds=seeds,
        jobs=size.jobs,
        mechanisms=("native",),
        loads=(contended.LOAD,),
    )
    same = [
        replace(
            busy,
            policies=[*ours, *tuned_labels(present(ADAPTIVE), mechanism, TUNED_CONTENDED)],
            mechanisms=(mechanism,),
        )
        for mechanism in ("elastic", "checkpoint")
    ]
    rivals = tuned_labels(present(("sia", "equi")), "elastic", TUNED_CONTENDED)
    hard = replace(same[0], policies=["ones", *rivals])
    return [
        RowSet(
            name="contended",
            title="Where jobs queue, each policy with its native mechanism",
            parts=[busy],
        ),
        RowSet(
            name="paper",
            title="The paper's jobs, which do not queue",
            parts=[replace(busy, policies=usual, jobs=size.headline_jobs, loads=(None,))],
        ),
        RowSet(
            name="without",
            title=f"Where jobs queue, without {contended.DOMINATING_KIND}",
            parts=[
                replace(
                    busy, loads=(contended.LOAD_WITHOUT,), left_out=contended.DOMINATING_KIND
                )
            ],
        ),
        RowSet(name="mechanisms", title="The same mechanism for all, rivals tuned", parts=same),
        RowSet(
            name="harder",
            title="Physics and jobs that hurt predictions",
            parts=harder(hard)[: size.conditions],
        ),
        RowSet(name="rigid", title="Rigid jobs", parts=rigid_mixes(hard, size.rigid)),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPlan:
    """What was decided before the first run."""

    commit: str | None
    first_seed: int
    seeds: int
    size: LockedSize

    def row_sets(self) -> list[RowSet]:
        return row_sets(self.size, self.seeds)

    def cells(self) -> list[Cell]:
        """Seed by seed, so that an interrupted evaluation has whole seeds."""
        found = [cell for part in self._parts() for cell in part.cells(self.first_seed)]
        return sorted(found, key=lambda cell: cell.spec.seed)

    def _parts(self) -> list[SweepPart]:
        return [part for found in self.row_sets() for part in found.parts]


def make_plan(
    size: LockedSize, *, first_seed: int, processes: int, seeds: int | None = None
) -> LockedPlan:
    """A plan that fits into the time; `seeds` replaces the number that follows from it."""
    one = LockedPlan(commit=commit_of_checkout(), first_seed=first_seed, seeds=1, size=size)
    if seeds is None:
        seconds = TimeEstimator().total(one.cells(), processes)
        seeds = max(MIN_SEEDS, min(MAX_SEEDS, int(BUDGET_SECONDS // seconds)))
    return replace(one, seeds=seeds)


def stored_plan(wanted: LockedPlan, home: Path, *, seeds: int | None) -> LockedPlan:
    """The plan of this directory, or the wanted one, which is stored.

    Raises an error if the directory has a plan of another commit or of another request.
    """
    path = home / PLAN_NAME
    if not path.exists():
        write_text(path, json.dumps(asdict(wanted), indent=2) + "\n")
        return wanted
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        size = LockedSize(**{**found.pop("size")})
        plan = LockedPlan(**found, size=replace(size, rigid=tuple(size.rigid)))
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise InvalidFileError(path, "is not a plan of `ones paper --locked`") from problem
    if plan.commit != wanted.commit:
        raise UserError(
            f"{home}: its runs are of commit {plan.commit}, this is {wanted.commit};"
            " name another directory with --out"
        )
    same = replace(wanted, seeds=plan.seeds) == plan and seeds in (None, plan.seeds)
    if not same:
        raise UserError(f"{home}: holds a plan of other seeds or sizes; name another directory")
    return plan


def plan_lines(plan: LockedPlan, store: ResultStore, processes: int) -> list[str]:
    """Expected time of every row set, for the first lines of the output."""
    cells = plan.cells()
    estimator = TimeEstimator.of(cells, store)
    lines, seen = [], set()
    for found in plan.row_sets():
        runs = {cell.key: cell for part in found.parts for cell in part.cells(plan.first_seed)}
        left = [cell for key, cell in runs.items() if key not in store and key not in seen]
        seen |= set(runs)
        seconds = estimator.total(left, processes)
        lines.append(
            f"  {found.name}: {len(runs):,} runs, {len(left):,} to do,"
            f" about {format_duration(seconds)}"
        )
    return lines


def locked_rows(plan: LockedPlan, store: ResultStore) -> dict[str, list[ComparisonRow]]:
    """Rows of every set from the stored runs, adjusted over all of them."""
    names, rows = [], []
    for found in plan.row_sets():
        for part in found.parts:
            some = comparison_rows(_records(part, plan, store), OURS, scenario=part.scenario)
            rows += some
            names += [found.name] * len(some)
    by_set: dict[str, list[ComparisonRow]] = {found.name: [] for found in plan.row_sets()}
    for name, row in zip(names, adjusted(rows), strict=True):
        by_set[name].append(row)
    return by_set


def _records(part: SweepPart, plan: LockedPlan, store: ResultStore) -> list[Record]:
    there = records_of(part.cells(plan.first_seed), store)
    return [record for record in there if record.row["mean_jct"] is not None]


Rows = Mapping[str, Sequence[ComparisonRow]]  # by row set


def locked_json(plan: LockedPlan, store: ResultStore, rows: Rows) -> dict[str, Any]:
    """The output of `--json`; the keys are documented in results.md."""
    return {
        "plan": asdict(plan),
        **bench_result(
            "locked",
            [{"set": name, **row.to_json()} for name, some in rows.items() for row in some],
        ),
        "summary": [
            {"set": found.name, "scenario": part.scenario, **row}
            for found in plan.row_sets()
            for part in found.parts
            for row in summary_of(_records(part, plan, store))
        ],
    }


def locked_markdown(plan: LockedPlan, rows: Rows) -> str:
    last = plan.first_seed + plan.seeds - 1
    count = sum(map(len, rows.values()))
    parts = [
        f"Seeds {plan.first_seed} to {last}, commit {plan.commit or 'unknown'}. p: Wilcoxon"
        f" signed-rank test over jobs, two-sided; Holm's correction over {count:,} rows."
    ]
    every = [row for some in rows.values() for row in some]
    heads, cells = rows_table(every)
    number = 0
    for found in plan.row_sets():
        some = cells[number : number + len(rows[found.name])]
        number += len(some)
        if some:
            parts += [f"### {found.title}", markdown_table(heads, some)]
    return "\n\n".join(parts) + "\n"


def write_locked(plan: LockedPlan, store: ResultStore, home: Path) -> list[Path]:
    rows = locked_rows(plan, store)
    result = locked_json(plan, store, rows)
    return [
        write_text(home / TABLES_NAME, locked_markdown(plan, rows)),
        write_text(home / RESULT_NAME, json.dumps(result, indent=2) + "\n"),
    ]
