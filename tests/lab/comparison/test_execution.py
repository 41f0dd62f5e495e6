"""Missing runs, failures, interruptions, and results in other processes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ones.lab.comparison.execution import RunPlan, run_missing
from ones.lab.comparison.page import write_page
from ones.lab.comparison.result_store import FILE_NAME, ResultStore, locked
from ones.lab.comparison.results import Comparison, records_of, write_results
from ones.lab.comparison.tasks import run_task
from tests.lab.comparison.cells import cells
from tests.processes import PATIENCE, is_alive, wait_for


def test_a_run_that_two_ask_for_is_done_once() -> None:
    found = cells("ones", mechanisms=["native", "elastic", "checkpoint"], seeds=1)
    native, elastic, checkpoint = (cell.key for cell in found)
    assert native == elastic != checkpoint
    assert len(RunPlan.of(found, ResultStore(None), 1).missing) == 2


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
    with locked(tmp_path / "out") as home:
        kept = ResultStore(home)
        seen: list[int] = []
        plan = RunPlan.of(wanted, kept, 2)
        failures = run_missing(plan, kept, 2, lambda progress: seen.append(progress.done))
        comparison = Comparison(records_of(wanted, kept), failures)
        write_results(comparison, home)
        page = write_page(comparison, home).read_text()
    assert seen == [1, 2, 3]
    assert capfd.readouterr().out == ""  # what policies print is no result
    told = sorted(map(str, failures))
    assert told[0].startswith("dies, seed 5, 16 GPUs, native: its process died (exit code 9)")
    raised = "`decide` raised RuntimeError: no idea (broken_"
    assert told[1].startswith(f"raises, seed 5, 16 GPUs, native: {raised}")
    assert comparison.exit_code == 70
    assert [record.cell.label for record in comparison.records] == ["fifo"]
    results = json.loads((home / "results.json").read_text())
    assert [row["label"] for row in results["rows"]] == ["fifo"]
    assert len(results["failures"]) == 2
    assert "RuntimeError: no idea" in page
    assert len(list(csv.DictReader((home / "jobs.csv").read_text().splitlines()))) == 4
    # what failed is tried again; what is there is not done again
    assert [cell.label for cell in RunPlan.of(wanted, ResultStore(home), 2).missing] == [
        "raises",
        "dies",
    ]


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
    assert f"interrupted; {kept} finished runs are in out; run the same command to continue" in err
    before = rows.read_text()
    short = [*command[:4], "--seeds", "2", *command[6:]]
    again = subprocess.run(short, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert rows.read_text().startswith(before)
    assert rows.read_text().count("\n") == max(kept, 4)
    assert "of them already stored" in again.stderr
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
    kept = ResultStore(tmp_path)
    assert run_missing(RunPlan.of(wanted, kept, 1), kept, 1) == []
    alone = run_task("run", wanted[0].spec)
    there = kept[wanted[0].key]
    assert there["jobs"] == alone["jobs"]
    assert there["row"]["events"] == alone["row"]["events"]
