"""Contract suite of launchers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ones.launchers import Launcher, SupportsKeptReports
from ones.testing.launcher_harness import LauncherHarness, start_controller
from ones.testing.launcher_processes import ProcessPromises
from ones.testing.processes import alive_below, is_alive, wait_for


class LauncherContract(ProcessPromises):
    """Override `make`: it returns a launcher with at least two slots on its first node and its
    files below `root`. All nodes are on this machine and start workers under ones-exec.

    Every launcher reports each start and exit once, stops the whole process tree, lets workers
    outlive the controller, finds them after a restart, and keeps their output.
    """

    def make(self, root: Path) -> Launcher:
        raise NotImplementedError

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[LauncherHarness]:
        subject = LauncherHarness(tmp_path / "root", self.make)
        subject.root.mkdir()
        subject.open()
        yield subject
        subject.launcher.close(kill=True)
        wait_for(lambda: not alive_below(subject.files), f"left: {alive_below(subject.files)}")
        assert "ones-launcher" not in [thread.name for thread in threading.enumerate()]

    def test_a_new_controller_finds_what_lives_and_what_ended_meanwhile(
        self, subject: LauncherHarness
    ) -> None:
        subject.run("echo up; sleep 100", "1-a")
        end = subject.root / "end"
        subject.run(f"while [ ! -e {end} ]; do sleep 0.05; done; exit 5", "1-b", slot=1)
        pid = subject.wait_started("1-a")
        subject.wait_started("1-b")
        subject.launcher.close(kill=False)
        assert is_alive(pid), "workers continue without a controller"
        end.touch()
        wait_for(lambda: list(subject.files.glob("**/live/*/*/1-b/exit.json")))
        subject.events.clear()
        subject.open()
        wait_for(lambda: subject.launcher.running()["1-a"].pid == pid)
        # a controller on another machine may see the end shortly after the file exists
        wait_for(lambda: subject.launcher.running()["1-b"].exit is not None)
        found = subject.launcher.running()
        assert found["1-a"].alive
        assert found["1-b"].exit is not None
        assert found["1-b"].exit.code == 5
        assert found["1-b"].slots == (subject.launcher.slots()[1].id,)
        subject.launcher.stop("1-a", 5.0)
        assert subject.wait_exit("1-a").cause == "stopped"

    def test_a_controller_that_is_killed_leaves_the_workers_alone(
        self, subject: LauncherHarness
    ) -> None:
        """A real controller process is killed by SIGKILL."""
        subject.launcher.close(kill=False)
        end = subject.root / "end"
        command = f"echo up; while [ ! -e {end} ]; do sleep 0.05; done; exit 6"
        controller = start_controller(type(self), subject.root, command, subject.user)
        assert controller.stdout is not None
        assert any(b"Started" in line for line in controller.stdout)
        controller.kill()
        controller.wait()
        controller.stdout.close()
        end.touch()
        subject.open()
        assert subject.wait_found_dead().code == 6

    def test_workers_die_with_their_ones_exec_and_the_loss_is_reported(
        self, subject: LauncherHarness
    ) -> None:
        subject.run("setsid sleep 1000 & echo up; sleep 1001", "1-a")
        subject.run("sleep 1002", "1-b", slot=1)
        subject.wait_output(b"up")
        subject.wait_started("1-b")
        for pid in subject.supervisors():
            os.kill(pid, signal.SIGKILL)
        for id in ("1-a", "1-b"):
            exit = subject.wait_exit(id)
            assert (exit.code, exit.cause) == (None, "lost")
            assert "ones-exec" in exit.describe()
        # a new ones-exec may have come, to write the records
        left = set(alive_below(subject.files)) - set(subject.supervisors())
        assert not left, "also the grandchildren"
        subject.run("exit 0", "2-a")
        assert subject.wait_exit("2-a").code == 0, "the job can be started again"

    def test_a_loss_while_no_controller_was_there_is_found_by_the_next(
        self, subject: LauncherHarness
    ) -> None:
        subject.run("setsid sleep 1000 & echo up; sleep 1001")
        subject.wait_output(b"up")
        subject.launcher.close(kill=False)
        for pid in subject.supervisors():
            os.kill(pid, signal.SIGKILL)
        subject.events.clear()
        subject.open()
        exit = subject.wait_found_dead()
        assert exit.cause == "lost"
        wait_for(lambda: not alive_below(subject.files))

    def test_output_is_read_by_offset(self, subject: LauncherHarness) -> None:
        self._skip_if_done_by_local_launcher()
        subject.run("printf 0123456789; sleep 0.1; printf abcde")
        subject.wait_exit()
        read = subject.launcher.logs
        assert read("job", "1-a", 0, 4).data == b"0123"
        assert read("job", "1-a", 4, 100).data == b"456789abcde"
        assert read("job", "1-a", -3, 100).data == b"cde"
        last = read("job", "1-a", 15, 100)
        assert (last.data, last.next, last.end) == (b"", 15, 15)
        assert read("job", "9-z", 0, 10).data == b""

    def test_a_script_that_prints_without_end_fills_no_disk(self, subject: LauncherHarness) -> None:
        size = 100 << 20
        subject.run(f"head -c {size} /dev/zero | tr '\\0' x; echo the end")
        subject.wait_exit()
        for directory in subject.files.glob("**/live/*/*/1-a"):
            assert sum(p.stat().st_size for p in directory.glob("out.*")) <= 64 << 20
        chunk = subject.launcher.logs("job", "1-a", 0, 10)
        assert chunk.offset > 0, "the beginning is dropped, and the offset shows it"
        assert chunk.end == size + 8
        assert subject.launcher.logs("job", "1-a", -8, 100).data == b"the end\n"

    def test_reports_that_a_worker_stored_are_read_once_its_exit_is_reported(
        self, subject: LauncherHarness
    ) -> None:
        subject.run("printf '{}' > $ONES_RUN_DIR/reports.jsonl; exit 3")
        subject.run("exit 0", "1-b", slot=1)
        assert subject.wait_exit().code == 3
        assert isinstance(subject.launcher, SupportsKeptReports)
        assert subject.launcher.reports("job", "1-a") == b"{}"
        subject.wait_exit("1-b")
        assert subject.launcher.reports("job", "1-b") == b""
        assert subject.launcher.reports("other", "1-a") == b""
        subject.reopen()
        assert isinstance(subject.launcher, SupportsKeptReports)
        assert subject.launcher.reports("job", "1-a") == b"{}"

    def test_output_of_a_forgotten_job_stays(self, subject: LauncherHarness) -> None:
        subject.run("echo kept")
        subject.wait_exit()
        subject.launcher.forget("job")
        wait_for(lambda: not subject.launcher.running())
        wait_for(lambda: not alive_below(subject.files))
        assert subject.output() == b"kept\n"
        (process,) = subject.launcher.history("job")
        assert process.exit is not None
        subject.reopen()
        assert not subject.launcher.running()
        assert subject.output() == b"kept\n"

    def test_history_has_all_launches_in_order(self, subject: LauncherHarness) -> None:
        for id in ("2-z", "1-a", "3-m"):
            subject.run("true", id)
            subject.wait_exit(id)
        assert [p.id for p in subject.launcher.history("job")] == ["2-z", "1-a", "3-m"]
