"""Comparisons: who takes part, what is kept, what is done again, and what a failure costs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ones.errors import InvalidFileError, InvalidSettingError, UnknownNameError, UserError
from ones.lab import entrants as entrants_module
from ones.lab import grid as grid_module
from ones.lab.compare import Comparison, Plan, carry_out, records_of, write_results
from ones.lab.compare_page import write_page
from ones.lab.entrants import entrants
from ones.lab.fingerprint import content
from ones.lab.grid import Cell, Grid
from ones.lab.kept import FILE_NAME, Kept, held
from ones.lab.runs import RunSpec
from ones.lab.tables import Record, pairs_of, significance_of, summary_of
from ones.lab.tasks import carry_out as do_task
from tests.processes import PATIENCE, is_alive, wait_for

SMALL = RunSpec(policy="", jobs=4)


def cells(*labels: str, seeds: int = 2, **options: Any) -> list[Cell]:
    grid = Grid(entrants=entrants(labels), seeds=range(5, 5 + seeds), gpus=[16], base=SMALL)
    return replace(grid, **options).cells()


def done(wanted: list[Cell]) -> list[Record]:
    """Without processes."""
    return [Record(cell, do_task(cell.task, cell.spec)) for cell in wanted]


# who takes part


def test_settings_reach_the_policy_or_one_variant_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        entrants_module, "VARIANTS", {"fifo": {"filling": {"backfill": True}, "x": {"gone": 1}}}
    )
    found = entrants(
        ["fifo", "fifo:filling", "fifo:mine"],
        settings={"fifo": {"backfill": False}},
        given=["fifo:mine.backfill=true"],
    )
    assert [dict(e.settings) for e in found] == [
        {"backfill": False}, {"backfill": True}, {"backfill": True},
    ]  # fmt: skip
    assert [e.policy for e in found] == ["fifo"] * 3
    with pytest.raises(UnknownNameError, match="variant of policy fifo 'x'"):
        entrants(["fifo:x"])  # its setting is not one that fifo has here


@pytest.mark.parametrize("policy", entrants_module.VARIANTS)
def test_every_variant_of_the_table_can_be_made(policy: str) -> None:
    """A setting that was renamed would drop its variant without a word."""
    variants = entrants_module.VARIANTS[policy]
    assert set(entrants_module.variants_of(policy)) == set(variants)
    cells(policy, *(f"{policy}:{name}" for name in variants), seeds=1)


@pytest.mark.parametrize(
    ("labels", "given", "message"),
    [
        (["fifoo"], [], "unknown policy 'fifoo'; did you mean 'fifo'"),
        (["fifo:fast"], [], "unknown variant of policy fifo 'fast'"),
        (["fifo"], ["fifo.backfil=true"], "did you mean 'backfill'"),
        (["fifo"], ["backfill=true"], "'backfill=true' is not POLICY.KEY=VALUE"),
        (["fifo"], ["equi.x=1"], "unknown policy of the comparison 'equi'"),
        (["fifo", "fifo"], [], "fifo is there twice"),
    ],
)
def test_who_cannot_take_part_is_named(labels: list[str], given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        entrants(labels, given=given)


# the runs and their keys


def test_every_combination_is_there_seed_by_seed() -> None:
    found = cells("fifo", "equi", gpus=[16, 32], mechanisms=["elastic", "checkpoint"], loads=[0.5])
    assert len(found) == 2 * 2 * 2 * 2
    assert [cell.spec.seed for cell in found] == [5] * 8 + [6] * 8
    assert len({cell.key for cell in found}) == 16
    assert found[0].name == "fifo, seed 5, 16 GPUs, elastic, load 0.5"


def test_a_run_that_two_ask_for_is_done_once() -> None:
    found = cells("ones", mechanisms=["native", "elastic", "checkpoint"], seeds=1)
    native, elastic, checkpoint = (cell.key for cell in found)
    assert native == elastic != checkpoint
    assert len(Plan.of(found, Kept(None), 1).missing) == 2


def test_the_key_follows_all_that_the_run_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells("fifo", seeds=1)[0]
    spec = cell.spec
    others = [
        replace(spec, seed=99), replace(spec, gpus=8), replace(spec, jobs=5),
        replace(spec, load=0.4), replace(spec, settings={"backfill": True}),
        replace(spec, mechanism="elastic"), replace(spec, policy="equi"), replace(spec, gap=9.0),
        replace(spec, physics={"noise": 3.0}), replace(spec, physics={"noise": 0.3}),
    ]  # fmt: skip
    keys = {Cell(label="x", asked="native", spec=other).key for other in [spec, *others]}
    assert len(keys) == len(others) + 1
    assert Cell(label="other", asked="checkpoint", spec=spec).key == cell.key
    monkeypatch.setattr(grid_module, "fingerprint", lambda policy: "other code")
    assert cells("fifo", seeds=1)[0].key != cell.key
    keys = set()
    for number, text in enumerate(["at,id,model\n0,a,alexnet-imagenet\n"] * 2 + ["other"]):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        keys.add(content(str(file)))
    assert len(keys) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mechanisms": ["magic"]}, UnknownNameError, "unknown mechanism 'magic'"),
        ({"gpus": [1]}, UserError, "more than the 1 GPUs of the cluster"),
        ({"seeds": []}, InvalidSettingError, "needs policies, seeds"),
        ({"loads": [-1.0]}, InvalidSettingError, "load: -1.0"),
        (
            {"base": replace(SMALL, workload="nowhere.csv")},
            InvalidFileError,
            "nowhere.csv: cannot be read",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    options: dict[str, Any], error: type[UserError], message: str
) -> None:
    grid = Grid(
        entrants=entrants(["fifo"]), seeds=range(3), gpus=[16], base=replace(SMALL, jobs=50)
    )
    with pytest.raises(error, match=message):
        replace(grid, **options).cells()


# what is kept


def test_results_are_kept_one_by_one_and_read_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.add("a", "first", {"row": {"x": 1.5}})
    kept.add("b", "second", {"row": {"x": None}})
    again = Kept(tmp_path)
    assert len(again) == 2
    assert again["a"] == {"row": {"x": 1.5}}
    assert "c" not in again


def test_a_line_that_was_cut_off_is_no_result(tmp_path: Path) -> None:
    Kept(tmp_path).add("a", "first", {"row": 1})
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"key": "b", "name": "sec')
    torn = Kept(tmp_path)
    assert ("a" in torn, "b" in torn) == (True, False)
    torn.add("c", "third", {"row": 3})
    again = Kept(tmp_path)
    assert {key for key in "abc" if key in again} == {"a", "c"}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"key": "a", "name": "x", "row": 1}\nhello\n')
    with pytest.raises(InvalidFileError, match=r"rows.jsonl:2: is not a result"):
        Kept(tmp_path)


def test_two_comparisons_cannot_write_to_one_directory(tmp_path: Path) -> None:
    with held(tmp_path / "out") as home:
        with pytest.raises(UserError, match="another comparison"), held(home):
            pass
        (tmp_path / "file").write_text("")
    with held(home), pytest.raises(InvalidFileError), held(tmp_path / "file"):
        pass


# what it says


def test_summary_and_tests_are_of_the_same_jobs_and_seeds() -> None:
    records = done(cells("equi", "fifo", seeds=2))
    summary = summary_of(records)
    assert [row["label"] for row in summary] == ["equi", "fifo"]
    for row, label in zip(summary, ("equi", "fifo"), strict=True):
        means = [r.row["mean_jct"] for r in records if r.cell.label == label]
        assert row["mean_jct"] == pytest.approx(sum(means) / 2)
        assert row["mean_jct_low"] <= row["mean_jct"] <= row["mean_jct_high"]
        assert (row["n"], row["first_seed"], row["jobs"]) == (2, 5, 4)
    (test,) = significance_of(records)
    assert (test["label"], test["against"], test["pairs"], test["seeds"]) == ("equi", "fifo", 8, 2)
    equi, fifo = (row["mean_jct"] for row in summary)
    assert test["completion_reduction_percent"] == pytest.approx(100 * (1 - equi / fifo))
    by_label = {r.cell.label: [r] for r in records if r.cell.spec.seed == 6}
    pairs = pairs_of(by_label["equi"], by_label["fifo"], "queueing")
    assert pairs.seeds == [6] * 4
    assert pairs.first == by_label["equi"][0].result["jobs"]["queueing"]


def test_times_of_jobs_add_up_and_changes_are_counted() -> None:
    fifo, equi = done(cells("fifo", "equi", seeds=1))
    for record in (fifo, equi):
        jobs = record.result["jobs"]
        assert len(jobs["id"]) == record.row["finished"] == 4
        for whole, run, wait in zip(
            jobs["completion"], jobs["execution"], jobs["queueing"], strict=True
        ):
            assert whole == pytest.approx(run + wait, abs=1e-5)
        assert record.row["max_exec"] == max(jobs["execution"])
    assert (fifo.row["resized_jobs"], fifo.row["rebatched_jobs"]) == (0, 0)
    assert equi.row["resized_jobs"] > 0


# processes


def broken(module: Path) -> None:
    """A package with policies that fail, where spawned processes find it."""
    (module / "broken_policies.py").write_text(
        "import os\n"
        "from ones.policies.fifo import Fifo\n"
        "class Raises(Fifo):\n"
        "    def decide(self, view):\n"
        "        if self.count > 3: raise RuntimeError('no idea')\n"
        "        self.count += 1\n"
        "        os.write(1, b'noise')\n"
        "        return super().decide(view)\n"
        "    count = 0\n"
        "class Dies(Fifo):\n"
        "    def decide(self, view):\n"
        "        os._exit(9)\n"
    )
    info = module / "broken_policies-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-policies\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[ones.policies]\nraises = broken_policies:Raises\ndies = broken_policies:Dies\n"
    )


def test_a_policy_that_fails_costs_its_own_runs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wanted = cells("raises", "fifo", "dies", seeds=1)
    with held(tmp_path / "out") as home:
        kept = Kept(home)
        seen: list[int] = []
        plan = Plan.of(wanted, kept, 2)
        failures = carry_out(plan, kept, 2, lambda progress: seen.append(progress.done))
        comparison = Comparison(records_of(wanted, kept), failures)
        write_results(comparison, home)
        page = write_page(comparison, home).read_text()
    assert seen == [1, 2, 3]
    assert capfd.readouterr().out == ""  # what policies print is no result
    told = sorted(map(str, failures))
    assert told[0].startswith("dies, seed 5, 16 GPUs, native: its process died (exit code 9)")
    raised = "its decide raised RuntimeError: no idea (broken_"
    assert told[1].startswith(f"raises, seed 5, 16 GPUs, native: {raised}")
    assert comparison.exit_code == 70
    assert [record.cell.label for record in comparison.records] == ["fifo"]
    results = json.loads((home / "results.json").read_text())
    assert [row["label"] for row in results["rows"]] == ["fifo"]
    assert len(results["failures"]) == 2
    assert "RuntimeError: no idea" in page
    assert len(list(csv.DictReader((home / "jobs.csv").read_text().splitlines()))) == 4
    # what failed is tried again; what is there is not done again
    assert [cell.label for cell in Plan.of(wanted, Kept(home), 2).missing] == ["raises", "dies"]


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("ones")), "compare", "--policies", "equi,fifo",
        "--seeds", "400", "--jobs", "30", "--processes", "1", "--out", "out", "--json",
    ]  # fmt: skip
    rows = tmp_path / "out" / FILE_NAME
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,  # and Ctrl-C as in a terminal:
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:  # fmt: skip
        wait_for(lambda: rows.exists() and rows.read_text().count("\n") >= 3)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    kept = rows.read_text().count("\n")
    assert 3 <= kept < 800
    assert f"interrupted; {kept} finished runs are in out: the same command again goes on" in err
    before = rows.read_text()
    short = [*command[:4], "--seeds", "2", *command[6:]]
    again = subprocess.run(short, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert rows.read_text().startswith(before)
    assert rows.read_text().count("\n") == max(kept, 4)
    assert "of them kept from before" in again.stderr
    told = json.loads(again.stdout)
    assert [(row["label"], row["seed"]) for row in told["rows"]] == [
        ("equi", 1000), ("fifo", 1000), ("equi", 1001), ("fifo", 1001),
    ]  # fmt: skip
    assert [row["n"] for row in told["summary"]] == [2, 2]


def test_no_run_outlives_a_comparison_that_was_killed(tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("ones")), "compare", "--policies", "ones",
        "--seeds", "1", "--jobs", "2000", "--processes", "1",
    ]  # fmt: skip
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, stdout=quiet, stderr=quiet) as process:
        workers = wait_for(lambda: _workers_of(process.pid))
        process.kill()
    wait_for(lambda: not any(map(is_alive, workers)), "a run goes on")


def _workers_of(pid: int) -> list[int]:
    """Its children that carry out runs, once they have come that far."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if _signals_ignored(c) & 1 << signal.SIGINT - 1]


def _signals_ignored(pid: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigIgn:")[1].split()[0], 16)


def test_a_run_gives_the_same_row_in_another_process(tmp_path: Path) -> None:
    wanted = cells("equi", seeds=1)
    kept = Kept(tmp_path)
    assert carry_out(Plan.of(wanted, kept, 1), kept, 1) == []
    alone = do_task("run", wanted[0].spec)
    there = kept[wanted[0].key]
    assert there["jobs"] == alone["jobs"]
    assert there["row"]["events"] == alone["row"]["events"]
