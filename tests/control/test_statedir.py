"""One controller per state directory: its lock, readers, and failed starts."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ones.config import ServiceSettings
from ones.control import service_process
from ones.control.schema import meta
from ones.control.statedir import Address, StateDir
from ones.control.store import Store, upsert
from ones.errors import UserError
from tests.processes import PATIENCE, wait_for


def test_a_command_that_only_looks_does_not_stop_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not StateDir(tmp_path).is_locked(), "two readers do not see each other"
    monkeypatch.setattr("ones.control.statedir.time.sleep", lambda seconds: os.close(looking))
    directory = StateDir(tmp_path)
    directory.lock()
    assert directory.is_locked()
    monkeypatch.setattr("ones.control.statedir.time.sleep", lambda seconds: None)
    with pytest.raises(UserError, match="is used by another controller"):
        StateDir(tmp_path).lock()
    directory.unlock()
    assert not directory.is_locked()


def test_the_holder_is_known_before_it_can_be_reached(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    assert directory.holder() is None
    directory.write_address(Address(pid=1, url="http://127.0.0.1:1"))  # of an earlier one
    directory.lock()
    assert directory.holder() == os.getpid()
    directory.unlock()
    assert directory.holder() is None


def test_down_ends_a_controller_that_has_only_begun_to_start(tmp_path: Path) -> None:
    """The address in the directory is that of an earlier controller; its pid is reused."""
    directory = StateDir(tmp_path)
    directory.make()
    innocent = subprocess.Popen(["sleep", "1000"])
    directory.write_address(Address(pid=innocent.pid, url="http://127.0.0.1:1"))
    starting = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from pathlib import Path;"
            "from ones.control.statedir import StateDir;"
            "directory = StateDir(Path(sys.argv[1])); directory.lock(); time.sleep(1000)",
            tmp_path,
        ]
    )  # fmt: skip
    try:
        wait_for(lambda: directory.holder() == starting.pid)
        down = subprocess.run(
            [sys.executable, "-m", "ones", "down", "--state", tmp_path],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert (down.returncode, down.stderr) == (0, "the service is down\n")
        assert starting.wait(PATIENCE) == -15
        assert innocent.poll() is None
    finally:
        for process in (innocent, starting):
            process.kill()
            process.wait()


def test_a_start_that_fails_says_why_now_and_not_what_was_said_before(tmp_path: Path) -> None:
    directory = StateDir(tmp_path)
    directory.make()
    directory.log.write_text("error: the disk is full\n")
    settings = ServiceSettings(state=str(tmp_path), slots=1, port=0, mechanism="magic")
    with pytest.raises(UserError, match=r"^the service did not start: unknown mechanism 'magic'"):
        service_process.start(settings, {})


def modes(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    directory = StateDir(tmp_path / "state")
    directory.path.mkdir(mode=0o755)
    for name in ("ones.db", "key", "admin.token", "controller.log", "other"):
        (directory.path / name).touch(0o644)
    (directory.path / "ones.db-wal").touch(0o644)
    directory.make()
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert modes(directory.path) == {
        "ones.db": 0o600, "ones.db-wal": 0o600, "key": 0o600, "admin.token": 0o600,
        "controller.log": 0o600, "other": 0o644, "runs": 0o700, "checkpoints": 0o700,
        "snapshots": 0o700,
    }  # fmt: skip


def test_a_new_database_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = Store(f"sqlite:///{tmp_path}/ones.db")
        try:
            store.write_now(upsert(meta, {"key": "a", "value": "b"}))
            assert modes(tmp_path) == {"ones.db": 0o600, "ones.db-wal": 0o600, "ones.db-shm": 0o600}
        finally:
            store.close()
    finally:
        os.umask(before)


def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = os.geteuid()
    monkeypatch.setattr("ones.control.statedir.os.geteuid", lambda: mine + 1)
    with pytest.raises(UserError) as refused:
        StateDir(tmp_path).make()
    assert str(refused.value) == (
        f"{tmp_path}: belongs to user {mine}, but the service runs as user {mine + 1};"
        " choose a directory below it with --dir"
    )
