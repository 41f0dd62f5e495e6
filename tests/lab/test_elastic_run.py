"""`ones run`: one elastic job by a schedule, with the true launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ones.control.live.worker_exchange import AdmittedWorker, WorkerExchange
from ones.errors import InvalidSettingError
from ones.lab.elastic_run import ElasticRun
from ones.lab.scripted_policy import SchedulePhase, parse_schedule
from ones.launchers import Launch
from ones.launchers.devices import cpu_slots
from ones.launchers.local import NODE, LocalLauncher
from ones.testing.processes import PATIENCE, alive_below, wait_for
from ones.wire import Reports, pack

MAIN = "from ones.cli import main; main()"
SCRIPT = """
import torch, ones
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 4)
net = nn.Linear(4, 1)
job = ones.join(net, torch.optim.SGD(net.parameters(), lr=0.01), TensorDataset(x), batch_size=8)
for epoch in job.epochs(3):
    seen = 0
    for (batch,) in job.batches():
        seen += len(batch)
        job.step(net(batch).square().mean())
    job.log(f"epoch {epoch}: {seen} of 96 samples here, {job.workers} workers")
"""


def test_a_schedule_is_read_strictly() -> None:
    assert parse_schedule("0:1, 50:2,120:4x256", 4) == (
        SchedulePhase(0, 1),
        SchedulePhase(50, 2),
        SchedulePhase(120, 4, 256),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0:1,x:2", "'x:2' is not STEP:WORKERS"),
        ("5:1", "does not begin at step 0"),
        ("0:1,9:2,9:1", "steps do not increase"),
        ("0:5", "5 workers, 4 slots"),
        ("0:4x3", "leaves a worker no sample"),
    ],
)
def test_a_wrong_schedule_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words) as caught:
        parse_schedule(text, 4)
    assert "\n" not in str(caught.value)


class EagerLauncher(LocalLauncher):
    """Its workers call the controller before `launch` returns; then the run is interrupted."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, cpu_slots(NODE, 1))
        self.run: ElasticRun | None = None
        self.admitted: list[AdmittedWorker] = []

    def launch(self, launch: Launch) -> None:
        assert self.run is not None
        plan = int(launch.env["ONES_PLAN"])
        message = Reports(job=launch.job, worker=launch.slots[0], plan=plan, first=1)
        self.admitted.append(WorkerExchange(self.run).admit(pack(message), launch.job))
        self.run.interrupt()


def test_a_worker_that_calls_at_once_is_part_of_its_job(tmp_path: Path) -> None:
    """It would exit if it were not known yet, and its start would fail."""
    launcher = EagerLauncher(tmp_path / "launcher")
    schedule = parse_schedule("0:1", 1)
    run = ElasticRun(["true"], schedule, slots=1, directory=tmp_path, launcher=launcher)
    launcher.run = run
    run.run()
    assert [admitted.worker.name for admitted in launcher.admitted] == [f"{NODE}/0"]


#: modules of the extra [serve] that neither the base nor torch installs
SERVE = ("sqlalchemy", "alembic", "fastapi", "starlette", "uvicorn", "sse_starlette", "psutil",
         "prometheus_client", "cryptography", "pynvml")  # fmt: skip
#: python runs it first, in the controller, the supervisor and the workers alike
NOT_INSTALLED = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {SERVE}:
            raise ModuleNotFoundError(f"{{name}} belongs to [serve]", name=name)

sys.meta_path.insert(0, Missing())
"""


def python(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As if only [train] were installed."""
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def run(tmp_path: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "train.py"
    path.write_text(script)
    return python(tmp_path, "-c", MAIN, "run", *options, "--", sys.executable, str(path))


@pytest.mark.parametrize("module", SERVE)
def test_modules_of_the_service_are_missing_in_these_tests(tmp_path: Path, module: str) -> None:
    found = python(tmp_path, "-c", f"import {module}")
    assert f"{module} belongs to [serve]" in found.stderr


def test_a_job_is_run_by_its_schedule(tmp_path: Path) -> None:
    found = run(tmp_path, SCRIPT, "--slots", "2", "--exact", "--schedule", "0:1,6:2,18:1")
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "epoch 0: 72 of 96 samples here, 2 workers",
        "epoch 1: 72 of 96 samples here, 1 workers",
        "epoch 2: 96 of 96 samples here, 1 workers",
    ]
    changes = [line for line in found.stderr.splitlines() if " workers, pause " in line]
    assert [line.split(",")[0] for line in changes] == [
        "step 6: 1 -> 2 workers",
        "step 18: 2 -> 1 workers",
    ]


def test_a_script_that_fails_is_told(tmp_path: Path) -> None:
    found = run(tmp_path, "raise SystemExit(3)")
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "ones: the job did not finish: exit code 3"


def test_a_script_that_never_joins_is_told_what_it_lacks(tmp_path: Path) -> None:
    found = run(tmp_path, "print('hello')")
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].endswith("its epochs: does it call ones.join?")


def test_gpus_are_refused_in_one_line_where_there_are_none(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def ones_run(*options: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-c", MAIN, "run", *options, "--", sys.executable, str(script)]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)

    done = ones_run("--gpus", "2")
    assert done.returncode == 1
    assert done.stderr == (
        "ones: --gpus 2: no GPU was found: no NVIDIA driver responds (on CPUs: --slots 2)\n"
    )
    both = ones_run("--gpus", "2", "--slots", "2")
    assert both.returncode == 2
    assert "exclude each other" in both.stderr


def test_sigterm_ends_the_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(600)"
    )
    words = [
        "run",
        "--dir",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        str(tmp_path / "train.py"),
    ]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *words], cwd=tmp_path)
    wait_for((tmp_path / "begun").exists)
    assert len(alive_below(tmp_path)) > 1  # the command itself, and what it started
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM
    wait_for(lambda: not alive_below(tmp_path), "workers are left")
