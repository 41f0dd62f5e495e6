"""Archives with the code of a job: what is refused, and where the code is unpacked and imported."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from ones.exec import snapshot
from ones.exec.snapshot import SnapshotError, check, enter, unpack


def archive_of(*members: tarfile.TarInfo | str) -> tuple[bytes, str]:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for member in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = 4
            archive.addfile(info, io.BytesIO(b"text") if info.isreg() else None)
    return data.getvalue(), hashlib.sha256(data.getvalue()).hexdigest()


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (["../x"], "'../x' is not the path of a file in the tree"),
        (["/etc/x"], "'/etc/x' is not the path of a file in the tree"),
        (["a/../../x"], "is not the path of a file in the tree"),
        (["a//b"], "is not the path of a file in the tree"),
        (["a", "a"], "'a' is there twice"),
        ([special("a", tarfile.SYMTYPE, "/etc")], "'a' is a link out of the tree: '/etc'"),
        ([special("a/b", tarfile.SYMTYPE, "../../c")], "is a link out of the tree"),
        ([special("a/b", tarfile.SYMTYPE, "c/../../..")], "is a link out of the tree"),
        ([special("a", tarfile.SYMTYPE, "b"), "a/x"], "'a/x' is below a link"),
        (["a/x", special("a", tarfile.SYMTYPE, "b")], "'a/x' is below a link"),
        (["b", special("a", tarfile.LNKTYPE, "b")], "'a' is neither a file nor a link"),
        ([special("a", tarfile.CHRTYPE)], "'a' is neither a file nor a link"),
        ([special("a", tarfile.FIFOTYPE)], "'a' is neither a file nor a link"),
        (["a", "b", "c"], "the files have more than 1e-05 MB"),
    ],
)
def test_an_archive_that_could_write_elsewhere_is_refused(
    members: list[tarfile.TarInfo | str], words: str
) -> None:
    data, digest = archive_of(*members)
    with pytest.raises(SnapshotError) as refused:
        check(data, digest, 10)
    assert words in str(refused.value)


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08\x00"])
def test_an_archive_that_is_cut_or_none_is_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError, match="the archive cannot be read"):
        check(data, hashlib.sha256(data).hexdigest(), None)


def test_another_archive_than_the_one_submitted_is_not_unpacked(tmp_path: Path) -> None:
    data, digest = archive_of("a")
    with pytest.raises(SnapshotError, match="the archive has the digest"):
        unpack(data + b"x", digest, tmp_path / "code")
    assert list(tmp_path.iterdir()) == []
    unpack(data, digest, tmp_path / "code")
    assert (tmp_path / "code" / "a").read_text() == "text"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of a worker on a node where the code is unpacked already."""
    data, digest = archive_of("lib/mine.py", "sub/run.py", special("link", tarfile.SYMTYPE, "lib"))
    job, root = tmp_path / "job", tmp_path / "tree"
    job.mkdir()
    unpack(data, digest, job / snapshot.CODE)
    paths = (root / "lib", root / "not-packed", "/usr/share", "")
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "ONES_JOB_DIR": str(job),
        snapshot.DIGEST: digest,
        snapshot.ROOT: str(root),
        snapshot.SUBMIT_DIR: str(root / "sub"),
    }


def test_a_worker_imports_from_the_snapshot_what_it_imported_from_the_tree(
    env: dict[str, str], tmp_path: Path
) -> None:
    code = tmp_path / "job" / "code"
    assert enter(env) == env["PWD"] == str(code / "sub")
    first, *rest = env["PYTHONPATH"].split(os.pathsep)
    assert first == str(code / "lib")
    assert rest == [str(tmp_path / "tree" / "not-packed"), "/usr/share", ""]
    assert os.readlink(code / "link") == "lib"
    assert enter({**env, snapshot.SUBMIT_DIR: str(tmp_path / "tree" / "empty")}).endswith("/empty")


def test_a_command_runs_in_the_snapshot(env: dict[str, str], tmp_path: Path) -> None:
    def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-I", snapshot.__file__, *command]
        return subprocess.run(
            words, env={**env, **more}, cwd="/", capture_output=True, text=True, check=False
        )

    done = run("sh", "-c", "pwd; ls; exit 3")
    assert (done.returncode, done.stdout) == (3, f"{tmp_path}/job/code/sub\nrun.py\n")
    missing = run("no-such-program")
    assert (missing.returncode, missing.stderr) == (
        1,
        "ones: error: no-such-program: No such file or directory\n",
    )
