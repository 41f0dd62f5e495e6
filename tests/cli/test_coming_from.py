"""docs/coming-from.md: every command in it does what the table says, at least without an error."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import Ones, ones
from tests.control.inside import Inside

__all__ = ["ones"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"


def rows() -> Iterator[tuple[str, str]]:
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 2 and line.startswith("| ") and not cells[0].startswith("---"):
            for command in re.findall(r"`(ones [^`]+)`", cells[1]):
                yield cells[0], command


ROWS = list(rows())


def test_the_page_has_the_habits_of_every_tool() -> None:
    said = " ".join(habit for habit, _ in ROWS)
    for tool in ("squeue", "sbatch", "scancel", "scontrol", "sacct", "sky", "dstack", "det"):
        assert f"{tool} " in said, tool


def interrupted(seconds: float) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def job(served: Inside, tmp_path: Path) -> str:
    """A job that waits; and the files that the commands name."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#ONES -t 2:00:00\ntrue\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "task.yaml").write_text("command: ['true']\n")
    served.submit(gpus=2, command=["sleep", "1000"], name="hog")
    return str(served.submit(gpus=1, command=["true"], name="name").json()["id"])


@pytest.mark.parametrize("habit", ROWS, ids=lambda row: f"{row[0]}: {row[1]}".replace("`", ""))
def test_a_habit_has_its_command(
    served: Inside,
    job: str,
    ones: Ones,
    habit: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = served.http.get("/api/me").json()["name"]
    words = [
        word.replace("JOB", job).replace("USER", me).replace("chat.example", "127.0.0.1:1")
        for word in shlex.split(habit[1])[1:]
    ]
    if words[0] == "release":
        ones("hold", job)
    if "wait" in words or "--wait" in words:
        ones("cancel", "--name", "hog", "--yes")
    if words == ["ps", "-w"]:
        monkeypatch.setattr("time.sleep", interrupted)  # as by Ctrl-C
    done = ones(*words)
    assert done.code == 0, done.err
    assert "no job matches" not in done.err
    if words[:2] == ["cluster", "drain"]:
        ones("cluster", "undrain", words[2])
