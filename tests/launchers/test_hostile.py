"""Whatever a worker, an ones-exec, an agent or a file says: the launcher's thread goes on, and
other jobs do not notice."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ones.exec import Exit
from ones.exec.line_protocol import MAX_UNAUTHENTICATED_LINE, listen
from ones.launchers import Exited, Launch, LauncherEvent, Slot, SlotUp
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.loop import Todo
from ones.launchers.ray.manager import NodeManager, node_root
from ones.launchers.slurm.launcher import SlurmLauncher
from ones.launchers.slurm.options import SlurmOptions
from ones.launchers.slurm.shared import Shared, Timing, proof
from ones.launchers.threaded import TURN_SECONDS, Threaded
from tests.exec.test_line_protocol import BAD
from tests.processes import alive_below, wait_for

ENV = {"PATH": os.environ["PATH"]}


class Local:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.open()

    def open(self) -> None:
        self.events: list[LauncherEvent] = []
        self.launcher = LocalLauncher(self.root, cpu_slots("n0", 2), idle_seconds=2.0)
        self.launcher.open(self.events.append)

    def run(self, command: str, id: str, job: str, **more: Any) -> None:
        launch = Launch(
            id=id, job=job, slots=("n0/0",), argv=("sh", "-c", command), cwd="/", env=ENV
        )
        self.launcher.launch(replace(launch, **more))

    def wait_exit(self, id: str) -> Exit:
        def exits() -> list[Exit]:
            return [e.exit for e in self.events if isinstance(e, Exited) and e.id == id]

        return wait_for(exits, f"{id}: {self.events}")[0]

    def works(self) -> None:
        """Another job is served as ever."""
        id = f"well-{secrets.token_hex(4)}"
        self.run("exit 4", id, "well")
        assert self.wait_exit(id).code == 4
        assert self.launcher._thread.is_alive()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    local = Local(tmp_path)
    yield local
    local.launcher.close(kill=True)
    wait_for(lambda: not alive_below(tmp_path))


def test_a_launch_that_cannot_be_is_not_started_and_the_next_one_is(local: Local) -> None:
    wrongs: list[dict[str, Any]] = [{"id": "../x"}, {"argv": ()}, {"env": {"A": 1}}, {"cwd": 7}]
    for number, wrong in enumerate(wrongs):
        given: dict[str, Any] = {"id": f"1-{number}", **wrong}
        local.run("true", job="bad", **given)
        exit = local.wait_exit(given["id"])
        assert (exit.cause, exit.code) == ("not-started", None)
        assert exit.describe(), "with a reason"
    local.works()


def test_work_that_raises_does_not_keep_others_from_theirs() -> None:
    todo, done = Todo(), list[int]()
    todo.later(lambda: done.remove(7))  # raises
    todo.later(lambda: done.append(1))
    todo.do_all()
    todo.close()
    assert done == [1]


@pytest.mark.parametrize(
    "answer",
    [
        *BAD.values(),
        b'{"n": [1]}\n',
        b'{"n": 1, "launches": 7}\n',
        b'{"n": 1, "launches": [{}]}\n',
        b'{"event": "started"}\n',
        b'{"event": "started", "id": "x", "exit": null, "status": {"pid": "1"}}\n',
        b'{"event": "exited", "id": "x", "exit": {"code": []}, "status": null}\n',
        b'{"event": "exited", "id": {}, "exit": [], "status": null}\n',
        b'{"n": 2, "error": {}}\n' * 3,
    ],
)
def test_an_ones_exec_may_say_anything(answer: bytes, local: Local) -> None:
    run_dir = local.root / "live" / "bad" / "n0"
    run_dir.mkdir(parents=True)
    local.launcher.close(kill=False)
    sock, calls = listen(run_dir), 0

    def serve() -> None:
        nonlocal calls
        with sock:
            while True:
                try:
                    line, _ = sock.accept()
                except BlockingIOError:
                    if over.wait(0.01):
                        return
                    continue
                calls += 1
                line.setblocking(True)
                with line:
                    try:
                        line.sendall(answer)
                    except OSError:
                        continue

    over = threading.Event()
    impostor = threading.Thread(target=serve)
    impostor.start()
    try:
        local.open()
        wait_for(lambda: calls >= 2, "it is asked again")
        local.works()
        began, before = time.monotonic(), calls
        local.works()
        assert calls - before <= 4 + 4 * (time.monotonic() - began), "and not without a pause"
    finally:
        over.set()
        impostor.join()


def test_the_ones_exec_of_a_job_speaks_for_no_other(local: Local) -> None:
    local.run("sleep 1000", "2-v", "victim")
    wait_for(lambda: local.launcher.running()["2-v"].pid)
    lie = {"event": "exited", "id": "2-v", "status": None,
           "exit": {"code": 0, "at": 0.0, "cause": "exited"}}  # fmt: skip
    started = {"event": "started", "id": "2-v", "exit": None,
               "status": {"pid": 1, "born": 0, "started_at": 0.0, "boot_id": ""}}  # fmt: skip
    local.run("sleep 1001", "1-b", "bad")
    keeper = wait_for(lambda: local.launcher._keepers.get(local.root / "live" / "bad" / "n0"))
    assert keeper is not None
    over = threading.Event()

    def lies() -> None:
        keeper._take(started)
        keeper._take(lie)
        over.set()

    local.launcher._todo.later(lies)
    assert over.wait(30)
    assert local.launcher.running()["2-v"].alive
    local.works()


def spoil_spec(launch: Path) -> None:
    (launch / "spec.json").write_text("[" * 100_000)


def spoil_exit(launch: Path) -> None:
    (launch / "exit.json").write_text('{"code": "zero"}')


def spoil_status(launch: Path) -> None:
    (launch / "status.json").unlink()
    (launch / "status.json").symlink_to("/dev/zero")


def spoil_all(launch: Path) -> None:
    for name in ("spec", "status", "exit"):
        (launch / f"{name}.json").unlink(missing_ok=True)
        os.mkfifo(launch / f"{name}.json")


@pytest.mark.parametrize("spoil", [spoil_spec, spoil_exit, spoil_status, spoil_all])
def test_a_run_directory_that_was_spoiled_keeps_no_controller_from_starting(
    spoil: Any,  # noqa: ANN401
    local: Local,
) -> None:
    local.run("exit 3", "1-b", "bad")
    local.wait_exit("1-b")
    local.launcher.close(kill=True)
    spoil(local.root / "live" / "bad" / "n0" / "1-b")
    (local.root / "live" / "bad" / "file").write_text("no directory")
    (local.root / "live" / "file").write_text("no directory")
    local.open()
    local.works()
    wait_for(lambda: local.launcher.running()["1-b"].exit, "it has an exit of some kind")
    assert [process.id for process in local.launcher.history("bad")] == ["1-b"]


def test_a_spec_that_names_another_launch_is_not_believed(local: Local) -> None:
    local.run("exit 3", "1-b", "bad")
    local.run("exit 5", "2-v", "victim")
    local.wait_exit("1-b")
    local.wait_exit("2-v")
    local.launcher.close(kill=True)
    path = local.root / "live" / "bad" / "n0" / "1-b" / "spec.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps({**spec, "id": "2-v", "slots": ["n0/1"]}))
    local.open()
    found = local.launcher.running()
    assert (found["2-v"].job, found["2-v"].slots) == ("victim", ("n0/0",))
    assert (found["1-b"].job, found["1-b"].slots) == ("bad", ())


class Turning(Threaded):
    """A launcher whose loop fails, and whose clock is looked at."""

    turns = 0
    closed = False

    def _turn(self) -> None:
        self.turns += 1
        self._todo.do_all()
        if self.turns == 1:
            raise RecursionError
        time.sleep(0.001)

    def _is_done(self) -> bool:
        return self.closed

    def _end(self) -> None:
        raise OSError("it does not matter")

    def _close(self, kill: bool) -> None:
        self.closed = True

    def _launch(self, launch: Launch) -> None:
        raise KeyError(launch.id)

    def _prepare(self, launch: Launch) -> None: ...

    def _stop(self, id: str, grace: float) -> None:
        raise ValueError

    def _forget(self, job: str) -> None: ...


def test_a_loop_that_fails_turns_again_and_says_when_it_turned(tmp_path: Path) -> None:
    from ones.launchers.run_dirs import RunDirs

    launcher, events = Turning(RunDirs(tmp_path)), list[LauncherEvent]()
    before = launcher.beat
    launcher._begin(events.append)
    wait_for(lambda: launcher.turns > 3)
    assert launcher.beat > before
    launcher.launch(Launch(id="1-a", job="j", slots=(), argv=("x",), cwd="/", env={}))
    (event,) = wait_for(lambda: list(events))
    assert isinstance(event, Exited)
    assert (event.exit.cause, event.exit.describe()) == ("not-started", "KeyError: '1-a'")
    launcher.close(kill=False)
    assert not launcher._thread.is_alive()


def test_an_idle_launcher_still_turns(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    from ones.launchers import local as module

    assert TURN_SECONDS <= 5.0
    monkeypatch.setattr(module, "TURN_SECONDS", 0.01)
    local.launcher.stop("nobody", 0.0)  # wakes it once, and no more
    beats = set[float]()

    def many() -> bool:
        beats.add(local.launcher.beat)
        return len(beats) > 5

    wait_for(many)


# agents of Slurm nodes


class Door:
    def __init__(self, root: Path) -> None:
        self.shared = Shared(root)
        self.events: list[LauncherEvent] = []
        timing = Timing(ping=0.2)
        self.launcher = SlurmLauncher(root, SlurmOptions(host="127.0.0.1", timing=timing))
        self.launcher.open(self.events.append)

    def dial(self) -> socket.socket:
        address = self.shared.address()
        assert address is not None
        return socket.create_connection(("127.0.0.1", address.port), timeout=30)

    def welcomed(self, node: str = "n1") -> tuple[socket.socket, dict[str, Any]]:
        sock = self.dial()
        sock.sendall(json.dumps({"node": node, "nonce": "x"}).encode() + b"\n")
        return sock, json.loads(sock.makefile("rb").readline())

    def proved(self, node: str = "n1") -> socket.socket:
        sock, welcome = self.welcomed(node)
        mine = proof(self.shared.key(), "agent", welcome["nonce"], node)
        sock.sendall(json.dumps({"proof": mine}).encode() + b"\n")
        return sock

    def is_hung_up(self, sock: socket.socket) -> bool:
        with suppress(ConnectionError):
            while sock.recv(65536):
                pass
        return True  # else recv would have timed out

    def works(self, node: str = "good") -> socket.socket:
        sock = self.proved(node)
        slot = {"node": node, "index": 0, "used_by": []}
        pad = "x" * (4 * MAX_UNAUTHENTICATED_LINE)  # more than may be said before the proof
        said = {"allocation": "7", "ending": False, "slots": [slot], "launches": [], "trouble": "",
                "pad": pad}  # fmt: skip
        sock.sendall(json.dumps(said).encode() + b"\n")
        wait_for(lambda: SlotUp(Slot(node=node, index=0)) in self.events, str(self.events))
        return sock


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path / "runs")
    yield door
    door.launcher.close(kill=False)


@pytest.mark.parametrize("name", BAD)
def test_a_caller_without_the_key_cannot_stop_the_launcher(name: str, door: Door) -> None:
    for sock in (door.dial(), door.welcomed()[0]):
        with sock:
            with suppress(ConnectionError):
                sock.sendall(BAD[name])
            assert door.is_hung_up(sock)
    door.works().close()


@pytest.mark.parametrize(
    "first",
    [
        {},
        {"node": ""},
        {"node": "../x", "nonce": "x"},
        {"node": "n" * 300, "nonce": "x"},
        {"node": ["n1"], "nonce": "x"},
        {"node": "n\n1", "nonce": "x"},
        {"node": "n1", "nonce": "x" * MAX_UNAUTHENTICATED_LINE},
    ],
)
def test_a_first_line_that_is_none_is_refused(first: dict[str, Any], door: Door) -> None:
    with door.dial() as sock:
        sock.sendall(json.dumps(first).encode() + b"\n")
        assert door.is_hung_up(sock)
    door.works().close()


def test_a_wrong_proof_is_refused(door: Door) -> None:
    for wrong in ({"proof": "x"}, {"proof": None}, {"proof": "\u00e9"}, {}):
        sock, _ = door.welcomed()
        with sock:
            sock.sendall(json.dumps(wrong).encode() + b"\n")
            assert door.is_hung_up(sock)
    door.works().close()


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"trouble": "", "slots": 7},
        {"trouble": "", "slots": [{"node": "n1"}], "allocation": 1, "launches": []},
        {"trouble": "", "slots": [], "allocation": "7", "ending": False, "launches": [{"id": 1}]},
        {"trouble": "", "slots": [], "allocation": "7", "ending": False,
         "launches": [{"id": "1-a", "exit": {"code": {}}, "pid": None}]},
    ],
)  # fmt: skip
def test_an_agent_with_the_key_that_says_nonsense_loses_its_line_only(
    said: dict[str, Any], door: Door
) -> None:
    good = door.works()
    with door.proved() as sock:
        sock.sendall(json.dumps(said).encode() + b"\n")
        assert door.is_hung_up(sock)
    for number, nonsense in enumerate(
        ({"event": "exited"}, {"event": "started", "id": []}, {"event": "forgotten", "job": {}})
    ):
        with door.works(f"n{number}") as sock:
            sock.sendall(json.dumps(nonsense).encode() + b"\n")
            assert door.is_hung_up(sock)
    assert door.launcher._thread.is_alive()
    good.close()


# Ray's nodes


def test_the_directory_of_a_ray_node_is_ours_alone(tmp_path: Path) -> None:
    root = node_root(str(tmp_path / "ones"), "abcd", "n1")
    assert root == tmp_path / "ones" / "abcd" / "n1"
    for directory in (tmp_path / "ones", tmp_path / "ones" / "abcd", root):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert node_root(str(tmp_path / "ones"), "abcd", "n1") == root, "it is found again"


def test_a_directory_that_others_can_change_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "ones"
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="or it is a link; remove it or choose another"):
        node_root(str(base), "abcd", "n1")
    base.unlink()
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(PermissionError, match="other users can change it"):
        node_root(str(base), "abcd", "n1")
    base.chmod(0o1777)  # as /tmp is: others may add to it, and not change what is ours
    node_root(str(base), "abcd", "n1")
    (base / "dcba").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is a link or a file"):
        node_root(str(base), "dcba", "n1")
    if os.geteuid() == 0:
        os.chown(base, 4711, 4711)
        with pytest.raises(PermissionError, match="user 4711"):
            node_root(str(base), "abcd", "n1")


def test_a_manager_s_lease_is_kept_whatever_is_in_its_directory(tmp_path: Path) -> None:
    manager = NodeManager(tmp_path / "n", cpu_slots("n0", 1), 0.5, lambda timeout: True)
    try:
        (tmp_path / "n" / "lease").unlink()
        (tmp_path / "n" / "lease").mkdir()
        manager.renew()
        (tmp_path / "n" / "lease").rmdir()
        wait_for((tmp_path / "n" / "lease").is_file, "the thread has ended")
    finally:
        manager.close()
