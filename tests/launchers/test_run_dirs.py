"""Run directories, live and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ones.exec import Launch
from ones.exec.run_dir import write_record
from ones.launchers.run_dirs import RunDirs


def launch(id: str) -> Launch:
    return Launch(id=id, job="a", slots=(), argv=("true",), cwd="/", env={})


def test_what_nodes_have_of_a_job_is_archived_one_by_one(tmp_path: Path) -> None:
    dirs = RunDirs(tmp_path)
    dirs.make()
    for node in ("n0", "n1"):
        directory = dirs.directory("a/b", node, f"1-{node}")
        directory.mkdir(parents=True)
        write_record(directory, launch(f"1-{node}"))
        (directory / "out.000000000000000").write_bytes(node.encode())
    dirs.archive("a/b", "n0", "")
    assert [kept.node for kept in dirs.all()] == ["n1"]
    dirs.archive("a/b", "n1", "n9")
    assert list(dirs.all()) == []
    assert not dirs.of_job("a/b").exists()
    assert {process.id for process in dirs.history("a/b")} == {"1-n0", "1-n1"}
    assert dirs.output("a/b", "1-n1", 0, 9).data == b"n1"


LOOKS = ("glob", "iterdir", "is_dir", "is_file", "stat", "read_text", "open")


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("look", range(30))
def test_what_is_archived_while_it_is_looked_at_is_not_missed(
    look: int, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before or after each access to the disk in turn: readers of a log are not affected."""
    dirs = RunDirs(tmp_path)
    dirs.make()
    directory = dirs.directory("a", "n0", "1-a")
    directory.mkdir(parents=True)
    write_record(directory, launch("1-a"))
    (directory / "out.000000000000000").write_bytes(b"told")
    left = look

    def watched(name: str) -> None:
        real = getattr(Path, name)

        def looking(path: Path, *words: object, **more: object) -> object:
            nonlocal left
            left -= 1
            now = left == -1
            if now and before:
                dirs.archive("a", "n0")
            found = real(path, *words, **more)
            if now and not before:
                dirs.archive("a", "n0")
            return found

        monkeypatch.setattr(Path, name, looking)

    for name in LOOKS:
        watched(name)
    seen = [process.id for process in dirs.history("a")], dirs.output("a", "1-a", 0, 9).data
    monkeypatch.undo()
    assert seen == (["1-a"], b"told")
