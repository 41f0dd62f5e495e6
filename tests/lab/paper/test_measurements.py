"""Measured training takes the place of simulated panels, and fills the tables of the docs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ones.errors import InvalidFileError
from ones.lab.paper import training_panels
from ones.lab.paper.evaluation import _training
from ones.lab.paper.measurements import measurements
from tests.bench_results import PAUSES, result


def test_the_package_carries_real_training() -> None:
    carried = measurements()["convergence"]
    assert "carried by the package" in carried.origin
    assert {row["figure"] for row in carried.rows} == {"workers", "jump"}
    assert min(row["n"] for row in carried.rows) >= 5


def test_a_file_takes_the_place_of_what_is_carried(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(result("rescale", PAUSES)))
    found = measurements([file])
    assert found["rescale"].rows == PAUSES
    assert "2026-01-02 03:04 UTC, commit abc1234, 2 CPU cores, load average 0.3" in (
        found["rescale"].origin
    )
    assert str(file) in found["rescale"].origin


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "is not what `ones bench convergence or rescale --json` prints"),
        (json.dumps(result("sim", PAUSES)), "is not what"),
        (json.dumps(result("rescale", [])), "is not what"),
        (json.dumps(result("rescale", [{"change": "1->2"}])), "lacks parameter_mb"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(InvalidFileError, match=words):
        measurements([file])


def test_measured_panels_say_so_and_the_rest_is_assumed(tmp_path: Path) -> None:
    carried = measurements()
    panels = {panel.anchor: panel for panel in _training(carried, tmp_path)}
    assert list(panels) == ["speed", "accuracy", "sudden", "gradual", "overheads"]
    assert {a for a, panel in panels.items() if panel.assumption} == {"speed"}
    for anchor in ("accuracy", "sudden", "gradual", "overheads"):
        panel = panels[anchor]
        assert (
            panel.measured == carried["rescale" if anchor == "overheads" else "convergence"].origin
        )
        assert panel.verdict.agrees or anchor == "overheads"
        assert "measured on real training" in "".join(panel.html())


def test_sentences_on_growth_follow_the_numbers(tmp_path: Path) -> None:
    found = measurements()["convergence"]
    calm = [
        {**row, "peak_loss": 0.05, "ratio": 1.1} if row["figure"] == "jump" else row
        for row in found.rows
    ]
    sudden, gradual = training_panels.growth(type(found)(calm, "here"), tmp_path)
    assert sudden.verdict.agrees is False
    assert gradual.verdict.agrees
    diverged = [
        {**row, "peak_loss": None, "peak_loss_high": None, "ratio": None}
        if row["case"] == "x16 at once"
        else row
        for row in found.rows
    ]
    sudden, _ = training_panels.growth(type(found)(diverged, "here"), tmp_path)
    assert sudden.verdict.agrees
    assert "infinity" in sudden.ours


def test_pauses_are_shown_in_seconds_by_size(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(result("rescale", PAUSES)))
    panel = training_panels.overheads(measurements([file])["rescale"], tmp_path)
    assert "Elastic: 0.040 to 0.40 s. Checkpoint: 8.0 to 26.0 s, at least 65 times" in panel.ours
    assert panel.verdict.agrees
    assert (tmp_path / "overheads.png").stat().st_size > 5000
