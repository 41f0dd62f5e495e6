"""`ones paper readings`: a row for each reading, and the figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ones.cli import main
from ones.lab.paper import claims, readings


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["ones", "paper", "readings", *words])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


def test_it_prints_a_row_for_each_reading_and_draws_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = {name: readings.READINGS[name] for name in ("default", "jobs stay")}
    monkeypatch.setattr(readings, "READINGS", few)
    monkeypatch.setattr(claims, "RIVALS", ("tiresias",))
    words = ["--seeds", "1", "--jobs", "3", "--processes", "1", "--out", str(tmp_path / "out")]
    assert run(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["reading"] for row in found["rows"]] == list(few)
    assert all(row["n"] == 1 and row["mean_jct"] > 0 for row in found["rows"])
    assert (tmp_path / "out" / found["figure"]).exists()
    assert run(monkeypatch, *words) == 0
    again = capsys.readouterr()
    assert "the paper" in again.out
    assert "3 of them already stored" in again.err


def test_a_count_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--seeds", "0") == 2
    assert "--seeds: 0 is not at least 1" in capsys.readouterr().err
