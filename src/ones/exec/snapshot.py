"""The code of a job that was submitted with `--snapshot`, on a node of the job.

`python -I snapshot.py COMMAND...` fetches the archive from the controller with the job's token,
unpacks it once into the job's directory on this node, and runs COMMAND there, as the job's user.
This file is run by its path, by any Python: it imports the standard library only.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import io
import os
import posixpath
import shutil
import ssl
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

DIGEST = "ONES_SNAPSHOT"  # SHA-256 of the archive; a job without a snapshot does not have it
ROOT = "ONES_SNAPSHOT_ROOT"  # the directory that was packed
SUBMIT_DIR = "ONES_SUBMIT_DIR"  # where the job was submitted: ROOT, or a directory below it
PATH = "/worker/snapshot"  # of the request to the controller
CODE = "code"  # directory of the unpacked files, in the job's directory on the node
MOST_FILES = 100_000
MB = 1_000_000
RETRY_SECONDS = 60.0  # how long a controller that does not answer is asked again
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 60.0


class SnapshotError(Exception):
    """The archive is not valid, or cannot be fetched or unpacked."""


def enter(env: MutableMapping[str, str]) -> str:
    """Unpacks the snapshot unless another worker has; returns the directory to run in.

    Changes `env`: directories of the packed tree in PYTHONPATH become those of the unpacked one.
    """
    code = Path(env["ONES_JOB_DIR"]) / CODE
    root, submitted_in = Path(env[ROOT]), Path(env[SUBMIT_DIR])
    with _locked(code.with_suffix(".lock")):
        if not code.is_dir():
            unpack(_fetch(env), env[DIGEST], code)
    parts = [_moved(part, root, code) for part in env.get("PYTHONPATH", "").split(os.pathsep)]
    if any(parts):
        env["PYTHONPATH"] = os.pathsep.join(parts)
    directory = code / submitted_in.relative_to(root)
    directory.mkdir(parents=True, exist_ok=True)  # it had no file that was packed
    env["PWD"] = str(directory)
    return str(directory)


def _moved(path: str, root: Path, code: Path) -> str:
    """The path below `code` of a path below `root`; another path, or one not packed, as it is."""
    if path and Path(path).is_relative_to(root):
        moved = code / Path(path).relative_to(root)
        return str(moved) if moved.exists() else path
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpack(data: bytes, digest: str, target: Path) -> None:
    """Unpacks an archive to a directory that does not exist yet. Raises SnapshotError."""
    check(data, digest, most_bytes=None)
    beside = target.with_suffix(".new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(mode=0o750)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        _extract(archive, beside)
    beside.rename(target)


def _extract(archive: tarfile.TarFile, target: Path) -> None:
    """Writes the members, links last. Filters of `extractall` are missing in Python 3.11.3."""
    links = {}
    for member in archive:
        path = target / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            links[path] = member.linkname
        elif (content := archive.extractfile(member)) is not None:
            with open(path, "xb") as file:
                shutil.copyfileobj(content, file)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
    for path, linked in links.items():
        path.symlink_to(linked)


def check(data: bytes, digest: str, most_bytes: int | None) -> None:
    """Raises SnapshotError unless every member stays in the directory that it is unpacked to.

    `digest`: SHA-256 of the archive. `most_bytes`: maximum size of all files together.
    """
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise SnapshotError(f"the archive has the digest {found[:12]}, not {digest[:12]}")
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            _check_members(archive, most_bytes)
    except (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError) as problem:
        raise SnapshotError(f"the archive cannot be read: {problem}") from problem


def _check_members(archive: tarfile.TarFile, most_bytes: int | None) -> None:
    size, names, links = 0, set[str](), set[str]()
    for member in archive:
        name = member.name
        parts = name.split("/")
        if not name or name.startswith("/") or any(part in ("", ".", "..") for part in parts):
            raise SnapshotError(f"{name!r} is not the path of a file in the tree")
        if name in names or len(names) >= MOST_FILES:
            what = "is there twice" if name in names else f"is file {MOST_FILES + 1}: too many"
            raise SnapshotError(f"{name!r} {what}")
        names.add(name)
        size += member.size
        if most_bytes is not None and size > most_bytes:
            raise SnapshotError(f"the files have more than {most_bytes / MB:g} MB")
        if member.issym():
            links.add(name)
            if leads_out(name, member.linkname):
                raise SnapshotError(f"{name!r} is a link out of the tree: {member.linkname!r}")
        elif not member.isreg():
            raise SnapshotError(f"{name!r} is neither a file nor a link")
    for name in names:
        parts = name.split("/")
        if any("/".join(parts[:length]) in links for length in range(1, len(parts))):
            raise SnapshotError(f"{name!r} is below a link")


def leads_out(name: str, target: str) -> bool:
    """Whether a link of this name leads out of the tree.

    >>> leads_out("a/b", "../c"), leads_out("a/b", "../../c"), leads_out("a", "/etc")
    (False, True, True)
    """
    parts = target.split("/")
    climbs = len(parts) - len([*_without_climbs(parts)])
    below = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    # `..` after a name could climb from wherever that name leads
    return target.startswith("/") or ".." in parts[climbs:] or below.split("/")[0] == ".."


def _without_climbs(parts: list[str]) -> Iterator[str]:
    begun = False
    for part in parts:
        begun = begun or part not in ("..", ".")
        if begun:
            yield part


# the controller


def _fetch(env: MutableMapping[str, str]) -> bytes:
    url = env.get("ONES_CONTROLLER") or env.get("ONES_PROGRESS", "")
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            status, data = _get(url, env["ONES_TOKEN"], env.get("ONES_AUTHORITY", ""))
        except (OSError, http.client.HTTPException) as problem:
            status, data = 0, str(problem).encode()
        if status == http.HTTPStatus.OK:
            return data
        if 400 <= status < 500 or time.monotonic() >= deadline:
            why = data[:300].decode(errors="replace")
            raise SnapshotError(f"the snapshot cannot be fetched from {url}: {status or ''} {why}")
        time.sleep(PAUSE_SECONDS)


def _get(url: str, token: str, authority: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connect: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    more = {}
    if parts.scheme == "https":
        context = ssl.create_default_context()
        if authority:
            context.load_verify_locations(cadata=authority)
        connect, more = http.client.HTTPSConnection, {"context": context}
    connection = connect(parts.netloc, timeout=TIMEOUT_SECONDS, **more)
    try:
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"{parts.path.rstrip('/')}{PATH}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def main(command: list[str]) -> int:
    env = dict(os.environ)
    try:
        os.chdir(enter(env))
    except (SnapshotError, tarfile.TarError, OSError) as problem:
        print(f"ones: error: {problem}", file=sys.stderr)
        return 1
    try:
        os.execvpe(command[0], command, env)
    except OSError as problem:
        print(f"ones: error: {command[0]}: {problem.strerror}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
