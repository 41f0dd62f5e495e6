"""`ones demo` with the real service and real training; however it ends, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ones import extras
from ones.apps.demo import JOBS, demo
from ones.errors import UserError, WorldError
from ones.lab import installation
from tests.processes import PATIENCE, alive_below, is_alive, wait_for

ONES = str(Path(sys.executable).with_name("ones"))


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(tmp_path), "ONES_URL": "http://127.0.0.1:9"}
    return subprocess.Popen(
        [ONES, "demo", *words],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip


def controllers(tmp_path: Path) -> list[int]:
    found = []
    for path in tmp_path.glob("ones-demo-*/controller.json"):
        found.append(json.loads(path.read_text())["pid"])
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path) as process:
        (controller,) = wait_for(lambda: controllers(tmp_path))
        if number is signal.SIGINT:  # once with a worker, which takes a while
            wait_for(lambda: alive_below(tmp_path))
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert err.endswith("ones: interrupted\n"), err
    assert out == ""
    assert not list(tmp_path.iterdir())
    assert not alive_below(tmp_path)
    assert not is_alive(controller)


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    with start(tmp_path, "--json") as process:
        out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, err
    assert "/login?code=" in err
    told: dict[str, Any] = json.loads(out)
    assert len(told["jobs"]) == len(JOBS)
    assert {job["state"] for job in told["jobs"]} <= {"finished", "converged"}, told["jobs"]
    assert told["live"]["finished"] == len(JOBS)
    assert told["live"]["rescales"] > 0, "jobs grow and shrink"
    assert told["live"]["mean_jct"] == pytest.approx(
        sum(job["queue_seconds"] + job["run_seconds"] for job in told["jobs"]) / len(JOBS), abs=0.1
    )
    for policy in ("ones", "fifo"):
        assert told["simulated"][policy]["finished"] == len(JOBS)
        assert told["simulated"][policy]["jobs"] == len(JOBS)
    assert told["simulated"]["fifo"]["rescales"] == 0
    assert not list(tmp_path.iterdir())
    assert not alive_below(tmp_path)


def no_client(url: str, token: str) -> Any:  # noqa: ANN401
    raise AssertionError("it must not come so far")


def test_what_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda n: None if n == "torch" else find_spec(n))
    with pytest.raises(WorldError) as refused:
        demo(no_client, lambda *seen: None)
    expected = "ones demo needs the extra 'train': pip install 'ones[train]'"
    assert str(refused.value) == expected


def test_without_examples_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "_EXAMPLE_DIRECTORIES", (tmp_path,))
    with pytest.raises(WorldError, match="example scripts are not there"):
        demo(no_client, lambda *seen: None)


def test_a_directory_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is not an empty directory"):
        demo(no_client, lambda *seen: None, keep=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_its_scripts_are_there_and_elastic() -> None:
    from ones.cli.scripts import look_at

    for job in JOBS:
        path = installation.examples() / job.script
        assert look_at([sys.executable, str(path)], path.parent, {}).elastic is True
    assert [job.at for job in JOBS] == sorted(job.at for job in JOBS)
    assert JOBS[-1].at <= 60
