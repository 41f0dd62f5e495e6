"""Pauses from recorded steps."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ones.lab.bench.elastic.step_traces import (
    ProcessTrace,
    StepRecord,
    pause_of_restart,
    pauses_in_place,
    read_trace,
)


def trace(rank: int, *steps: tuple[int, int, float, float]) -> ProcessTrace:
    return ProcessTrace(
        [StepRecord(w, n, begin, end, rank) for w, n, begin, end in steps], rank=rank
    )


def test_the_longest_pause_of_staying_workers_counts() -> None:
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
    step = StepRecord(workers=1, step=1, begin=0.0, end=1.0, rank=0)
    line = json.dumps(asdict(step))
    file = tmp_path / "a.jsonl"
    file.write_text(line + "\n" + line[:20])
    assert read_trace(file).steps == [step]
