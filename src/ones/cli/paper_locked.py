"""`ones paper --locked`: its plan, its runs, and its tables."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from ones.cli.output import InterruptedRunError, progress_of_runs, say


def evaluate_locked(
    out: Path,
    *,
    quick: bool,
    seeds: int | None,
    first_seed: int | None,
    processes: int | None,
    json: bool,
) -> None:
    """Run the locked evaluation, or continue it, and write its rows to `out`."""
    from ones.lab.comparison.execution import RunPlan
    from ones.lab.comparison.process_pool import available_cores
    from ones.lab.comparison.result_store import ResultStore, locked
    from ones.lab.paper import locked as design
    from ones.lab.paper.evaluation import planned_runner

    at_once = processes or available_cores()
    with locked(out) as home:
        store = ResultStore(home)
        default = design.TRIAL_SEED if quick else design.FIRST_SEED
        wanted = design.make_plan(
            design.QUICK if quick else design.FULL,
            first_seed=default if first_seed is None else first_seed,
            processes=at_once,
            seeds=seeds,
        )
        plan = design.stored_plan(wanted, home, seeds=seeds)
        runs = RunPlan.of(plan.cells(), store, at_once)
        last = plan.first_seed + plan.seeds - 1
        say(f"plan: seeds {plan.first_seed} to {last}, commit {plan.commit}; {runs} on {at_once}"
            f" processes; kept in {home}")  # fmt: skip
        for line in design.plan_lines(plan, store, at_once):
            say(line)
        if plan.commit is None or plan.commit.endswith("-dirty"):
            say("ones: this code is not a commit: its results cannot be repeated by others")
        try:
            failures = planned_runner(store, at_once, partial(progress_of_runs, "locked"))(runs)
        except KeyboardInterrupt:
            raise InterruptedRunError(
                f"interrupted; {len(store):,} finished runs are in {home};"
                " run the same command to continue"
            ) from None
        tables, result = design.write_locked(plan, store, home)
        print((result if json else tables).read_text(encoding="utf-8"), end="")
    say(f"the tables: {tables}")
    for failure in failures:
        say(f"ones: {failure}")
    if failures:
        raise typer.Exit(max(failure.exit_code for failure in failures))
