"""What launchers are made of: the ledger, the thread's todo list, run directories, known nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from ones.exec import Spec
from ones.exec.records import write_record
from ones.launchers import Exited, Launch, LauncherEvent, Process, Slot, Started
from ones.launchers.devices import cpu_slots
from ones.launchers.exits import fenced, not_started
from ones.launchers.ledger import Ledger
from ones.launchers.local import LocalLauncher
from ones.launchers.loop import Todo, wait_for
from ones.launchers.nodes_file import KnownNode, NodesFile
from ones.launchers.run_dirs import RunDirs
from tests import processes


def launch(id: str, job: str = "j") -> Launch:
    return Launch(id=id, job=job, slots=("n0/0",), argv=("true",), cwd="/", env={})


class Told:
    def __init__(self) -> None:
        self.events: list[LauncherEvent] = []
        self.ledger = Ledger(self.events.append)


@pytest.fixture
def told() -> Told:
    return Told()


def test_a_start_and_an_exit_are_told_once(told: Told) -> None:
    assert told.ledger.add(launch("1-a"))
    assert not told.ledger.add(launch("1-a"))
    exit = fenced("gone")
    for _ in range(2):
        told.ledger.started("1-a", 7)
    for _ in range(2):
        told.ledger.exited("1-a", exit)
    assert told.events == [Started("1-a", 7), Exited("1-a", exit)]
    process = Process(id="1-a", job="j", slots=("n0/0",), pid=7, exit=exit)
    assert told.ledger.all() == {"1-a": process}


def test_an_exit_is_the_last_word_and_strangers_are_no_news(told: Told) -> None:
    told.ledger.add(launch("1-a"))
    first = not_started("no")
    told.ledger.exited("1-a", first)
    told.ledger.exited("1-a", fenced("gone"))
    told.ledger.started("1-a", 7)
    told.ledger.started("9-z", 8)
    told.ledger.exited("9-z", first)
    told.ledger.place("9-z", "n0")
    assert told.events == [Exited("1-a", first)]
    assert told.ledger.living("1-a") is None
    assert told.ledger.node_of("9-z") == ""


def test_a_job_is_forgotten_node_by_node(told: Told) -> None:
    for id, node in (("1-a", "n0"), ("1-b", "n1"), ("1-c", "")):
        told.ledger.add(launch(id))
        if node:
            told.ledger.place(id, node)
    told.ledger.find(Process(id="2-a", job="other", slots=()), "n0")
    assert told.ledger.nodes_of("j") == {"n0", "n1", ""}
    assert [p.id for p in told.ledger.living_on("n0")] == ["1-a", "2-a"]
    told.ledger.forget("j", "n0")
    assert set(told.ledger.all()) == {"1-b", "1-c", "2-a"}
    told.ledger.forget("j", "")
    assert set(told.ledger.all()) == {"1-b", "2-a"}
    told.ledger.forget("j")
    assert set(told.ledger.all()) == {"2-a"}
    assert told.events == []


@pytest.fixture
def todo() -> Iterator[Todo]:
    todo = Todo()
    yield todo
    todo.close()


def test_work_from_other_threads_wakes_and_is_done_in_order(todo: Todo) -> None:
    done: list[int] = []

    def ask() -> None:
        for number in range(100):
            todo.later(lambda number=number: done.append(number))  # type: ignore[misc]

    asks = threading.Thread(target=ask)
    asks.start()
    while len(done) < 100:
        wait_for([todo], [], None)  # for ever, if nobody wakes it
        todo.do_all()
    asks.join()
    assert done == list(range(100))


def test_work_for_a_thread_that_has_ended_is_no_error(todo: Todo) -> None:
    done: list[int] = []
    todo.close()
    todo.later(lambda: done.append(1))
    assert done == []


def test_more_rings_than_the_bell_holds_are_one(todo: Todo) -> None:
    done: list[int] = []
    for _ in range(100_000):
        todo.later(lambda: done.append(1))
    todo.do_all()
    assert len(done) == 100_000


def test_slots_and_launches_are_what_they_were(tmp_path: Path) -> None:
    slot = Slot(node="n0", index=1, kind="gpu", device="3", used_by=("x (pid 7)",), group="nvlink0")
    nodes = {"n0": KnownNode("7", [slot])}
    file = NodesFile(tmp_path)
    assert file.read() == {}
    file.write(nodes)
    assert file.read() == nodes
    (tmp_path / "nodes.json").write_text('{"n0": ["7", ')
    assert file.read() == {}
    plain = {**asdict(launch("1-a")), "slots": ["n0/0"], "argv": ["true"]}
    assert Launch.of(plain) == launch("1-a")


def test_what_nodes_have_of_a_job_is_put_away_one_by_one(tmp_path: Path) -> None:
    dirs = RunDirs(tmp_path)
    dirs.make()
    for node in ("n0", "n1"):
        directory = dirs.directory("a/b", node, f"1-{node}")
        directory.mkdir(parents=True)
        write_record(directory, Spec(id=f"1-{node}", argv=("true",), cwd="/", env={}))
        (directory / "out.000000000000000").write_bytes(node.encode())
    dirs.put_away("a/b", "n0", "")
    assert [kept.node for kept in dirs.all()] == ["n1"]
    dirs.put_away("a/b", "n1", "n9")
    assert list(dirs.all()) == []
    assert not dirs.of_job("a/b").exists()
    assert {process.id for process in dirs.history("a/b")} == {"1-n0", "1-n1"}
    assert dirs.output("a/b", "1-n1", 0, 9).data == b"n1"


LOOKS = ("glob", "iterdir", "is_dir", "is_file", "stat", "read_text", "open")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("look", range(30))
def test_what_is_put_away_while_it_is_looked_at_is_not_missed(
    look: int, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before or after each look at the disk in turn: who reads a log sees nothing of it."""
    dirs = RunDirs(tmp_path)
    dirs.make()
    directory = dirs.directory("a", "n0", "1-a")
    directory.mkdir(parents=True)
    write_record(directory, Spec(id="1-a", argv=("true",), cwd="/", env={}))
    (directory / "out.000000000000000").write_bytes(b"told")
    left = look

    def watched(name: str) -> None:
        real = getattr(Path, name)

        def looking(path: Path, *words: object, **more: object) -> object:
            nonlocal left
            left -= 1
            now = left == -1
            if now and before:
                dirs.put_away("a", "n0")
            found = real(path, *words, **more)
            if now and not before:
                dirs.put_away("a", "n0")
            return found

        monkeypatch.setattr(Path, name, looking)

    for name in LOOKS:
        watched(name)
    seen = [process.id for process in dirs.history("a")], dirs.output("a", "1-a", 0, 9).data
    monkeypatch.undo()
    assert seen == (["1-a"], b"told")


def test_a_job_none_of_whose_launches_began_is_forgotten(tmp_path: Path) -> None:
    launcher = LocalLauncher(tmp_path, cpu_slots("n9", 1))
    launcher.open(lambda event: None)
    try:
        launcher.launch(launch("1-a"))  # on a slot that is not here
        launcher.forget("j")
        processes.wait_for(lambda: not launcher.running())
        assert launcher.history("j") == []
    finally:
        launcher.close(kill=True)
