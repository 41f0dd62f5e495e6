"""The band of readings: every reading can run, and its margins are those of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.lab.comparison.result_store import ResultStore
from ones.lab.comparison.results import records_of
from ones.lab.comparison.tasks import run_task
from ones.lab.paper import claims, readings
from ones.policies import create


def test_every_reading_is_one_that_the_policy_takes_and_they_differ() -> None:
    for settings in readings.READINGS.values():
        create("ones-paper", **settings)
    chosen = [tuple(sorted(settings.items())) for settings in readings.READINGS.values()]
    assert len(chosen) == len(set(chosen))


def test_linear_goodput_is_a_matter_of_the_simulator() -> None:
    plain, linear = (readings.cells([1], jobs=3, linear=flag) for flag in (False, True))
    assert [cell.label for cell in plain] == [cell.label for cell in linear]
    assert {cell.spec.physics.get("noise", 1.0) for cell in plain} == {1.0}
    assert {cell.spec.physics["noise"] for cell in linear} == {1e6}


def test_the_band_has_the_margins_of_each_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {name: readings.READINGS[name] for name in ("default", "jobs stay")}
    monkeypatch.setattr(readings, "READINGS", few)
    monkeypatch.setattr(claims, "RIVALS", ("tiresias",))
    store = ResultStore(tmp_path)
    for cell in readings.cells([1], jobs=3, linear=False):
        store.add(cell.key, cell.name, run_task(cell.task, cell.spec))
    records = records_of(readings.cells([1], jobs=3, linear=False), store)
    rows = readings.band(records)
    assert [row["reading"] for row in rows] == list(few)
    times = {record.cell.label: record.row["mean_jct"] for record in records}
    expected = 100 * (1 - times["ones-paper: default"] / times["tiresias"])
    assert rows[0]["tiresias"] == pytest.approx(expected, abs=0.01)
    assert readings.distance(rows[0]) == pytest.approx(abs(expected - 45.6), abs=0.01)
    found = readings.panel(records, tmp_path / "figures", linear=False)
    assert found is not None
    assert (tmp_path / "figures" / "readings.svg").exists()
    assert readings.panel([], tmp_path, linear=True) is None
