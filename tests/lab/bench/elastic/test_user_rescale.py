"""`ones bench rescale --unix`: what a row says of two sets of pauses."""

from __future__ import annotations

import pytest

from docs.reference.results import RESCALE_ROW_KEYS, USER_ROW_KEYS
from ones.lab.bench.elastic.medians import difference_of, median_of
from ones.lab.bench.elastic.rescale import MeasuredPauses, RescaleModel, Table, rows_of
from ones.lab.bench.elastic.step_traces import Pause
from ones.lab.bench.elastic.user_rescale import LAUNCHD, intervals_of

PARTS = dict.fromkeys(("agree", "connect", "state", "resume", "background_connect"), 0.0)


def test_a_row_has_both_medians_and_their_difference_with_intervals() -> None:
    table: Table = {}
    for mechanism, seconds in (("", (0.001, 0.002, 0.003)), (LAUNCHD, (0.002, 0.004, 0.009))):
        for each in seconds:
            pause = Pause(1, 2, each, until_stepped=each, at=0.0, main=each)
            measured = table.setdefault((mechanism, 1, 2), MeasuredPauses())
            measured.add(pause, {} if mechanism else PARTS)
    (row,) = rows_of(1.0, RescaleModel.of(1), table, 0.5)
    found = intervals_of(table, row["change"])
    assert (found["median_ms"], found["rival_median_ms"], found["more_ms"]) == (2.0, 4.0, 2.0)
    assert found["more_ms_low"] < 2.0 < found["more_ms_high"]
    names = {key.removesuffix("_low").removesuffix("_high") for key in (*row, *found)}
    assert names <= {*RESCALE_ROW_KEYS, *USER_ROW_KEYS}


def test_intervals_of_equal_measurements_contain_no_difference() -> None:
    same = [1.0, 2.0, 3.0, 4.0, 5.0]
    found = difference_of(same, same)
    assert found.low < 0.0 == found.middle < found.high
    assert median_of(same).middle == pytest.approx(3.0)
