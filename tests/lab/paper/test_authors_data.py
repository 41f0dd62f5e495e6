"""The authors' own files, where they are beside the project: facts, set-up, figures."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ones.lab.paper.artifact_checks import least_mean_execution, setup_checks
from ones.lab.paper.authors_claims import AUTHORS
from ones.lab.paper.authors_results import (
    check_directory,
    read_results,
    row_of_figures,
    row_of_times,
)
from ones.lab.runs import RunSpec, trace_of
from ones.workload import Trace, Training, generate_artifact, read_artifact_trace

DATA = Path(__file__).parents[4] / "shared" / "data" / "ones_sc21"
pytestmark = pytest.mark.skipif(
    not DATA.exists(), reason="the data files of the paper's authors are not beside this"
)


def facts(trace: Trace) -> Counter[tuple[object, ...]]:
    return Counter(
        (
            e.training.kind, e.training.dataset_size, e.training.classes, e.training.base_batch,
            e.training.run, e.job.requested_gpus, e.job.requested_batch, e.job.max_batch,
            e.job.stop,
        )
        for e in trace.jobs
        if isinstance(e.training, Training)
    )  # fmt: skip


def test_the_generator_makes_the_jobs_of_the_authors_trace() -> None:
    theirs = read_artifact_trace(check_directory(DATA))
    assert len(theirs.jobs) == 400
    assert theirs.jobs[-1].job.submitted_at == 11957
    assert facts(theirs) == facts(generate_artifact(jobs=400, seed=1))


def test_all_checks_of_the_set_up_are_met() -> None:
    workload = str(check_directory(DATA))
    trace = trace_of(RunSpec(policy="", workload=workload, jobs=50))
    checks = setup_checks(trace, workload, is_authors=True)
    assert len(checks) == 34
    assert [check.name for check in checks if not check.ok] == []


def test_no_scheduler_can_reach_the_mean_execution_of_the_authors_file() -> None:
    trace = trace_of(RunSpec(policy="", workload=str(check_directory(DATA)), jobs=50))
    assert least_mean_execution(trace, 64) > AUTHORS["ones-artifact"].execution.mean


def test_the_figures_that_stand_for_the_files_are_those_of_the_files() -> None:
    for name, times in read_results(DATA).items():
        assert len(times["completion"]) == 50
        found, figures = row_of_times(times), row_of_figures(AUTHORS[name])
        assert found == {key: pytest.approx(value, rel=0.005) for key, value in figures.items()}
