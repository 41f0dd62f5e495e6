"""The emulated GPU. Whole jobs train on it in `tests/apps/test_gpu_check.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ones.apps.doctor.gpu.jobs import JobPlan, JobReport, Machine, groups_of_states, run_job
from ones.errors import WorldError
from ones.launchers.devices import cpu_slots
from ones.launchers.local import NODE
from ones.train.acceptance.case import Case
from ones.train.emulation import VARIABLE, extension
from tests.emulated_gpu import compile_once

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_once(tmp_path_factory)


@pytest.mark.slow
def test_the_device_computes_as_the_cpu_and_waits_as_a_gpu(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "emulated_device.py")],
        env={**os.environ, VARIABLE: str(library)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    trained = {name: same for name, same in found.items() if name.startswith(("SGD", "AdamW"))}
    assert len(trained) == 5
    assert all(trained.values()), trained
    assert found["waits"] == {
        "item": 1, "to the host": 1, "to the device": 1, "pinned, to the device": 0, "a kernel": 0,
    }  # fmt: skip
    assert found["bytes"]
    assert found["freed"]
    assert (found["memory known"], found["memory left"]) == (0, 1 << 20)
    assert found["not awaited"] == 8.0
    assert found["order"] == ["operation", "kernel"]
    assert found["host tensor"] == "ValueError: Tensors must be CUDA and dense"
    assert found["out of memory"].startswith("OutOfMemoryError: emulated device out of memory")
    assert all("device-side assert triggered" in problem for problem in found["failed"])


def test_a_source_that_does_not_compile_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if extension.compiler() is None:
        pytest.skip("the emulated GPU needs a C++ compiler (c++, g++)")
    wrong = tmp_path / "device.cpp"
    wrong.write_text("nonsense;")
    monkeypatch.setattr(extension, "_SOURCE", wrong)
    with pytest.raises(
        WorldError, match=r"does not compile with .*device\.cpp:1:1: error"
    ) as caught:
        extension.build(tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.so"))


# faults that the emulated GPU must find


def planted(zygote: str, library: Path, directory: Path, fault: str) -> JobReport:
    machine = Machine(
        tuple(cpu_slots(NODE, 2)), True, {VARIABLE: str(library), "PLANTED": fault}, zygote
    )
    plan = JobPlan(
        case=Case(nap_seconds=0.0, most_steps=40), schedule="0:2x16",
        until=lambda notes: any(n["kind"] == "step" and n["step"] >= 30 for n in notes),
        script=(str(SCRIPTS / "planted_fault.py"),),
    )  # fmt: skip
    return run_job(machine, directory, plan)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "wait"])
def test_a_missing_wait_gives_a_wrong_result(
    zygote: str, library: Path, tmp_path: Path, fault: str
) -> None:
    report = planted(zygote, library, tmp_path, fault)
    is_right = not report.problem and report.result is not None
    is_right = is_right and report.result["difference"] < 1e-9  # type: ignore[index]
    assert is_right is not bool(fault), (report.problem, report.result, report.output)
    assert len(groups_of_states(report.notes)) >= 1
