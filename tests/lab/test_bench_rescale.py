"""`ones bench rescale` and `ones bench overhead`: what they compute, and that they measure."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.reference.results import OVERHEAD_ROW_KEYS, RESCALE_ROW_KEYS
from ones.lab import bench_overhead, bench_rescale
from ones.lab.bench_moments import Step, Trace, pause_of_restart, pauses_in_place, read_trace
from ones.lab.bench_overhead import more_percent
from ones.lab.bench_rescale import paper_sizes


def trace(rank: int, *steps: tuple[int, int, float, float]) -> Trace:
    return Trace([Step(w, n, begin, end, rank) for w, n, begin, end in steps], rank=rank)


def test_the_longest_pause_of_those_who_stay_counts() -> None:
    stays = trace(0, (2, 1, 0.0, 1.0), (4, 2, 1.5, 2.0))
    slower = trace(1, (2, 1, 0.0, 1.1), (4, 2, 1.9, 2.2))
    newcomers = [trace(n, (4, 2, 1.9, 2.5)) for n in (2, 3)]
    (pause,) = pauses_in_place([stays, slower, *newcomers])
    assert (pause.before, pause.after) == (2, 4)
    assert pause.seconds == pytest.approx(0.8)
    assert pause.main == pytest.approx(0.5)
    assert pause.until_stepped == pytest.approx(2.5 - 1.1)


def test_steps_that_took_longer_while_a_change_was_prepared_are_added_up() -> None:
    ends = [1.0, 2.0, 3.0, 4.0, 5.5, 7.0, 8.25]  # usually a second each
    steps = [(1, n, end - 0.9, end) for n, end in enumerate(ends, 1)]
    alone = trace(0, (4, 0, 0.0, 0.1), *steps, (2, 8, 8.3, 9.0))
    change = next(p for p in pauses_in_place([alone]) if p.after == 2)
    assert change.slowed == pytest.approx(0.5 + 0.5 + 0.25)


def test_a_change_that_not_all_have_written_does_not_count_yet() -> None:
    stays = trace(0, (2, 1, 0.0, 1.0), (4, 2, 1.5, 2.0))
    assert pauses_in_place([stays, trace(1, (2, 1, 0.0, 1.1))]) == []


def test_a_restart_lasts_until_the_ranks_that_were_there_may_begin() -> None:
    old = [trace(0, (1, 7, 0.0, 1.0), (1, 8, 1.0, 2.0))]
    new = [trace(0, (2, 7, 5.0, 6.0)), trace(1, (2, 7, 5.5, 6.5))]
    pause = pause_of_restart(old, new)
    assert pause.seconds == 3.0
    assert pause.until_stepped == 4.5
    assert pause.lost == 2  # 7 and 8 are made again


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    step = Step(workers=1, step=1, begin=0.0, end=1.0, rank=0)
    line = json.dumps(asdict(step))
    file = tmp_path / "a.jsonl"
    file.write_text(line + "\n" + line[:20])
    assert read_trace(file).steps == [step]


def test_the_sizes_of_the_paper() -> None:
    sizes = paper_sizes()
    assert (min(sizes), max(sizes)) == (25.0, 537.0)


def test_an_interval_of_paired_ratios() -> None:
    rival = np.array([1.0, 2.0, 4.0, 8.0] * 10)
    noise = np.tile([1.0, 1.1], 20)
    middle, low, high = more_percent(rival * noise, rival)
    assert low <= middle <= high
    assert low >= 0.0
    assert high <= 10.0 + 1e-9


def _plain(row: dict[str, Any]) -> set[str]:
    return {key.removesuffix("_low").removesuffix("_high") for key in row}


@pytest.mark.slow
def test_a_tiny_job_is_paused_and_restarted() -> None:
    rows = bench_rescale.bench_rescale([0.3], repeats=1, chain=(1, 2, 1))
    assert {(row["change"], row["rival"]) for row in rows} == {
        (change, rival) for change in ("1->2", "2->1") for rival in ("checkpoint", "zygote")
    }
    for row in rows:
        assert row["pause_ms"] > 0
        assert row["n"] == 1
        assert row["rival_steps_lost"] == 0
        assert _plain(row) == set(RESCALE_ROW_KEYS)


@pytest.mark.soak
def test_a_pause_is_shorter_than_a_restart_and_its_parts_add_up() -> None:
    for row in bench_rescale.bench_rescale([0.3], repeats=1, chain=(1, 2, 1)):
        parts = ("agree_ms", "connect_ms", "state_ms", "resume_ms")
        assert 0 < row["pause_ms"] < row["rival_pause_ms"]
        assert row["ratio"] > 1
        assert sum(row[part] for part in parts) == pytest.approx(row["pause_ms"], abs=50)


@pytest.mark.slow
def test_steps_of_two_workers_are_compared_with_ddp() -> None:
    (row,) = bench_overhead.bench_overhead(["cnn"], [2], starts=2, pairs=2, steps=3)
    assert row["n"] == 4
    assert row["step_ms"] > 0
    assert row["rival_step_ms"] > 0
    assert row["overhead_percent_low"] <= row["overhead_percent"] <= row["overhead_percent_high"]
    assert row["elastic_us_per_step"] > 0
    assert _plain(row) == set(OVERHEAD_ROW_KEYS)


@pytest.mark.soak
def test_elastic_steps_cost_less_than_ten_milliseconds_more() -> None:
    (row,) = bench_overhead.bench_overhead(["cnn"], [2], starts=2, pairs=2, steps=3)
    assert 0 < row["elastic_us_per_step"] < 10_000
