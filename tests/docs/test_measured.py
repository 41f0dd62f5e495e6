"""Tables of the docs from results of benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

from docs.bench_tables import markdown
from docs.measured import replace_table, result_json
from ones.lab.paper.measurements import HOME
from tests.bench_results import PAUSES, pause, result


def test_a_table_has_a_line_for_each_change_with_its_rivals_beside() -> None:
    lines = markdown([result("rescale", PAUSES)]).splitlines()
    assert "| checkpoint ms (ratio) | zygote ms (ratio) |" in lines[0]
    assert lines[2].startswith("| 25.4 MB | 1->2 | 2 | 40 (20 to 80) |")
    assert "| 8,000 (200x) | 300 (7.5x) | 0.5 |" in lines[2]
    assert "| 26,000 (65x) |  | 0.5 |" in lines[3]
    assert "2026-01-02 03:04 UTC at commit abc1234 on 2 cores" in lines[-1]
    assert lines[-3] == "Reached in every row."


def test_missed_goals_are_named() -> None:
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


def test_the_fidelity_table_has_errors_and_the_order() -> None:
    row = dict.fromkeys(
        ("n", "mean_jct_seconds", "simulated_mean_jct_seconds", "mean_job_error_percent",
         "max_job_error_percent", "rescales", "simulated_rescales", "preemptions", "restarts",
         "losses", "load_average"), 3,
    )  # fmt: skip
    texts = {"trace": "mixed", "runs": 1, "mean_jct_seconds_sd": None}
    rows = [
        {"case": "calibration", "restart_ms": 900.0},
        {"case": "ones, elastic", "policy": "ones", "mean_jct_error_percent": 4.2, **row, **texts},
        {"case": "order", "trace": "mixed", "n": 1, "pairs_in_order": 1,
         "live_order": ["ones", "fifo"], "simulated_order": ["ones", "fifo"]},
    ]  # fmt: skip
    lines = markdown([result("fidelity", rows)]).splitlines()
    assert lines[2].startswith("| mixed | ones, elastic | 1 | 3 | 3 | - | 3 | 4.2 |")
    assert lines[4].startswith("Order of `mixed`, live: ")
    assert "ones < fifo; simulated: ones < fifo (1 of 1 pairs alike)." in lines[4]
    told = markdown([result("control", [{"case": "idle", "policy": "ones", "memory_mb": 134.0}])])
    assert "| idle | memory mb 134.0 |" in told


def test_tables_of_the_docs_are_between_their_marks() -> None:
    pages = Path(__file__).parents[2] / "docs"
    for page, names in (
        ("rescaling.md", ("rescale", "paper-rescale", "overhead")),
        ("convergence.md", ("convergence",)),
        ("fidelity.md", ("fidelity",)),
        ("operations.md", ("control",)),
    ):
        text = (pages / page).read_text()
        for name in names:
            assert "\nnew\n" in replace_table(text, name, "new")
    # the table of convergence is the carried result's
    carried = json.loads((HOME / "convergence.json").read_text())
    assert markdown([carried]) in (pages / "convergence.md").read_text()
    assert result_json(carried) == (HOME / "convergence.json").read_text()
