"""Access to files and sockets in run directories, where a worker may have replaced every file.

A worker may put a link, a pipe, a huge file or invalid data there. Reading never follows a link,
never blocks, and never reads more bytes than a limit.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def open_regular(path: Path, owner: int | None = None) -> int:
    """Opens a file for reading; returns the descriptor.

    Raises OSError if the file is not regular or not `owner`'s. Directories on the way may be links
    of the owner of the run directory; a file of another user is never read for it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise OSError(f"{path}: is not a regular file")
    if owner is not None and found.st_uid != owner:
        os.close(handle)
        raise OSError(f"{path}: belongs to user {found.st_uid}, not to {owner}")
    return handle


def read_regular(path: Path, max_bytes: int, *, owner: int | None = None) -> bytes:
    """Returns the content. Raises OSError if the file is not regular, too large, not `owner`'s."""
    with os.fdopen(open_regular(path, owner), "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(f"{path}: is larger than {max_bytes} bytes")
    return data


def make_private(directory: Path) -> None:
    """Creates a directory with mode 0700, or accepts an existing one of this user.

    Raises PermissionError for a link, and for a directory of another user: that user could replace
    the files in it.
    """
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


def try_lock(handle: int) -> bool:
    """Locks an open file; False if another process holds the lock. Closing the file unlocks it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def connect_socket(directory: Path, name: str) -> socket.socket:
    """Connects to a Unix socket in a directory. Raises OSError if no process listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory) as path:
            sock.connect(f"{path}/{name}")
    except OSError:
        sock.close()
        raise
    return sock


def listen_socket(directory: Path, name: str) -> socket.socket:
    """Listens on a Unix socket in a directory; replaces one that an earlier process left.

    The group may connect too: it is the service's if ones-launchd started this process.
    """
    (directory / name).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short_path(directory) as path:
        sock.bind(f"{path}/{name}")
        os.chmod(f"{path}/{name}", 0o770)
    sock.listen(64)
    return sock


def peer_uid(sock: socket.socket) -> int:
    """The user of the process at the other end of a Unix socket, as the kernel knows it."""
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A path to the directory through a descriptor: its own may be too long for a socket."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
