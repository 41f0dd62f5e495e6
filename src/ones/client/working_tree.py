"""The files of a working tree that belong to a job, packed into one archive.

With git: tracked files and those that git does not ignore, from the top of the working tree.
Without git: all files of the directory, except what tools leave behind.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ones.errors import UserError
from ones.exec.snapshot import MB, MOST_FILES, leads_out

#: directories that no job needs, in a tree without git
NOT_PACKED = frozenset(
    (
        *(".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache"),
    )
)
NOT_PACKED_SUFFIXES = (".pyc", ".pyo")
SHOWN = 5  # largest files in an error
#: time of all packed files: the same files make the same archive
PACKED_AT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PackedTree:
    root: Path
    files: frozenset[str]  # paths below the root
    left_out: tuple[str, ...]  # links out of the tree, and what is not a file
    data: bytes
    digest: str

    def relative(self, argument: str, directory: Path) -> str:
        """A path of a packed file as seen from the job's directory; other arguments as they are."""
        if not argument.startswith("/"):
            return argument
        path = os.path.join(os.path.realpath(os.path.dirname(argument)), os.path.basename(argument))
        if os.path.relpath(path, self.root) not in self.files:
            return argument
        seen = os.path.relpath(path, directory)
        return seen if "/" in seen else f"./{seen}"

    def has_directory(self, path: str) -> bool:
        """Whether a directory with packed files has this absolute path."""
        inner = os.path.relpath(os.path.realpath(path), self.root)
        return inner == "." or any(name.startswith(f"{inner}/") for name in self.files)


def root_of(directory: Path) -> tuple[Path, bool]:
    """The directory to pack, and whether git lists its files."""
    try:
        top = _git(directory, "rev-parse", "--show-toplevel").strip()
    except (OSError, subprocess.SubprocessError):
        return directory, False
    return (Path(os.fsdecode(top)), True) if top else (directory, False)


def pack(directory: Path, max_mb: float) -> PackedTree:
    """The files of the working tree of a directory. Raises UserError if they are too large."""
    directory = directory.resolve()
    root, with_git = root_of(directory)
    names = sorted(set(_listed_by_git(root) if with_git else _listed(root)))
    sizes: dict[str, int] = {}
    left_out = []
    for name in names:
        try:
            found = (root / name).lstat()
        except FileNotFoundError:
            continue  # deleted, but git still lists it
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link and leads_out(name, os.readlink(root / name)):
            left_out.append(f"{name} -> {os.readlink(root / name)}")
        elif is_link or stat.S_ISREG(found.st_mode):
            sizes[name] = 0 if is_link else found.st_size
        else:
            left_out.append(name)
    _check_size(root, sizes, max_mb)
    data = _packed(root, sizes)
    digest = hashlib.sha256(data).hexdigest()
    return PackedTree(root, frozenset(sizes), tuple(left_out), data, digest)


def _check_size(root: Path, sizes: dict[str, int], max_mb: float) -> None:
    size = sum(sizes.values())
    if size > max_mb * MB:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
        named = ", ".join(f"{name} ({sizes[name] / MB:.1f} MB)" for name in largest)
        raise UserError(
            f"--snapshot: the files of {root} have {size / MB:.1f} MB; the limit is"
            f" max_snapshot_mb = {max_mb:g}; the largest: {named}; keep data out of the tree, or"
            " add it to .gitignore"
        )
    if len(sizes) > MOST_FILES:
        raise UserError(f"--snapshot: {root} has {len(sizes)} files, more than {MOST_FILES}")


def _packed(root: Path, names: dict[str, int]) -> bytes:
    archive = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=archive, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            member, path = tarfile.TarInfo(name), root / name
            member.mtime = PACKED_AT
            try:
                if path.is_symlink():
                    member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
                    tar.addfile(member)
                    continue
                data = path.read_bytes()
                member.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            except OSError as problem:
                raise UserError(f"--snapshot: {path}: {problem.strerror}") from problem
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def _listed_by_git(root: Path, below: str = "") -> Iterator[str]:
    """Tracked files and untracked ones that are not ignored, also of submodules."""
    listed = _git(root / below, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split(b"\0")):
        path = os.path.join(below, os.fsdecode(name).rstrip("/"))
        if (root / path).is_dir() and not (root / path).is_symlink():
            if (root / path / ".git").exists():
                yield from _listed_by_git(root, path)
        else:
            yield path


def _git(directory: Path, *arguments: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(directory), *arguments], capture_output=True, timeout=60, check=True
    )
    return done.stdout


def _listed(root: Path) -> Iterator[str]:
    for place, directories, files in os.walk(root):
        links = [name for name in directories if os.path.islink(os.path.join(place, name))]
        directories[:] = [n for n in directories if n not in NOT_PACKED and n not in links]
        for name in (*files, *links):
            if not name.endswith(NOT_PACKED_SUFFIXES):
                yield os.path.relpath(os.path.join(place, name), root)
