"""The thread of a launcher goes on, whatever fails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ones.launchers import Exited, Launch, LauncherEvent
from ones.launchers import local as local_module
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.run_dirs import RunDirs
from ones.launchers.threaded_launcher import TURN_SECONDS, ThreadedLauncher
from tests.processes import wait_for


class Turning(ThreadedLauncher):
    """A launcher with a loop that fails and a clock that is observed."""

    turns = 0

    def _turn(self) -> None:
        self.turns += 1
        self._work.run_all()
        if self.turns == 1:
            raise RecursionError
        time.sleep(0.001)

    def _is_done(self) -> bool:
        return True

    def _end(self) -> None:
        raise OSError("it does not matter")

    def _kill_all(self) -> None: ...

    def _launch(self, launch: Launch) -> None:
        raise KeyError(launch.id)

    def _prepare(self, launch: Launch) -> None: ...

    def _stop(self, id: str, grace: float) -> None:
        raise ValueError

    def _forget(self, job: str) -> None: ...


def test_a_loop_that_fails_turns_again_and_says_when_it_turned(tmp_path: Path) -> None:
    launcher, events = Turning(RunDirs(tmp_path)), list[LauncherEvent]()
    before = launcher.beat
    launcher._start_thread(events.append)
    wait_for(lambda: launcher.turns > 3)
    assert launcher.beat > before
    launcher.launch(Launch(id="1-a", job="j", slots=(), argv=("x",), cwd="/", env={}))
    (event,) = wait_for(lambda: list(events))
    assert isinstance(event, Exited)
    assert (event.exit.cause, event.exit.describe()) == ("not-started", "KeyError: '1-a'")
    launcher.close(kill=False)
    assert not launcher._thread.is_alive()


def test_an_idle_launcher_still_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert TURN_SECONDS <= 5.0
    monkeypatch.setattr(local_module, "TURN_SECONDS", 0.01)
    launcher = LocalLauncher(tmp_path, cpu_slots("n0", 2))
    launcher.open(lambda event: None)
    beats = set[float]()

    def many() -> bool:
        beats.add(launcher.beat)
        return len(beats) > 5

    wait_for(many)
    launcher.close(kill=True)
