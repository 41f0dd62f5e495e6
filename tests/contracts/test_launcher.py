"""What every launcher promises, tried with real processes.

A launcher is tested by adding a way to make it to `MAKERS`. Its nodes may keep their run
directories anywhere below the root; all its nodes are on this machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ones.exec import Exit
from ones.launchers import (
    Exited,
    KeepingReports,
    Launch,
    Launcher,
    LauncherEvent,
    Preparing,
    Started,
)
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from tests.processes import alive_below, command_of, is_alive, wait_for
from tests.rays import RayCluster
from tests.slurm import slurm_launcher

ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@dataclass(frozen=True)
class Maker:
    """How a launcher with at least two slots on its first node is made below a directory, and the
    fixture that starts what it runs on."""

    make: Callable[[Path], Launcher]
    needs: str = ""
    is_slow: bool = False


@dataclass
class World:
    """A launcher, and what it has said."""

    root: Path
    name: str
    launcher: Launcher = field(init=False)
    events: list[LauncherEvent] = field(default_factory=list)

    def open(self) -> None:
        self.launcher = MAKERS[self.name].make(self.root)
        self.launcher.open(self.events.append)

    def reopen(self) -> None:
        """As a controller that died and was started again: the workers were left alone."""
        self.launcher.close(kill=False)
        self.events.clear()
        self.open()

    def run(
        self, command: str, id: str = "1-a", *, job: str = "job", grace: float = 5.0, slot: int = 0
    ) -> Launch:
        launch = Launch(
            id=id,
            job=job,
            slots=(self.launcher.slots()[slot].id,),
            argv=("sh", "-c", command),
            cwd=str(self.root),
            env=ENV,
            grace_seconds=grace,
        )
        self.launcher.launch(launch)
        return launch

    def python(self, source: str, id: str = "1-a", *, grace: float = 5.0) -> None:
        script = self.root / f"{id}.py"
        script.write_text(textwrap.dedent(source))
        self.run(f"exec {sys.executable} {script}", id, grace=grace)

    def started(self, id: str = "1-a") -> int:
        found = [e.pid for e in self.events if isinstance(e, Started) and e.id == id]
        return found[0] if found else 0

    def wait_started(self, id: str = "1-a") -> int:
        return wait_for(lambda: self.started(id), f"{id} did not start: {self.events}")

    def exits(self, id: str = "1-a") -> list[Exit]:
        return [e.exit for e in self.events if isinstance(e, Exited) and e.id == id]

    def wait_exit(self, id: str = "1-a") -> Exit:
        return wait_for(lambda: self.exits(id), f"{id} did not exit: {self.events}")[0]

    def wait_found_dead(self, id: str = "1-a") -> Exit:
        """As a new controller learns of it: not by an event."""
        wait_for(lambda: self.launcher.running()[id].exit)
        exit = self.launcher.running()[id].exit
        assert exit is not None
        return exit

    def output(self, id: str = "1-a", job: str = "job") -> bytes:
        return self.launcher.logs(job, id, 0, 1 << 20).data

    def wait_output(self, text: bytes, id: str = "1-a") -> None:
        wait_for(lambda: text in self.output(id), f"no {text!r} in the output of {id}")

    def managers(self) -> list[int]:
        """The processes that own the workers on a node."""
        return [int(lock.read_text()) for lock in self.root.glob("**/live/*/*/lock")]


def local(root: Path) -> Launcher:
    return LocalLauncher(root, cpu_slots("n0", 2), idle_seconds=2.0)


def ray(root: Path) -> Launcher:
    from ones.launchers.ray import RayLauncher, RayOptions

    options = RayOptions(
        address=os.environ["ONES_TEST_RAY"],
        instance=root.parent.name,
        slots="contract",
        node_dir=str(root / "nodes"),
        lease_seconds=20.0,
    )
    return RayLauncher(root / "controller", options)


MAKERS: dict[str, Maker] = {
    "local": Maker(local),
    "ray": Maker(ray, needs="ray_of_contract", is_slow=True),
    "slurm": Maker(slurm_launcher, needs="slurm_allocation", is_slow=True),
}


@pytest.fixture(scope="session")
def ray_of_contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two slots on the head of a Ray cluster, which is given by its address to other processes."""
    given = os.environ.get("ONES_TEST_RAY")
    if given:
        yield
        return
    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    cluster.start("--slots", "2", "--resource", "contract")
    os.environ["ONES_TEST_RAY"] = cluster.address
    yield
    del os.environ["ONES_TEST_RAY"]
    cluster.stop()


PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if maker.is_slow else [])
    for name, maker in MAKERS.items()
]
#: what is done by the LocalLauncher on the node, or by the mirror, which has tests of its own
of_the_node = pytest.mark.parametrize(
    "world", [p for p in PARAMETERS if p.values != ("ray",)], indirect=True
)


@pytest.fixture(params=PARAMETERS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    if MAKERS[request.param].needs:
        request.getfixturevalue(MAKERS[request.param].needs)
    world = World(tmp_path / "root", request.param)
    world.root.mkdir()
    world.open()
    yield world
    world.launcher.close(kill=True)
    wait_for(lambda: not alive_below(world.root), f"left behind: {alive_below(world.root)}")
    names = [t.name for t in threading.enumerate()]
    assert "ones-launcher" not in names


def test_an_exit_code_arrives_once_and_with_the_output(world: World) -> None:
    world.run("echo out; echo err >&2; exit 7")
    exit = world.wait_exit()
    assert (exit.code, exit.signal, exit.cause) == (7, None, "exited")
    assert sorted(world.output().split()) == [b"err", b"out"]
    process = world.launcher.running()["1-a"]
    assert not process.alive
    assert process.job == "job"
    assert process.slots == (world.launcher.slots()[0].id,)
    heard = [e for e in world.events if isinstance(e, Started | Exited)]
    assert [type(e).__name__ for e in heard] == ["Started", "Exited"]


@of_the_node
def test_a_death_by_signal_is_told_as_such(world: World) -> None:
    world.run("kill -SEGV $$")
    exit = world.wait_exit()
    assert (exit.code, exit.signal) == (None, signal.SIGSEGV)
    assert exit.describe() == "killed by signal 11"


def test_a_program_that_does_not_exist_has_an_exit_record_that_says_so(world: World) -> None:
    slot = world.launcher.slots()[0].id
    for id, argv, cwd in (("1-a", "/no/such/python", "/"), ("1-b", "sh", "/no/such/place")):
        world.launcher.launch(
            Launch(id=id, job="job", slots=(slot,), argv=(argv,), cwd=cwd, env=ENV)
        )
    exit = world.wait_exit("1-a")
    assert (exit.code, exit.cause) == (None, "not-started")
    assert exit.describe() == "/no/such/python: no such file or directory"
    assert world.wait_exit("1-b").describe() == "/no/such/place: no such file or directory"


def test_a_slot_that_is_not_here_is_said(world: World) -> None:
    world.launcher.launch(
        Launch(id="1-a", job="job", slots=("n9/9",), argv=("true",), cwd="/", env=ENV)
    )
    assert world.wait_exit().describe() == "slot n9/9 is not here"
    world.run("exit 0", "1-b")
    assert world.wait_exit("1-b").code == 0


def test_the_same_launch_twice_is_one_process(world: World) -> None:
    launch = world.run("echo x; sleep 0.2")
    world.launcher.launch(launch)
    world.wait_exit()
    world.launcher.launch(launch)
    world.reopen()
    world.launcher.launch(launch)
    world.run("true", "2-b")
    world.wait_exit("2-b")
    assert world.output() == b"x\n"
    assert not world.exits()


def test_what_may_follow_is_prepared_and_binds_nobody(world: World) -> None:
    """A manager of the job is there before its first worker; no launch has been."""
    launcher = world.launcher
    assert isinstance(launcher, Preparing)
    slot = launcher.slots()[0].id
    like = Launch(id="1-x", job="job", slots=(slot,), argv=("sh",), cwd="/", env=ENV)
    launcher.prepare(like)
    locks = "**/live/*/*/lock"
    wait_for(lambda: list(world.root.glob(locks)), "nobody prepares anything")
    assert not launcher.running()
    world.run("exit 3", "1-a")
    assert world.wait_exit().code == 3


@of_the_node
def test_workers_of_one_job_go_their_own_ways(world: World) -> None:
    world.run("sleep 100", "1-a")
    world.run("exit 3", "1-b", slot=1)
    world.run("sleep 100", "1-c", job="other", slot=1)
    assert world.wait_exit("1-b").code == 3
    world.wait_started("1-a")
    world.launcher.stop("1-a", 5.0)
    world.wait_exit("1-a")
    assert world.launcher.running()["1-c"].alive


def test_stop_asks_first_and_the_worker_may_save_its_work(world: World) -> None:
    world.run("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    world.wait_output(b"up")
    world.launcher.stop("1-a", 20.0)
    exit = world.wait_exit()
    assert (exit.code, exit.cause) == (0, "stopped")
    assert b"saved" in world.output()


def test_stop_kills_those_who_do_not_listen_with_all_their_offspring(world: World) -> None:
    world.python(
        """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["setsid", "sleep", "1000"])            # a session of its own
        subprocess.Popen("setsid sh -c 'trap \\"\\" TERM; sleep 1001 & sleep 1002' &", shell=True)
        if os.fork() == 0:                                        # no exec, and its own session
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        print("up", flush=True)
        time.sleep(1000)
        """
    )
    world.wait_output(b"up")
    wait_for(lambda: len(alive_below(world.root)) >= 6)
    family = alive_below(world.root)
    world.launcher.stop("1-a", 0.3)
    exit = world.wait_exit()
    assert (exit.signal, exit.cause) == (signal.SIGKILL, "stopped")
    manager = set(world.managers())
    assert not [pid for pid in family if is_alive(pid) and pid not in manager]


@of_the_node
def test_children_that_a_worker_leaves_behind_go_before_its_slot_is_free(world: World) -> None:
    world.run("setsid sleep 1000 & sleep 1001 & (trap '' TERM; sleep 1002) & exit 4")
    assert world.wait_exit().code == 4
    left = set(alive_below(world.root)) - set(world.managers())
    assert not left


@of_the_node
def test_a_process_of_the_job_stays_until_its_last_worker_has_left(world: World) -> None:
    """As the job's rendezvous store, which the first worker starts and all need."""
    world.run("ONES_OF_JOB=1 setsid sleep 1003 & echo up; trap '' TERM; sleep 1004", "1-a")
    world.run("sleep 1005", "1-b", slot=1)
    world.wait_output(b"up")
    world.wait_started("1-b")

    def store() -> list[int]:
        return [p for p in alive_below(world.root) if b"1003" in command_of(p)]

    wait_for(store)
    world.launcher.stop("1-a", 0.1)
    world.wait_exit("1-a")
    assert store()
    world.launcher.stop("1-b", 5.0)
    world.wait_exit("1-b")
    wait_for(lambda: not store())


def test_stop_of_what_is_not_there_is_no_error(world: World) -> None:
    world.launcher.stop("9-z", 1.0)
    world.run("exit 0")
    world.wait_exit()
    world.launcher.stop("1-a", 1.0)
    world.run("exit 0", "1-b")
    assert world.wait_exit("1-b").code == 0
    assert len(world.exits()) == 1


def test_a_new_controller_finds_what_lives_and_what_ended_meanwhile(world: World) -> None:
    world.run("echo up; sleep 100", "1-a")
    end = world.root / "end"
    world.run(f"while [ ! -e {end} ]; do sleep 0.05; done; exit 5", "1-b", slot=1)
    pid = world.wait_started("1-a")
    world.wait_started("1-b")
    world.launcher.close(kill=False)
    assert is_alive(pid), "the workers go on without a controller"
    end.touch()
    wait_for(lambda: list(world.root.glob("**/live/*/*/1-b/exit.json")))
    world.events.clear()
    world.open()
    wait_for(lambda: world.launcher.running()["1-a"].pid == pid)
    # who watches on another machine may see the end a moment after the file is there
    wait_for(lambda: world.launcher.running()["1-b"].exit is not None)
    found = world.launcher.running()
    assert found["1-a"].alive
    assert found["1-b"].exit is not None
    assert found["1-b"].exit.code == 5
    assert found["1-b"].slots == (world.launcher.slots()[1].id,)
    world.launcher.stop("1-a", 5.0)
    assert world.wait_exit("1-a").cause == "stopped"


def test_a_controller_that_is_killed_leaves_the_workers_alone(world: World) -> None:
    """A real one, by SIGKILL, while it watches."""
    world.launcher.close(kill=False)
    end = world.root / "end"
    command = f"echo up; while [ ! -e {end} ]; do sleep 0.05; done; exit 6"
    code = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from ones.launchers import Launch
        from tests.contracts.test_launcher import MAKERS, ENV
        launcher = MAKERS[{world.name!r}].make(Path({str(world.root)!r}))
        launcher.open(lambda event: print(event, flush=True))
        launcher.launch(Launch(id="1-a", job="job", slots=(launcher.slots()[0].id,),
            argv=("sh", "-c", {command!r}), cwd="/", env=ENV))
        time.sleep(1000)
        """
    )
    controller = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert controller.stdout is not None
    assert any(b"Started" in line for line in controller.stdout)
    controller.kill()
    controller.wait()
    controller.stdout.close()
    end.touch()
    world.open()
    assert world.wait_found_dead().code == 6


def test_when_the_manager_is_killed_its_workers_die_and_the_loss_is_told(world: World) -> None:
    world.run("setsid sleep 1000 & echo up; sleep 1001", "1-a")
    world.run("sleep 1002", "1-b", slot=1)
    world.wait_output(b"up")
    world.wait_started("1-b")
    for pid in world.managers():
        os.kill(pid, signal.SIGKILL)
    for id in ("1-a", "1-b"):
        exit = world.wait_exit(id)
        assert (exit.code, exit.cause) == (None, "lost")
        assert "ones-exec" in exit.describe()
    assert not alive_below(world.root), "also the grandchildren"
    world.run("exit 0", "2-a")
    assert world.wait_exit("2-a").code == 0, "the job can be started again"


def test_a_loss_while_no_controller_was_there_is_found_by_the_next(world: World) -> None:
    world.run("setsid sleep 1000 & echo up; sleep 1001")
    world.wait_output(b"up")
    world.launcher.close(kill=False)
    for pid in world.managers():
        os.kill(pid, signal.SIGKILL)
    world.events.clear()
    world.open()
    exit = world.wait_found_dead()
    assert exit.cause == "lost"
    wait_for(lambda: not alive_below(world.root))


@of_the_node
def test_after_a_reboot_it_says_what_died(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    if world.name != "local":
        pytest.skip("the environment of its node managers is not ours to change")
    world.run("sleep 1000")
    pid = world.wait_started()
    world.launcher.close(kill=False)
    for manager in world.managers():
        os.kill(manager, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    monkeypatch.setenv("ONES_BOOT_ID", "another")
    world.open()
    exit = world.wait_found_dead()
    assert (exit.cause, exit.describe()) == ("reboot", "the machine was restarted")


@of_the_node
def test_output_is_read_by_offset(world: World) -> None:
    world.run("printf 0123456789; sleep 0.1; printf abcde")
    world.wait_exit()
    read = world.launcher.logs
    assert read("job", "1-a", 0, 4).data == b"0123"
    assert read("job", "1-a", 4, 100).data == b"456789abcde"
    assert read("job", "1-a", -3, 100).data == b"cde"
    last = read("job", "1-a", 15, 100)
    assert (last.data, last.next, last.end) == (b"", 15, 15)
    assert read("job", "9-z", 0, 10).data == b""


def test_a_script_that_prints_without_end_fills_no_disk(world: World) -> None:
    size = 100 << 20
    world.run(f"head -c {size} /dev/zero | tr '\\0' x; echo the end")
    world.wait_exit()
    for directory in world.root.glob("**/live/*/*/1-a"):
        assert sum(p.stat().st_size for p in directory.glob("out.*")) <= 64 << 20
    chunk = world.launcher.logs("job", "1-a", 0, 10)
    assert chunk.offset > 0, "the beginning is gone, and the offset says so"
    assert chunk.end == size + 8
    assert world.launcher.logs("job", "1-a", -8, 100).data == b"the end\n"


def test_reports_that_a_worker_left_are_read_once_its_exit_is_told(world: World) -> None:
    world.run("printf '{}' > $ONES_RUN_DIR/reports.jsonl; exit 3")
    world.run("exit 0", "1-b", slot=1)
    assert world.wait_exit().code == 3
    assert isinstance(world.launcher, KeepingReports)
    assert world.launcher.reports("job", "1-a") == b"{}"
    world.wait_exit("1-b")
    assert world.launcher.reports("job", "1-b") == b""
    assert world.launcher.reports("nobody", "1-a") == b""
    world.reopen()
    assert isinstance(world.launcher, KeepingReports)
    assert world.launcher.reports("job", "1-a") == b"{}"


def test_output_of_a_forgotten_job_stays(world: World) -> None:
    world.run("echo kept")
    world.wait_exit()
    world.launcher.forget("job")
    wait_for(lambda: not world.launcher.running())
    wait_for(lambda: not alive_below(world.root))
    assert world.output() == b"kept\n"
    (process,) = world.launcher.history("job")
    assert process.exit is not None
    world.reopen()
    assert not world.launcher.running()
    assert world.output() == b"kept\n"


def test_history_has_all_launches_in_order(world: World) -> None:
    for id in ("2-z", "1-a", "3-m"):
        world.run("true", id)
        world.wait_exit(id)
    assert [p.id for p in world.launcher.history("job")] == ["2-z", "1-a", "3-m"]


def test_a_worker_sees_its_own_environment_and_nothing_of_the_service(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_SECRET", "hidden")
    world.reopen()
    world.run("env")
    world.wait_exit()
    seen = dict(line.split("=", 1) for line in world.output().decode().splitlines())
    assert "SERVICE_SECRET" not in seen
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert int(seen["OMP_NUM_THREADS"]) >= 1
    assert seen["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["ONES_RUN_DIR"].endswith("/1-a")
    assert seen["ONES_RUN_DIR"].startswith(seen["ONES_JOB_DIR"])


def test_odd_names_of_jobs_are_no_paths(world: World) -> None:
    world.run("echo here", job="../../x y")
    world.wait_exit()
    assert world.output(job="../../x y") == b"here\n"
    assert not (world.root.parent / "x y").exists()
