"""`ones doctor` finds what is broken, and says nothing of what is not."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from ones.apps.doctor import examine, machine, service
from ones.apps.doctor.findings import Finding
from ones.config import ServiceSettings
from ones.control.statedir import Address, StateDir
from tests.control.world import World

FREE = {"port": 0}


def found(check: Callable[..., object], **settings: object) -> dict[str, Finding]:
    given = ServiceSettings(**{**FREE, **settings})  # type: ignore[arg-type]
    return {finding.name: finding for finding in check(given)}  # type: ignore[attr-defined]


def test_a_running_service_is_well(world: World) -> None:
    seen = found(service.service, state=str(world.dir.path))
    assert {f.status for f in seen.values()} == {"ok"}
    assert set(seen) == {"service", "clock"}
    assert world.http.base_url.host in seen["service"].found
    assert found(service.state, state=str(world.dir.path))["state"].status == "ok"
    assert found(service.database, state=str(world.dir.path))["database"].status == "ok"
    assert not found(service.workers, state=str(world.dir.path))


def test_a_wrong_token_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONES_API_TOKEN", "guessed")
    seen = found(service.service, state=str(world.dir.path))
    assert seen["token"].status == "problem"


def test_a_controller_that_is_there_and_does_not_answer(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    directory.make()
    directory.lock()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # no process listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        directory.write_address(Address(pid=os.getpid(), url=url))
        seen = found(service.service, state=str(tmp_path))
    directory.unlock()
    assert seen["service"].status == "problem"
    assert url in seen["service"].found


def test_a_port_in_use_by_another_process(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        seen = found(service.service, state=str(tmp_path), port=port)
        assert seen["port"].status == "problem"
        assert str(port) in seen["port"].found
    assert found(service.service, state=str(tmp_path), port=port)["port"].status == "ok"


def test_a_directory_that_is_open_to_others_or_is_none(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert found(service.state, state=str(tmp_path))["state"].status == "warning"
    file = tmp_path / "file"
    file.write_text("")
    assert found(service.state, state=str(file))["state"].status == "problem"


def make_database(path: Path, last: float) -> None:
    with sqlite3.connect(path / "ones.db") as connection:
        connection.execute("CREATE TABLE log (number INTEGER, at REAL)")
        connection.execute("INSERT INTO log VALUES (1, ?)", (last,))
    connection.close()


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    make_database(tmp_path, time.time() + 3600)
    assert found(service.database, state=str(tmp_path))["clock"].status == "problem"


def test_a_clock_that_is_right(tmp_path: Path) -> None:
    make_database(tmp_path, time.time() - 1)
    seen = found(service.database, state=str(tmp_path))
    assert set(seen) == {"database"}


def test_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "ones.db").write_bytes(b"no database at all" * 100)
    assert found(service.database, state=str(tmp_path))["database"].status == "problem"


def test_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, status in ((2 << 30, "warning"), (1 << 20, "problem"), (1 << 40, "ok")):
        usage = (1 << 41, 0, free)
        monkeypatch.setattr(
            "shutil.disk_usage", lambda path, usage=usage: type("U", (), {"free": usage[2]})
        )
        assert found(service.disk, state=str(tmp_path))["disk"].status == status


def test_workers_without_a_controller(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    directory.make()
    env = {**os.environ, "ONES_JOB_DIR": str(directory.runs / "live" / "a" / "local")}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as one:
        seen = found(service.workers, state=str(tmp_path))
        one.communicate(b"\n")
    assert str(one.pid) in seen["workers"].found
    assert not found(service.workers, state=str(tmp_path))


def test_what_is_missing_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda n: None if n == "torch" else find_spec(n))
    seen = found(machine.extras)
    assert seen["train"].status == "warning"
    assert "torch" in seen["train"].found
    assert seen["train"].advice == "pip install 'ones[train]'"
    assert "torch" not in found(machine.torch_and_gpus)


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_ASK_TORCH", "raise ImportError('libcudart.so.13: not there')")
    seen = found(machine.torch_and_gpus)
    assert seen["torch"].status == "problem"
    assert "libcudart" in seen["torch"].found


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(settings: ServiceSettings) -> object:
        raise RuntimeError("oh")

    monkeypatch.setattr("ones.apps.doctor.CHECKS", (broken,))
    assert examine(ServiceSettings()) == [Finding("broken", "problem", "RuntimeError: oh")]


def ask(state: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("ones")), "doctor", "--json", "--state"]
    return subprocess.run(
        [*command, str(state)], capture_output=True, text=True, timeout=300, check=False
    )


def test_the_command_prints_json_and_its_code_says_it(world: World, tmp_path: Path) -> None:
    asked = ask(world.dir.path)
    told = json.loads(asked.stdout)
    assert (asked.returncode, told["ok"]) == (0, True), asked.stdout
    assert {"name", "status", "found", "advice"} == set(told["checks"][0])
    file = tmp_path / "file"
    file.write_text("")
    asked = ask(file)
    assert (asked.returncode, json.loads(asked.stdout)["ok"]) == (1, False)
