"""Reads files that a training process may have replaced, and makes directories it must not share.

Run directories are hostile: a worker runs there and may put a link, a pipe, a huge file or garbage
in the place of every file. Reading never follows a link, never blocks and never takes more than a
limit.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """A descriptor for reading. Raises OSError if it is not a regular file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path}: is not a regular file")
    return handle


def read_regular(path: Path, most: int, *, owner: int | None = None) -> bytes:
    """All of it. Raises OSError if it is not a regular file, larger than `most` bytes, or not of
    that user."""
    with os.fdopen(open_regular(path), "rb") as file:
        found = os.fstat(file.fileno())
        if owner is not None and found.st_uid != owner:
            raise OSError(f"{path}: belongs to user {found.st_uid}, not to {owner}")
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(f"{path}: is larger than {most} bytes")
    return data


def make_private(directory: Path) -> None:
    """Creates it with mode 0700, or takes one that is ours. Raises PermissionError for a link and
    for a directory of another user: there somebody else could replace what we write."""
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        found = directory.lstat()
        if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
            raise PermissionError(
                f"{directory}: is a link or a file, not a directory; remove it"
            ) from None
        if found.st_uid != os.geteuid():
            raise PermissionError(
                f"{directory}: belongs to user {found.st_uid}, not to {os.geteuid()};"
                " remove it or choose another directory"
            ) from None
        if stat.S_IMODE(found.st_mode) & 0o077:
            directory.chmod(0o700)
