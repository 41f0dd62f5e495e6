"""Promises of launchers about processes: start, stop, environment, process trees."""

from __future__ import annotations

import signal
from typing import ClassVar

import pytest

from ones.launchers import Exited, Launch, Started, SupportsPrepare
from ones.testing.launcher_harness import ENV, LauncherHarness
from ones.testing.processes import alive_below, command_of, is_alive, wait_for


class ProcessPromises:
    #: True: nodes run a LocalLauncher; tests of its own behaviour are skipped
    uses_local_launcher: ClassVar[bool] = False

    def _skip_if_done_by_local_launcher(self) -> None:
        if self.uses_local_launcher:
            pytest.skip("covered by the tests of LocalLauncher, which runs on the nodes")

    def test_an_exit_code_arrives_once_and_with_the_output(self, subject: LauncherHarness) -> None:
        subject.run("echo out; echo err >&2; exit 7")
        exit = subject.wait_exit()
        assert (exit.code, exit.signal, exit.cause) == (7, None, "exited")
        assert sorted(subject.output().split()) == [b"err", b"out"]
        process = subject.launcher.running()["1-a"]
        assert not process.alive
        assert process.job == "job"
        assert process.slots == (subject.launcher.slots()[0].id,)
        reported = [e for e in subject.events if isinstance(e, Started | Exited)]
        assert [type(e).__name__ for e in reported] == ["Started", "Exited"]

    def test_a_death_by_signal_is_reported_as_such(self, subject: LauncherHarness) -> None:
        self._skip_if_done_by_local_launcher()
        subject.run("kill -SEGV $$")
        exit = subject.wait_exit()
        assert (exit.code, exit.signal) == (None, signal.SIGSEGV)
        assert exit.describe() == "killed by signal 11"

    def test_a_program_that_does_not_exist_has_an_exit_record_that_says_so(
        self, subject: LauncherHarness
    ) -> None:
        slot = subject.launcher.slots()[0].id
        for id, argv, cwd in (("1-a", "/no/such/python", "/"), ("1-b", "sh", "/no/such/place")):
            subject.launcher.launch(
                Launch(
                    id=id,
                    job="job",
                    slots=(slot,),
                    argv=(argv,),
                    cwd=cwd,
                    env=ENV,
                    user=subject.user,
                )
            )
        exit = subject.wait_exit("1-a")
        assert (exit.code, exit.cause) == (None, "not-started")
        assert exit.describe() == "/no/such/python: no such file or directory"
        assert subject.wait_exit("1-b").describe() == "/no/such/place: no such file or directory"

    def test_a_slot_that_is_not_here_is_reported(self, subject: LauncherHarness) -> None:
        subject.launcher.launch(
            Launch(
                id="1-a",
                job="job",
                slots=("n9/9",),
                argv=("true",),
                cwd="/",
                env=ENV,
                user=subject.user,
            )
        )
        assert subject.wait_exit().describe() == "slot n9/9 is not here"
        subject.run("exit 0", "1-b")
        assert subject.wait_exit("1-b").code == 0

    def test_the_same_launch_twice_is_one_process(self, subject: LauncherHarness) -> None:
        launch = subject.run("echo x; sleep 0.2")
        subject.launcher.launch(launch)
        subject.wait_exit()
        subject.launcher.launch(launch)
        subject.reopen()
        subject.launcher.launch(launch)
        subject.run("true", "2-b")
        subject.wait_exit("2-b")
        assert subject.output() == b"x\n"
        assert not subject.exits()

    def test_prepare_starts_an_ones_exec_and_no_launch(self, subject: LauncherHarness) -> None:
        """The job has an ones-exec before its first worker."""
        launcher = subject.launcher
        assert isinstance(launcher, SupportsPrepare)
        slot = launcher.slots()[0].id
        like = Launch(
            id="1-x", job="job", slots=(slot,), argv=("sh",), cwd="/", env=ENV, user=subject.user
        )
        launcher.prepare(like)
        locks = "**/live/*/*/lock"
        wait_for(lambda: list(subject.files.glob(locks)), "nothing was prepared")
        assert not launcher.running()
        subject.run("exit 3", "1-a")
        assert subject.wait_exit().code == 3

    def test_workers_of_one_job_are_independent(self, subject: LauncherHarness) -> None:
        self._skip_if_done_by_local_launcher()
        subject.run("sleep 100", "1-a")
        subject.run("exit 3", "1-b", slot=1)
        subject.run("sleep 100", "1-c", job="other", slot=1)
        assert subject.wait_exit("1-b").code == 3
        subject.wait_started("1-a")
        subject.launcher.stop("1-a", 5.0)
        subject.wait_exit("1-a")
        assert subject.launcher.running()["1-c"].alive

    def test_stop_asks_first_and_the_worker_may_save_its_work(
        self, subject: LauncherHarness
    ) -> None:
        subject.run("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
        subject.wait_output(b"up")
        subject.launcher.stop("1-a", 20.0)
        exit = subject.wait_exit()
        assert (exit.code, exit.cause) == (0, "stopped")
        assert b"saved" in subject.output()

    def test_stop_kills_the_whole_process_tree_after_the_grace(
        self, subject: LauncherHarness
    ) -> None:
        subject.python(
            """
            import os, signal, subprocess, sys, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            subprocess.Popen(["setsid", "sleep", "1000"])            # a session of its own
            tree = "setsid sh -c 'trap \\"\\" TERM; sleep 1001 & sleep 1002' &"
            subprocess.Popen(tree, shell=True)
            if os.fork() == 0:                                        # no exec, and its own session
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                time.sleep(1000)
            print("up", flush=True)
            time.sleep(1000)
            """
        )
        subject.wait_output(b"up")
        wait_for(lambda: len(alive_below(subject.files)) >= 6)
        family = alive_below(subject.files)
        subject.launcher.stop("1-a", 0.3)
        exit = subject.wait_exit()
        assert (exit.signal, exit.cause) == (signal.SIGKILL, "stopped")
        supervisors = set(subject.supervisors())
        assert not [pid for pid in family if is_alive(pid) and pid not in supervisors]

    def test_children_that_a_worker_leaves_end_before_its_slot_is_free(
        self, subject: LauncherHarness
    ) -> None:
        self._skip_if_done_by_local_launcher()
        subject.run("setsid sleep 1000 & sleep 1001 & (trap '' TERM; sleep 1002) & exit 4")
        assert subject.wait_exit().code == 4
        left = set(alive_below(subject.files)) - set(subject.supervisors())
        assert not left

    def test_a_process_of_the_job_stays_until_its_last_worker_has_left(
        self, subject: LauncherHarness
    ) -> None:
        """For example the rendezvous store: the first worker starts it, and all workers need it."""
        self._skip_if_done_by_local_launcher()
        subject.run("ONES_OF_JOB=1 setsid sleep 1003 & echo up; trap '' TERM; sleep 1004", "1-a")
        subject.run("sleep 1005", "1-b", slot=1)
        subject.wait_output(b"up")
        subject.wait_started("1-b")

        def store() -> list[int]:
            return [p for p in alive_below(subject.files) if b"1003" in command_of(p)]

        wait_for(store)
        subject.launcher.stop("1-a", 0.1)
        subject.wait_exit("1-a")
        assert store()
        subject.launcher.stop("1-b", 5.0)
        subject.wait_exit("1-b")
        wait_for(lambda: not store())

    def test_stop_of_what_is_not_there_is_no_error(self, subject: LauncherHarness) -> None:
        subject.launcher.stop("9-z", 1.0)
        subject.run("exit 0")
        subject.wait_exit()
        subject.launcher.stop("1-a", 1.0)
        subject.run("exit 0", "1-b")
        assert subject.wait_exit("1-b").code == 0
        assert len(subject.exits()) == 1

    def test_a_worker_sees_its_own_environment_and_nothing_of_the_service(
        self, subject: LauncherHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SERVICE_SECRET", "hidden")
        subject.reopen()
        subject.run("env")
        subject.wait_exit()
        seen = dict(line.split("=", 1) for line in subject.output().decode().splitlines())
        assert "SERVICE_SECRET" not in seen
        assert seen["PYTHONUNBUFFERED"] == "1"
        assert int(seen["OMP_NUM_THREADS"]) >= 1
        assert seen["CUDA_VISIBLE_DEVICES"] == ""
        assert seen["ONES_RUN_DIR"].endswith("/1-a")
        assert seen["ONES_RUN_DIR"].startswith(seen["ONES_JOB_DIR"])

    def test_odd_names_of_jobs_are_no_paths(self, subject: LauncherHarness) -> None:
        subject.run("echo here", job="../../x y")
        subject.wait_exit()
        assert subject.output(job="../../x y") == b"here\n"
        assert not (subject.root.parent / "x y").exists()
