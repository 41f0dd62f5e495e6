"""Run directories are hostile: links, pipes, huge and broken files count as missing records."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from ones.exec import Exit, Launch, Status
from ones.exec.files import make_private, read_regular
from ones.exec.output import read_output
from ones.exec.records import parse_record
from ones.exec.run_dir import MAX_RECORD, known_launches, read_record, write_record

NOW = 1_700_000_000.0
EXIT = {"code": 1, "signal": None, "at": NOW, "cause": "exited", "message": ""}


def broken(text: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(text)

    return make


def link(path: Path) -> None:
    other = path.with_name("elsewhere")
    other.write_text(json.dumps(EXIT))
    path.symlink_to(other)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(MAX_RECORD + 1)


@pytest.mark.parametrize(
    "make",
    [
        link,
        os.mkfifo,
        Path.mkdir,
        huge,
        broken(""),
        broken("{"),
        broken("[" * 100_000),
        broken("[1]"),
        broken("{}"),
        broken(json.dumps({**EXIT, "code": "1"})),
        broken(json.dumps({**EXIT, "code": 10**30})),
        broken(json.dumps({**EXIT, "at": float("nan")})),
        broken(json.dumps({**EXIT, "message": ["x"]})),
        broken(json.dumps({**EXIT, "message": "\ud800"})),
        broken(json.dumps({**EXIT, "message": "x" * 100_000})),
    ],
)
def test_a_record_that_cannot_be_read_is_missing(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "spec.json").write_text("{}")
    make(tmp_path / "exit.json")
    if make is not link:
        make(tmp_path / "status.json")
    assert read_record(tmp_path, Exit) is None
    assert read_record(tmp_path, Status) is None
    assert read_record(tmp_path, Launch) is None
    record = Exit(code=0, at=time.time(), cause="exited")
    if make is not Path.mkdir:
        write_record(tmp_path, record)
        assert read_record(tmp_path, Exit) == record, "it can be replaced by a true one"


def test_what_is_written_is_read_again_whatever_it_says(tmp_path: Path) -> None:
    launch = Launch(id="1-a", job="j", slots=("n/0",), argv=("sh",), cwd="/", env={"A": "\udcff"})
    status = Status(pid=7, born=9, started_at=NOW, boot_id="b")
    for record in (launch, status, Exit(code=None, signal=9, at=NOW, cause="lost", message="é")):
        write_record(tmp_path, record)
    assert read_record(tmp_path, Launch) == launch
    assert read_record(tmp_path, Status) == status
    assert read_record(tmp_path, Exit) == parse_record(
        Exit, {**EXIT, "code": None, "signal": 9, "cause": "lost", "message": "é"}
    )


def test_a_launch_is_read_from_json_as_it_was() -> None:
    launch = Launch(id="1-a", job="j", slots=("n0/0",), argv=("true",), cwd="/", env={})
    plain = {**asdict(launch), "slots": ["n0/0"], "argv": ["true"]}
    assert parse_record(Launch, plain) == launch


def test_a_launch_that_version_0_1_recorded_is_read(tmp_path: Path) -> None:
    """`spec.json` had no job, and two fields that are constants now."""
    (tmp_path / "spec.json").write_text(
        '{"id": "3-n0.1", "argv": ["sh", "-c", "true"], "cwd": "/", "env": {"A": "b"},'
        ' "grace_seconds": 5.0, "zygote": true, "segment_bytes": 8388608, "segments": 8,'
        ' "slots": ["n0/1"]}'
    )
    assert read_record(tmp_path, Launch) == Launch(
        id="3-n0.1",
        job="",
        slots=("n0/1",),
        argv=("sh", "-c", "true"),
        cwd="/",
        env={"A": "b"},
        grace_seconds=5.0,
        zygote=True,
    )


@pytest.mark.parametrize(
    "wrong",
    [{"id": "../a"}, {"id": ".a"}, {"id": ""}, {"id": 1}, {"argv": []}, {"env": {"A": 1}}],
    ids=str,
)
def test_a_launch_that_cannot_be_started_is_refused(wrong: dict[str, object]) -> None:
    plain = {"id": "1-a", "slots": [], "argv": ["true"], "cwd": "/", "env": {}}
    parse_record(Launch, plain)
    with pytest.raises(ValueError, match="launch"):
        parse_record(Launch, {**plain, **wrong})


def test_a_record_is_not_written_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "exit.new").symlink_to(precious)
    write_record(run, Exit(code=0, at=NOW, cause="exited"))
    assert precious.read_text() == "mine"
    assert read_record(run, Exit) is not None


def test_linked_launches_and_output_are_not_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "1-a").mkdir(parents=True)
    (run / "1-a" / "spec.json").write_text("{}")
    (run / "1-b").symlink_to(run / "1-a")
    assert [path.name for path in known_launches(run)] == ["1-a"]
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (run / "1-a" / "out.000000000000000").symlink_to(secret)
    assert read_output(run / "1-a", 0, 100).data == b""
    (run / "1-a" / "out.000000000000000").unlink()
    os.mkfifo(run / "1-a" / "out.000000000000000")
    assert read_output(run / "1-a", 0, 100).data == b"", "nor is a pipe waited for"


def test_only_regular_files_of_bounded_size_and_of_the_right_user_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_regular(path, 5, owner=os.geteuid()) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_regular(path, 4)
    with pytest.raises(OSError, match=f"belongs to user {os.geteuid()}, not to 4711"):
        read_regular(path, 5, owner=4711)


def test_a_private_directory_is_ours_and_no_link(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    make_private(mine)
    assert mine.stat().st_mode & 0o777 == 0o700
    mine.chmod(0o755)
    make_private(mine)
    assert mine.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(PermissionError, match="is a link or a file"):
        make_private(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="is a link or a file"):
        make_private(tmp_path / "file")
    if os.geteuid() == 0:
        os.chown(mine, 4711, 4711)
        with pytest.raises(PermissionError, match="belongs to user 4711, not to 0"):
            make_private(mine)
