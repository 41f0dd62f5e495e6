"""Health tells the truth: stuck threads, late writes, a full disk, a policy that was replaced."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from ones.control.health import Health, HealthLimits
from ones.control.heartbeat import Heartbeat
from ones.control.store import Entry, Store, Waiting


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def health(
    tmp_path: Path, *beats: Heartbeat, unwritten: float = 0.0, limits: HealthLimits | None = None
) -> list[str]:
    chosen = limits or HealthLimits(min_free_mb=0.0)
    busy = [(beat.name, beat.busy_seconds()) for beat in beats]
    return Health(chosen, lambda: busy, lambda: unwritten, tmp_path).problems()


def test_a_thread_that_waits_for_work_is_well_however_long(tmp_path: Path) -> None:
    hands = Hands()
    beat = Heartbeat("scheduler", hands)
    hands.now = 1e6
    assert health(tmp_path, beat) == []
    beat.working()
    hands.now += 29.0
    assert health(tmp_path, beat) == []
    hands.now += 2.0
    assert health(tmp_path, beat) == ["the scheduler thread is stuck: busy with one step for 31 s"]
    beat.waiting()
    assert health(tmp_path, beat) == []


def test_writes_that_do_not_arrive_are_told_with_their_age(tmp_path: Path) -> None:
    assert health(tmp_path, unwritten=14.0) == []
    (problem,) = health(tmp_path, unwritten=16.0)
    assert problem == "the oldest event has waited 16 s to be written to the database"


def test_a_disk_that_is_nearly_full_is_told_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 9 * 10**8, 10**8))
    (problem,) = health(tmp_path, limits=HealthLimits(min_free_mb=200.0))
    assert "100 MB free, less than service.min_free_mb 200" in problem
    assert health(tmp_path, limits=HealthLimits(min_free_mb=99.0)) == []


def test_the_writer_says_how_long_the_oldest_write_waits(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    entered, go_on = threading.Event(), threading.Event()

    def slow(connection: object) -> None:
        entered.set()
        go_on.wait(60)

    store.write(operations=[slow])
    assert entered.wait(60)
    assert store.heartbeat.busy_seconds() > 0.0
    assert store.unwritten_seconds() > 0.0
    go_on.set()
    store.close()
    assert (store.heartbeat.busy_seconds(), store.unwritten_seconds()) == (0.0, 0.0)


def test_an_entry_that_the_database_refuses_does_not_end_the_writer(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")
    store.write([Entry(1, 0.0, "Woke", "{}")])
    store.write([Entry(1, 0.0, "Woke", "{}")])  # the same number again
    store.flush()
    assert store.refused.startswith("the run log does not take entry 1: ")
    store.write([Entry(2, 0.0, "Woke", "{}")])
    store.flush()
    assert store.last_number() == 2
    store.close()


def test_an_acknowledgement_that_raises_does_not_end_the_writer(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/ones.db")

    def broken(problem: Exception | None) -> None:
        raise RuntimeError("of one reader")

    told = Waiting()
    store.write([Entry(1, 0.0, "Woke", "{}")], done=broken)
    store.write(done=told)
    told.wait(60)
    assert store.last_number() == 1
    store.close()
