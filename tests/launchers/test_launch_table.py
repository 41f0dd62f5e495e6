"""The table of launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.exec.records import fenced, not_started
from ones.launchers import Exited, Launch, LaunchedProcess, LauncherEvent, Started
from ones.launchers.devices import cpu_slots
from ones.launchers.launch_table import LaunchTable
from ones.launchers.local import LocalLauncher
from tests import processes


def launch(id: str, job: str = "j") -> Launch:
    return Launch(id=id, job=job, slots=("n0/0",), argv=("true",), cwd="/", env={})


class Reported:
    def __init__(self) -> None:
        self.events: list[LauncherEvent] = []
        self.table = LaunchTable(self.events.append)


@pytest.fixture
def reported() -> Reported:
    return Reported()


def test_a_start_and_an_exit_are_reported_once(reported: Reported) -> None:
    assert reported.table.add(launch("1-a"))
    assert not reported.table.add(launch("1-a"))
    exit = fenced("gone")
    for _ in range(2):
        reported.table.started("1-a", 7)
    for _ in range(2):
        reported.table.exited("1-a", exit)
    assert reported.events == [Started("1-a", 7), Exited("1-a", exit)]
    process = LaunchedProcess(id="1-a", job="j", slots=("n0/0",), pid=7, exit=exit)
    assert reported.table.all() == {"1-a": process}


def test_an_exit_is_final_and_unknown_launches_are_ignored(reported: Reported) -> None:
    reported.table.add(launch("1-a"))
    first = not_started("no")
    reported.table.exited("1-a", first)
    reported.table.exited("1-a", fenced("gone"))
    reported.table.started("1-a", 7)
    reported.table.started("9-z", 8)
    reported.table.exited("9-z", first)
    reported.table.place("9-z", "n0")
    assert reported.events == [Exited("1-a", first)]
    assert reported.table.living("1-a") is None
    assert reported.table.get("9-z") is None


def test_a_job_is_forgotten_node_by_node(reported: Reported) -> None:
    for id, node in (("1-a", "n0"), ("1-b", "n1"), ("1-c", "")):
        reported.table.add(launch(id))
        if node:
            reported.table.place(id, node)
    reported.table.restore(LaunchedProcess(id="2-a", job="other", slots=(), node="n0"))
    assert reported.table.nodes_of("j") == {"n0", "n1", ""}
    assert [p.id for p in reported.table.living_on("n0")] == ["1-a", "2-a"]
    reported.table.forget("j", "n0")
    assert set(reported.table.all()) == {"1-b", "1-c", "2-a"}
    reported.table.forget("j", "")
    assert set(reported.table.all()) == {"1-b", "2-a"}
    reported.table.forget("j")
    assert set(reported.table.all()) == {"2-a"}
    assert reported.events == []


def test_a_job_without_any_started_launch_is_forgotten(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path, cpu_slots("n9", 1))
    launcher.open(lambda event: None)
    try:
        launcher.launch(launch("1-a"))  # on a slot that is not here
        launcher.forget("j")
        processes.wait_for(lambda: not launcher.running())
        assert launcher.history("j") == []
    finally:
        launcher.close(kill=True)
