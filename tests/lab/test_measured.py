"""Measured training takes the place of simulated panels, and fills the tables of the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs.measured import renewed, written
from ones.errors import InvalidFileError
from ones.lab.bench_tables import markdown
from ones.lab.paper import trained
from ones.lab.paper.evaluation import _training
from ones.lab.paper.measured import HOME, measurements


def pause(size: float, change: str, rival: str, ours: float, theirs: float) -> dict[str, Any]:
    parts = ("agree", "connect", "state", "resume", "background_connect", "background_feed")
    return {
        "case": f"{size:g} MB {change}", "parameter_mb": size, "change": change, "n": 2,
        "pause_ms": ours, "pause_ms_low": ours / 2, "pause_ms_high": 2 * ours,
        **{f"{part}_ms": 1.0 for part in parts}, "slowed_ms": 3.0,
        "rival": rival, "rival_pause_ms": theirs, "ratio": theirs / ours, "load_average": 0.5,
    }  # fmt: skip


PAUSES = [
    pause(25.4, "1->2", "checkpoint", 40.0, 8000.0),
    pause(25.4, "1->2", "zygote", 40.0, 300.0),
    pause(537.0, "1->2", "checkpoint", 400.0, 26000.0),
]


def result(bench: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"bench": bench, "commit": "abc1234", "load_average": 0.3, "cores": 2,
            "measured_at": "2026-01-02 03:04 UTC", "rows": rows}  # fmt: skip


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
    carried = {"convergence": measurements()["convergence"]}
    panels = {panel.anchor: panel for panel in _training(carried, tmp_path)}
    assert list(panels) == ["speed", "accuracy", "sudden", "gradual", "overheads"]
    assert {a for a, panel in panels.items() if panel.assumption} == {"speed", "overheads"}
    for anchor in ("accuracy", "sudden", "gradual"):
        panel = panels[anchor]
        assert panel.measured == carried["convergence"].origin
        assert panel.verdict.agrees
        assert "measured on real training" in "".join(panel.html())
    nothing = {panel.anchor: panel.assumption for panel in _training({}, tmp_path)}
    assert nothing == dict.fromkeys(panels, True)


def test_sentences_on_growth_follow_the_numbers(tmp_path: Path) -> None:
    found = measurements()["convergence"]
    calm = [
        {**row, "peak_loss": 0.05, "ratio": 1.1} if row["figure"] == "jump" else row
        for row in found.rows
    ]
    sudden, gradual = trained.growth(type(found)(calm, "here"), tmp_path)
    assert sudden.verdict.agrees is False
    assert gradual.verdict.agrees
    diverged = [
        {**row, "peak_loss": None, "peak_loss_high": None, "ratio": None}
        if row["case"] == "x16 at once"
        else row
        for row in found.rows
    ]
    sudden, _ = trained.growth(type(found)(diverged, "here"), tmp_path)
    assert sudden.verdict.agrees
    assert "infinity" in sudden.ours


def test_pauses_are_told_in_seconds_by_size(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(result("rescale", PAUSES)))
    panel = trained.overheads(measurements([file])["rescale"], tmp_path)
    assert "Elastic: 0.040 to 0.40 s. Checkpoint: 8.0 to 26.0 s, at least 65 times" in panel.ours
    assert panel.verdict.agrees
    assert (tmp_path / "overheads.png").stat().st_size > 5000


def test_a_table_has_a_line_for_each_change_with_its_rivals_beside() -> None:
    lines = markdown([result("rescale", PAUSES)]).splitlines()
    assert "| checkpoint ms (ratio) | zygote ms (ratio) |" in lines[0]
    assert lines[2].startswith("| 25.4 MB | 1->2 | 2 | 40 (20 to 80) |")
    assert "| 8,000 (200x) | 300 (7.5x) | 0.5 |" in lines[2]
    assert "| 26,000 (65x) |  | 0.5 |" in lines[3]
    assert "2026-01-02 03:04 UTC at commit abc1234 on 2 cores" in lines[-1]
    assert lines[-3] == "Reached in every row."


def test_what_was_missed_is_named() -> None:
    slow = [pause(50.0, "1->2", "checkpoint", 100.0, 2900.0), pause(400.0, "1->2", "zygote", 9, 20)]
    told = markdown([result("rescale", [*PAUSES, *slow])])
    assert "Missed: 50 MB 1->2 against checkpoint (29x), 400 MB 1->2 against zygote (2.2" in told
    step = {
        "model": "cnn", "workers": 2, "n": 60, "step_ms": 6.2, "rival_step_ms": 6.1,
        "elastic_us_per_step": 80.0,
        **{f"{what}overhead_percent{end}": 2.0 for what in ("", "wall_") for end in ("", "_low")},
        "overhead_percent_high": 2.9, "wall_overhead_percent_high": 9.0,
    }  # fmt: skip
    four = {**step, "workers": 4, "overhead_percent_high": 8.0}
    assert "Reached by every model at 2 workers." in markdown([result("overhead", [step, four])])
    over = {**step, "overhead_percent_high": 3.1}
    assert "Missed at 2 workers: cnn (+3.1 %)." in markdown([result("overhead", [over])])


def test_what_was_compared_with_life_is_told_with_its_order() -> None:
    row = dict.fromkeys(
        ("n", "mean_jct_seconds", "simulated_mean_jct_seconds", "mean_job_error_percent",
         "max_job_error_percent", "rescales", "simulated_rescales", "preemptions", "restarts",
         "losses", "load_average"), 3,
    )  # fmt: skip
    rows = [
        {"case": "calibration", "restart_ms": 900.0},
        {"case": "ones, elastic", "policy": "ones", "mean_jct_error_percent": 4.2, **row},
        {"case": "order", "n": 1, "pairs_in_order": 1, "live_order": ["ones", "fifo"],
         "simulated_order": ["ones", "fifo"]},
    ]  # fmt: skip
    lines = markdown([result("fidelity", rows)]).splitlines()
    assert lines[2].startswith("| ones, elastic | 3 | 3 | 3 | 4.2 |")
    assert "ones < fifo; simulated: ones < fifo (1 of 1 pairs alike)." in lines[4]
    told = markdown([result("control", [{"case": "idle", "policy": "ones", "memory_mb": 134.0}])])
    assert "| idle | memory mb 134.0 |" in told


def test_tables_of_the_docs_are_between_their_marks() -> None:
    pages = HOME.parents[4] / "docs"
    for page, names in (
        ("rescaling.md", ("rescale", "paper-rescale", "overhead")),
        ("convergence.md", ("convergence",)),
        ("fidelity.md", ("fidelity",)),
        ("operations.md", ("control",)),
    ):
        text = (pages / page).read_text()
        for name in names:
            assert "\nnew\n" in renewed(text, name, "new")
    # the table of convergence is the carried result's
    carried = json.loads((HOME / "convergence.json").read_text())
    assert markdown([carried]) in (pages / "convergence.md").read_text()
    assert written(carried) == (HOME / "convergence.json").read_text()
