"""Which files of a working tree are packed, with git and without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.client.working_tree import pack
from ones.errors import UserError
from ones.exec.snapshot import check, unpack

GIT = {
    **{f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def fill(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)

    def run(*words: str, where: Path = tmp_path) -> None:
        subprocess.run(["git", *words], cwd=where, check=True, capture_output=True)

    return run


def test_with_git_what_it_ignores_or_has_deleted_is_not_packed(
    tmp_path: Path, git: Callable[..., None]
) -> None:
    tree = tmp_path / "tree"
    fill(tree, {".gitignore": "data/\n*.pt\n", "a.py": "1", "gone.py": "", "sub/b.py": "2"})
    git("init", "-q", where=tree)
    git("add", ".", where=tree)
    (tree / "gone.py").unlink()
    fill(tree, {"new.py": "3", "data/big": "4", "model.pt": "5", "inner/c.py": "6"})
    git("init", "-q", where=tree / "inner")
    (tree / "inside").symlink_to("sub/b.py")
    (tree / "outside").symlink_to("/etc/passwd")
    os.mkfifo(tree / "sub" / "pipe")
    found = pack(tree / "sub", 1.0)
    assert found.root == tree
    assert found.files == {".gitignore", "a.py", "sub/b.py", "new.py", "inside", "inner/c.py"}
    assert found.left_out == ("outside -> /etc/passwd",)
    (tree / "a.py").touch()
    assert pack(tree, 1.0).digest == found.digest, "the same files have the same digest"
    (tree / "a.py").chmod(0o755)
    assert pack(tree, 1.0).digest != found.digest


def test_paths_of_packed_files_become_relative(tmp_path: Path) -> None:
    fill(tmp_path / "tree", {"run.sh": "", "sub/train.py": "", ".venv/bin/python": ""})
    tree, seen = tmp_path / "tree", tmp_path / "seen"
    seen.symlink_to(tree)
    found = pack(tree, 1.0)
    assert found.files == {"run.sh", "sub/train.py"}
    for argument, expected in (
        (f"{tree}/run.sh", "../run.sh"),
        (f"{seen}/sub/train.py", "./train.py"),
        (f"{tree}/.venv/bin/python", f"{tree}/.venv/bin/python"),
        ("train.py", "train.py"),
        ("/bin/sh", "/bin/sh"),
    ):
        assert found.relative(argument, tree / "sub") == expected
    assert found.has_directory(f"{seen}/sub")
    assert not found.has_directory(f"{tree}/.venv")


def test_a_tree_that_is_too_large_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    fill(tmp_path, {"small": "x", "weights.bin": "x" * 3_000_000, "b/log": "x" * 1_000_000})
    with pytest.raises(UserError) as refused:
        pack(tmp_path, 2.5)
    assert str(refused.value) == (
        f"--snapshot: the files of {tmp_path} have 4.0 MB; the limit is max_snapshot_mb = 2.5; the"
        " largest: weights.bin (3.0 MB), b/log (1.0 MB), small (0.0 MB); keep data out of the"
        " tree, or add it to .gitignore"
    )
    assert pack(tmp_path, 4.1).files == {"small", "weights.bin", "b/log"}


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
TREES = st.dictionaries(
    st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3).map(
        lambda parts: "/".join(part[:20] for part in parts)
    ),
    st.tuples(st.binary(max_size=100), st.booleans()),
    max_size=6,
)


@given(TREES)
def test_what_is_unpacked_is_what_was_packed(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, bool]]
) -> None:
    root = tmp_path_factory.mktemp("packed")
    tree, made = root / "tree", {}
    tree.mkdir()
    for name, (content, executable) in files.items():
        path = tree / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:  # a name is too long, or a file and a directory
            continue
        path.chmod(0o755 if executable else 0o644)
        made[name] = (content, executable)
    found = pack(tree, 1.0)
    check(found.data, found.digest, None)
    unpack(found.data, found.digest, root / "code")
    for name in found.files:
        path = root / "code" / name
        assert (path.read_bytes(), os.access(path, os.X_OK)) == made[name]
    assert {n for n in made if not n.endswith((".pyc", ".pyo"))} >= found.files
