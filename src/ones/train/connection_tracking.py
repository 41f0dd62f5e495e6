"""TCP connections of this process that forked children must close and that can be shut down here.

A connection ends when the last process that holds it closes it. DataLoader workers are forked and
inherit open connections: a worker that closes a group, or dies, would still look connected to the
other workers. So every forked child first closes its copies of tracked connections. gloo does not
name its connections: those opened while it connects are tracked.

Connections to a node that is cut off do not end by themselves. `shut_down` ends them here, so that
the threads that wait for that node wake up.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator

_LISTENING = "0A"  # TCP state in /proc/net/tcp
_tracked: set[str] = set()  # names as in /proc (socket:[inode]), because descriptors are reused
_open_before: list[frozenset[str]] = []  # one set for each `track_connections` under way


@contextlib.contextmanager
def track_connections() -> Iterator[set[str]]:
    """Tracks the TCP connections opened within. The yielded set holds their names afterwards."""
    before = frozenset(_connections().values())
    _open_before.append(before)
    opened: set[str] = set()
    try:
        yield opened
    finally:
        now = set(_connections().values())
        opened.update(now - before)
        _tracked.intersection_update(now)  # the others are closed by now
        _tracked.update(opened)
        _open_before.remove(before)


def shut_down(names: set[str]) -> None:
    """Shuts these connections down as if the peers had died; waiting threads get an error."""
    shutdown, states = ctypes.CDLL(None).shutdown, _tcp_sockets()
    for descriptor, name in _connections().items():
        if name not in names or states.get(name, _LISTENING) == _LISTENING:
            continue
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)  # the owner may close it now, and its number be reused
            if os.readlink(f"/proc/self/fd/{copy}") == name:
                shutdown(copy, int(socket.SHUT_RDWR))
            os.close(copy)


def _connections() -> dict[int, str]:
    """TCP sockets of this process, listening ones included: descriptor -> name."""
    tcp = _tcp_sockets()
    found = {}
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            if name in tcp:
                found[descriptor] = name
    return found


def _tcp_sockets() -> dict[str, str]:
    """TCP sockets of all processes in this network namespace: name -> state.

    Read from /proc: wrapping a descriptor in a Python socket object may change it.
    """
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/self/net/{table}") as lines:
            next(lines, None)  # the heading
            for columns in map(str.split, lines):
                found[f"socket:[{columns[9]}]"] = columns[3]
    return found


def _close_in_child() -> None:
    if not _tracked and not _open_before:
        return
    for descriptor, name in _connections().items():
        if name in _tracked or any(name not in before for before in _open_before):
            os.close(descriptor)
    _tracked.clear()
    _open_before.clear()


os.register_at_fork(after_in_child=_close_in_child)
