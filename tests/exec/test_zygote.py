"""Workers that are forked from a preloaded process are workers like any other."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ones.exec import Exit
from ones.launchers import Exited, Launch, LauncherEvent, Started, SupportsPrepare
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from tests.processes import PATIENCE, alive_below, children_of, command_of, is_alive, wait_for

ENV = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
SLOW = PATIENCE  # torch is imported on a machine that may be busy

SCRIPT = """
import os, subprocess, sys, time
print("torch" in sys.modules, os.environ["ONES_RUN_DIR"].endswith(sys.argv[1]), flush=True)
subprocess.Popen(["setsid", "sleep", "1000"])
if sys.argv[2] == "wait":
    time.sleep(1000)
sys.exit(int(sys.argv[2]))
"""


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[LauncherEvent] = []
        self.launcher = LocalLauncher(root, cpu_slots("n0", 2), idle_seconds=30.0)
        self.launcher.open(self.events.append)
        self.script = root / "train.py"
        self.script.write_text(SCRIPT)

    def run(self, id: str, *args: str, python: str = sys.executable, job: str = "job") -> None:
        self.launcher.launch(self.launch(id, *args, python=python, job=job))

    def launch(self, id: str, *args: str, python: str = sys.executable, job: str = "job") -> Launch:
        return Launch(
            id=id,
            job=job,
            slots=("n0/0",),
            argv=(python, str(self.script), id, *args),
            cwd=str(self.root),
            env=ENV,
            zygote=True,
        )

    def exit(self, id: str) -> Exit:
        found = wait_for(
            lambda: [e.exit for e in self.events if isinstance(e, Exited) and e.id == id],
            f"no exit of {id}: {self.events}",
            SLOW,
        )
        return found[0]

    def pid(self, id: str) -> int:
        return wait_for(
            lambda: [e.pid for e in self.events if isinstance(e, Started) and e.id == id],
            f"no start of {id}: {self.events}",
            SLOW,
        )[0]

    def output(self, id: str) -> bytes:
        return self.launcher.logs("job", id, 0, 10_000).data

    def zygote(self) -> int:
        """Its forks have its command line too, and are below it."""
        found = {p for p in alive_below(self.root) if b"ones.train.zygote" in command_of(p)}
        return min(found - {child for pid in found for child in children_of(pid)})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("zygotes"))
    yield world
    world.launcher.close(kill=True)
    wait_for(lambda: not alive_below(world.root), f"left behind: {alive_below(world.root)}")


def test_it_has_torch_already_and_its_exit_code_is_its_own(world: World) -> None:
    world.run("1-a", "7")
    exit = world.exit("1-a")
    assert (exit.code, exit.cause) == (7, "exited"), world.output("1-a")
    assert world.output("1-a") == b"True True\n"


def test_stop_takes_its_children_with_it_and_leaves_the_zygote(world: World) -> None:
    world.run("1-b", "wait")
    pid = world.pid("1-b")
    wait_for(lambda: world.output("1-b"))
    world.launcher.stop("1-b", 5.0)
    exit = world.exit("1-b")
    assert (exit.signal, exit.cause) == (signal.SIGTERM, "stopped")
    assert not is_alive(pid)
    assert is_alive(world.zygote())
    assert not [p for p in alive_below(world.root) if b"sleep" in command_of(p)]


# once the worker was never started, and the cause is not found, so not in CI
@pytest.mark.soak
def test_an_interpreter_without_ones_starts_workers_plainly(world: World) -> None:
    world.run("1-c", "3", python="/usr/bin/python3")
    exit = world.exit("1-c")
    if exit.cause == "not-started":
        pytest.skip("no other python here")
    assert exit.code == 3
    assert world.output("1-c").startswith(b"False True")


def test_a_zygote_that_is_killed_costs_no_worker(world: World) -> None:
    world.run("1-d", "wait")
    pid = world.pid("1-d")
    wait_for(lambda: world.output("1-d"))
    os.kill(world.zygote(), signal.SIGKILL)
    world.run("1-e", "0")
    assert world.exit("1-e").code == 0
    assert is_alive(pid)
    world.launcher.stop("1-d", 5.0)
    assert world.exit("1-d").signal == signal.SIGTERM


def test_ones_exec_killed_takes_them_and_its_zygote_with_it(world: World) -> None:
    world.run("1-f", "wait")
    pid = world.pid("1-f")
    wait_for(lambda: world.output("1-f"))
    for lock in world.root.glob("live/*/*/lock"):
        os.kill(int(lock.read_text()), signal.SIGKILL)
    assert world.exit("1-f").cause == "lost"
    assert not is_alive(pid)
    wait_for(lambda: not alive_below(world.root))


def test_one_that_was_prepared_is_there_before_the_first_worker_and_is_used(world: World) -> None:
    assert isinstance(world.launcher, SupportsPrepare)
    world.launcher.prepare(world.launch("1-g", "wait", job="next"))
    below = world.root / "live" / "next"
    wait_for(lambda: list(below.glob("*/zygote.sock")), "it does not come up", SLOW)
    assert not list(below.glob("*/*/spec.json")), "no worker was launched"
    assert not world.launcher.history("next")
    before = alive_below(below)
    world.run("1-g", "wait", job="next")
    pid = world.pid("1-g")
    forks = [child for zygote in before for child in children_of(zygote)]
    assert pid in forks, "it came from the one that was there"
    world.launcher.stop("1-g", 0.0)
    world.exit("1-g")


def test_workers_die_with_ones_exec_without_any_cleanup(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("1-h", "wait")
    pid = world.pid("1-h")
    world.launcher.close(kill=False)
    (lock,) = world.root.glob("live/*/*/lock")
    os.kill(int(lock.read_text()), signal.SIGKILL)
    wait_for(lambda: not is_alive(pid), "it lives on")
    world.launcher = LocalLauncher(tmp_path, cpu_slots("n0", 2))
    world.launcher.open(world.events.append)  # what it had started itself is cleared up
    world.launcher.close(kill=True)
    wait_for(lambda: not alive_below(world.root))


def test_a_fork_runs_and_imports_from_its_snapshot(world: World) -> None:
    tree, code = world.root / "tree", world.root / "live" / "snap" / "n0" / "code"
    for directory, text in ((tree, "edited"), (code, "as submitted")):
        (directory / "lib").mkdir(parents=True)
        (directory / "lib" / "mine.py").write_text(f"text = {text!r}")
        (directory / "run.py").write_text("import mine, os; print(mine.text, os.getcwd())")
    launch = world.launch("s-a", job="snap")
    snapshot = {"ONES_SNAPSHOT": "unpacked", "ONES_SNAPSHOT_ROOT": str(tree)}
    env = {**ENV, **snapshot, "ONES_SUBMIT_DIR": str(tree), "PYTHONPATH": f"{tree}/lib"}
    for id, is_forked in (("s-a", True), ("s-b", False)):
        world.launcher.launch(
            replace(launch, id=id, argv=(sys.executable, "run.py"), env=env, zygote=is_forked)
        )
        assert world.exit(id).code == 0
        output = world.launcher.logs("snap", id, 0, 10_000).data
        assert output.decode() == f"as submitted {code}\n"
