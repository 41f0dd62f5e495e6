"""`tools/check-commit-subject`, run as git runs it: with the file of the message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check-commit-subject"


def check(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message, encoding="utf-8")
    return subprocess.run(
        [sys.executable, SCRIPT, file], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "message",
    [
        "ones: fix update rule of the epoch mode\n",
        "x" * 72 + "\n\n" + "A body may have longer lines than its subject. " * 3,
        "# a comment of git\n\nsim: count pauses\n# Changes to be committed:\n",
        f"fixup! {'x' * 72}\n",
    ],
)
def test_a_short_subject_is_accepted(tmp_path: Path, message: str) -> None:
    checked = check(tmp_path, message)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "the subject is empty"),
        ("# only a comment\n\n  \n", "the subject is empty"),
        ("x" * 73, "the subject has 73 characters, the maximum is 72"),
        ("sim: count pauses.\n", "the subject ends with a full stop"),
    ],
)
def test_another_subject_is_refused_with_its_problem(
    tmp_path: Path, message: str, problem: str
) -> None:
    checked = check(tmp_path, message)
    assert checked.returncode == 1
    assert problem in checked.stderr


def test_the_file_must_be_named() -> None:
    checked = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert checked.returncode == 2
    assert "usage:" in checked.stderr
