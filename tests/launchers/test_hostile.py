"""Whatever a worker, an ones-exec or a run directory contains: the launcher's thread goes on, and
other jobs are not affected."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ones.exec import Exit
from ones.exec.line_protocol import listen
from ones.launchers import Exited, Launch, LauncherEvent
from ones.launchers.devices import cpu_slots
from ones.launchers.local import LocalLauncher
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
    client = wait_for(lambda: local.launcher._supervisors.get(local.root / "live" / "bad" / "n0"))
    assert client is not None
    over = threading.Event()

    def lies() -> None:
        client._handle(started)
        client._handle(lie)
        over.set()

    local.launcher._work.add(lies)
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
