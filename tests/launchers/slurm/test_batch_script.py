"""The batch script."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ones.errors import InvalidSettingError
from ones.launchers.slurm.batch_script import BatchScript


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"nodes": 0}, "nodes: 0 is not at least 1"),
        ({"lead": 1}, "lead: 1 is not at least 10"),
        ({"time": "soon"}, "time: 'soon' is not a time"),
    ],
)
def test_a_script_that_cannot_work_is_refused(wrong: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidSettingError, match=words):
        replace(BatchScript(), **wrong).text()  # type: ignore[arg-type]


def test_a_script_is_quoted_and_takes_further_options() -> None:
    text = BatchScript(state="/a b", options=("--partition=gpu", "--account=x")).text()
    assert "#SBATCH --partition=gpu\n#SBATCH --account=x\n" in text
    assert "exec ones slurm serve --dir '/a b' --slots 1" in text


def test_the_command_prints_the_script(tmp_path: Path) -> None:
    ones = str(Path(sys.executable).with_name("ones"))
    done = subprocess.run(
        [ones, "slurm", "script", "--nodes", "4", "--gpus-per-node", "4", "--time", "12:00:00",
         "--dir", str(tmp_path), "--option=--partition=gpu"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n#SBATCH --time=12:00:00" in done.stdout
    assert f"exec {ones} slurm serve --dir {tmp_path} --lead 300" in done.stdout
    assert json.dumps("--partition=gpu")[1:-1] in done.stdout
