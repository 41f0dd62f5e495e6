"""`ones doctor --gpu --emulate`: real training with switches on two emulated GPUs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.apps.doctor.findings import PROBLEM
from ones.apps.doctor.gpu.jobs import JobReport, groups_of_states
from ones.apps.doctor.gpu.training import DRILLS, EQUAL, Training, random_schedule
from ones.lab.elastic_run import RunOutcome
from ones.lab.scripted_policy import parse_schedule
from ones.train.acceptance.case import Case
from ones.train.emulation import VARIABLE
from tests.emulated_gpu import compile_once

MAIN = "from ones.cli import main; main()"
MEASURED = {"pause", "first step", "memory per switch", "memory after leaving", "synchronisations"}


def run_doctor(directory: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "doctor", *words],
        cwd=directory, env={**os.environ, **env}, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_whole_run_on_emulated_gpus(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = compile_once(tmp_path_factory)
    done = run_doctor(tmp_path, "--gpu", "--emulate", "--json", **{VARIABLE: str(library)})
    found: dict[str, Any] = json.loads(done.stdout)
    checks = {check["name"]: check for check in found["checks"]}
    problems = [check for check in found["checks"] if check["status"] == PROBLEM]
    assert not problems
    assert (found["ok"], found["emulated"], done.returncode) == (True, True, 0)
    assert checks.keys() >= {f"equal: {name}" for name in EQUAL}
    assert checks.keys() >= {f"drill: {name}" for name in DRILLS}
    assert checks.keys() >= MEASURED
    trained = [checks[name]["found"] for name in checks if name.startswith(("equal", "drill"))]
    assert all("equal digests in" in text for text in trained)
    assert "9 groups" in checks["random switches"]["found"]
    assert not list(tmp_path.iterdir()), "with --json no file is written"


def test_without_a_gpu_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--gpu")
    assert done.returncode == 1
    assert "no GPU was found" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_the_emulation_says_so_in_one_line(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, "--gpu", "--emulate", PATH="", CXX="", **{VARIABLE: ""})
    assert done.returncode == 1
    assert "needs a C++ compiler" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--emulate"], "belong to --gpu"),
        (["--gpu", "--emulate", "--report", "no/where.json"], "is not a directory"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    done = run_doctor(tmp_path, *words)
    assert done.returncode == 2
    assert why in done.stderr


# how a job is judged


def note(pid: int, step: int, workers: int, digest: str) -> dict[str, Any]:
    return {"kind": "state", "pid": pid, "step": step, "workers": workers, "digest": digest}


def judge(tmp_path: Path, notes: list[dict[str, Any]], **values: Any) -> tuple[str, str]:
    report = JobReport(RunOutcome(), notes, **values)
    finding = Training(None, tmp_path)._judge("x", report, Case(tolerance=1e-9), "what")  # type: ignore[arg-type]
    return finding.status, finding.found


EQUAL_NOTES = [note(1, 0, 1, "a"), note(1, 9, 2, "b"), note(2, 9, 2, "b")]


def test_a_job_is_good_only_if_states_and_result_are_equal(tmp_path: Path) -> None:
    near, far = {"difference": 1e-12, "steps": 9}, {"difference": 1e-3, "steps": 9}
    assert judge(tmp_path, EQUAL_NOTES, result=near)[0] == "ok"
    assert judge(tmp_path, EQUAL_NOTES, result=far)[0] == PROBLEM
    assert judge(tmp_path, EQUAL_NOTES, result={**near, "difference": float("nan")})[0] == PROBLEM
    assert judge(tmp_path, EQUAL_NOTES[:1], result=near)[0] == PROBLEM, "it never had two workers"
    differs = [*EQUAL_NOTES[:2], note(2, 9, 2, "c")]
    assert "differ after a switch" in judge(tmp_path, differs, result=near)[1]
    hung = judge(tmp_path, EQUAL_NOTES, result=near, problem="the job hung")
    assert hung == (PROBLEM, "the job hung")


def test_a_group_counts_once_all_members_have_noted_their_state() -> None:
    assert len(groups_of_states(EQUAL_NOTES)) == 2
    assert len(groups_of_states(EQUAL_NOTES[:2])) == 1


@pytest.mark.parametrize("most", [2, 4])
def test_random_switches_always_change_the_number_of_workers(most: int) -> None:
    phases = parse_schedule(random_schedule(50, most), most)
    sizes = [phase.workers for phase in phases]
    assert len(sizes) == 51
    assert all(a != b for a, b in itertools.pairwise(sizes))
