"""The evaluation: which runs it is made of, what its sentences say, and the page itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from ones.lab.comparison.execution import RunFailure, RunPlan
from ones.lab.comparison.grid import Cell
from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.summary import Record
from ones.lab.comparison.tasks import run_task
from ones.lab.paper import ablation, claims, design, training_panels
from ones.lab.paper import evaluation as evaluation_module
from ones.lab.paper.design import FULL, QUICK, Design, EvaluationSize, is_oracle, strongest_variants
from ones.lab.paper.evaluation import evaluate, whole_plan, with_seeds
from ones.lab.paper.page import write_evaluation
from ones.lab.paper.panel import Verdict, all_of, near, points, same_order
from ones.lab.paper.prediction_task import predictions
from ones.lab.runs import RunSpec
from ones.policies import create, settings_of
from ones.report import statistics

TINY = EvaluationSize(
    seeds=2, jobs=3, variants=False, mechanism_seeds=1, scaling_seeds=1, sizes=(16, 64),
    ablation_seeds=1, ablation_jobs=3, leave_one_out=False, prediction_seeds=1,
    contended_seeds=1, contended_jobs=12,
)  # fmt: skip


# the ablation


def test_the_ablation_ends_with_ones_and_each_step_adds_one_group() -> None:
    steps = ablation.cumulative()
    assert not steps[-1].settings
    for below, above in pairwise(steps):
        assert set(above.settings) < set(below.settings)
        added = set(below.settings) - set(above.settings)
        assert added == set(ablation.GROUPS[above.label.removeprefix("+ ")])


def test_every_group_names_settings_of_ones_and_changes_their_values() -> None:
    defaults = {s.name: s.default for s in settings_of("ones")}
    named = [name for group in ablation.GROUPS.values() for name in group]
    assert len(named) == len(set(named))
    for group in ablation.leave_one_out()[1:]:
        create("ones", **group.settings)  # refuses unknown settings and values
        assert all(defaults[name] != value for name, value in group.settings.items())


# sentences


@pytest.mark.parametrize(("ours", "agrees"), [(240.0, True), (269.0, True), (300.0, False)])
def test_near_is_within_a_share(ours: float, agrees: bool) -> None:
    found = near("The mean", ours, 245.0, 0.10)
    assert found.agrees is agrees
    assert f"{ours:.0f} s against 245 s" in found.sentence
    assert ("does not agree" in found.sentence) is not agrees


@pytest.mark.parametrize(("ours", "agrees"), [(26.0, True), (40.0, False), (-5.0, False)])
def test_points_are_within_points(ours: float, agrees: bool) -> None:
    assert points("It", ours, 26.9, 10.0).agrees is agrees


def test_orders_are_compared_over_those_that_both_have() -> None:
    paper = {"ones": 245.0, "drl": 335.0, "optimus": 420.0}
    assert same_order({"ones": 1.0, "optimus": 3.0, "fifo": 2.0}, paper).agrees
    differs = same_order({"ones": 5.0, "drl": 3.0}, paper)
    assert differs.agrees is False
    assert "drl < ones here, ones < drl in the paper" in differs.sentence
    assert same_order({"ones": 1.0}, paper).agrees is None


def test_agreement_needs_all_verdicts_with_a_comparison() -> None:
    yes, no, none = Verdict(True, "a"), Verdict(False, "b"), Verdict(None, "c")
    assert all_of(yes, none).agrees is True
    assert all_of(yes, no).agrees is False
    assert all_of(none).agrees is None
    assert all_of(yes, no).sentence == "a b"


def test_sentences_follow_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = training_panels.speed(tmp_path)
    assert found.assumption
    assert found.verdict.agrees
    assert (tmp_path / "fig2-speed.png").stat().st_size > 5000
    monkeypatch.setattr(claims, "FIXED_BATCH_PEAK", 8)
    assert training_panels.speed(tmp_path).verdict.agrees is False


# the strongest variants


def record(label: str, seed: int, mean: float) -> Record:
    policy = label.partition(":")[0]
    cell = Cell(label=label, asked="native", spec=RunSpec(policy=policy, seed=seed))
    row = {"mean_jct": mean}
    jobs: dict[str, list[float]] = {"completion": [mean], "execution": [mean], "queueing": [0.0]}
    return Record(cell, {"row": row, "jobs": jobs, "changes": {"size": 0, "batch": 0}})


def test_the_stronger_variant_stands_for_its_policy() -> None:
    records = [
        record("tiresias", 1, 400), record("tiresias", 2, 500),
        record("tiresias:published", 1, 420), record("tiresias:published", 2, 430),
        record("tiresias:gittins", 1, 100),  # failed on the other seed: not whole
        record("optimus", 1, 300), record("optimus:oracle", 1, 200),
        record("ones", 1, 300), record("ones:odd", 1, 200), record("srtf", 1, 100),
    ]  # fmt: skip
    assert strongest_variants(records) == {"tiresias": "tiresias:published", "optimus": "optimus"}
    assert is_oracle("srsf")
    assert is_oracle("optimus:oracle")
    assert not is_oracle("optimus")


def test_seeds_can_be_chosen_and_parts_with_fewer_stay_so() -> None:
    fewer = with_seeds(FULL, 2)
    assert (fewer.seeds, fewer.scaling_seeds, fewer.prediction_seeds) == (2, 2, 2)
    more = with_seeds(QUICK, 5)
    assert (more.seeds, more.mechanism_seeds) == (5, 1)
    assert with_seeds(FULL, None) == FULL


def test_held_out_seeds_are_used_and_runs_are_shared() -> None:
    plan = whole_plan(Design(QUICK), ResultStore(None), 2)
    assert {cell.spec.seed for cell in plan.cells} == {1000, 1001}
    assert len(plan.missing) == len({cell.key for cell in plan.cells}) < len(plan.cells)
    full = whole_plan(Design(FULL), ResultStore(None), 2)
    assert {cell.spec.gpus for cell in full.cells} == set(claims.SIZES)
    assert min(cell.spec.seed for cell in full.cells) == 1000


# predictions


def test_predictions_are_of_progress_that_came_true() -> None:
    found = predictions(RunSpec(policy="ones", gpus=16, jobs=8, seed=3))
    assert 1 <= len(found["jobs"]) <= 8
    for job in found["jobs"]:
        progress = job["progress"]
        assert progress == sorted(progress)
        assert progress[-1] == pytest.approx(1.0, abs=0.1)
        assert min(job["alpha"]) > 0
        assert min(job["beta"]) > 0
        assert len(progress) == len(job["alpha"]) == len(job["at"]) <= 60
    assert found["jobs"][0]["learned_from"] == 0


# the whole


def test_the_page_has_every_panel_and_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("ones", "ones-paper", "tiresias", "fifo", "unheard-of")
    for module in (design, evaluation_module):
        monkeypatch.setattr(module, "SCHEDULERS", few)
    monkeypatch.setattr(design, "ORACLES", ())
    monkeypatch.setattr(statistics, "DRAWS", 50)
    monkeypatch.setattr(ablation, "GROUPS", dict(list(ablation.GROUPS.items())[:2]))
    store = ResultStore(tmp_path)

    def run_planned(plan: RunPlan) -> Sequence[RunFailure]:  # in this process
        failed = []
        for cell in plan.missing:
            result = run_task(cell.task, cell.spec)
            if "error" in result:
                failed.append(RunFailure(cell.name, **result["error"]))
            else:
                store.add(cell.key, cell.name, result)
        return failed

    plan = Design(TINY)
    found = evaluate(plan, store, tmp_path, run_planned, 1)
    assert found.comparison.failures == []
    written = write_evaluation(found, plan, "ones paper --tiny", tmp_path)
    page = written[0].read_text()
    anchors = [panel.anchor for panel in found.panels]
    assert anchors == [
        "headline", "completion", "execution", "queueing", "longest", "wilcoxon", "contended",
        "mechanisms",
        "scaling", "improvement", "ablation", "schedulers", "prediction", "speed", "accuracy",
        "sudden", "gradual", "overheads",
    ]  # fmt: skip
    for anchor in anchors:
        assert f'id="{anchor}"' in page
    assert "Not here: unheard-of." in page
    headline = (tmp_path / "headline.md").read_text().splitlines()
    assert [line.split("`")[1] for line in headline[2:]] == list(few[:-1])
    assert page.count("restates an assumption of the simulator") >= 1
    assert page.count("measured on real training") >= 3
    sources = re.findall(r'(?:src|href)="([^"#]{1,30})', page)
    assert sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    drawn = ("completion", "execution", "queueing", "scaling", "prediction", "fig2-speed",
             "fig3-fixed-local-batch", "growth-sudden", "growth-gradual", "overheads")  # fmt: skip
    for name in drawn:
        assert {f"{name}.png", f"{name}.svg"} <= figures
    result = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert len(result["panels"]) == len(anchors)
    assert {row["label"] for row in result["rows"]} >= {
        "ones",
        "tiresias",
        "fifo",
        "+ cost of changes",
    }
    # everything is kept: nothing is left to do
    assert whole_plan(plan, ResultStore(tmp_path), 1).missing == []
