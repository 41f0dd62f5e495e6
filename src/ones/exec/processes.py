"""Whose process is whose: descendants, leftovers, and signals that hit no stranger.

A process is known by its pid and its start time, so a pid that was given on is never
mistaken for its former owner. Orphans come to ones-exec, which is their subreaper; they
belong to the worker whose session they are in or whose ONES_RUN_DIR they carry.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

#: in the environment of a process that belongs to the job and not to the worker that started it,
#: such as the job's rendezvous store: it stays until the last worker has left
OF_JOB = b"ONES_OF_JOB=1"

_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with(parent: int) -> None:
    """Called in a new child: be killed when the parent dies, also if that was just now."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class Process(NamedTuple):
    pid: int
    born: int
    parent: int
    session: int
    zombie: bool


def look(pid: int) -> Process | None:
    """The process with this pid, if there is one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    rest = text[text.rindex(b")") + 2 :].split()  # the name may hold spaces and parentheses
    return Process(pid, int(rest[19]), int(rest[1]), int(rest[3]), rest[0] in (b"Z", b"X"))


def everybody() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := look(int(name))) is not None and not process.zombie:
            yield process


def descendants(roots: Iterable[int]) -> list[Process]:
    """Everybody below these, without them."""
    children: dict[int, list[Process]] = {}
    for process in everybody():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = list(roots)
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [p.pid for p in below]
    return found


def carries(pid: int, marks: Iterable[bytes]) -> bool:
    """Was it started with one of these `NAME=value` in its environment?"""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return False
    return not set(marks).isdisjoint(variables)


def kill_all(left: Callable[[], list[Process]], where: str, seconds: float) -> None:
    """Returns when `left` finds nobody. Raises TimeoutError if somebody cannot be killed."""
    deadline = time.monotonic() + seconds
    while remaining := left():
        for process in remaining:
            send(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in remaining)
            raise TimeoutError(f"{where}: processes {pids} cannot be killed")
        time.sleep(0.02)


def send(process: Process, number: int) -> bool:
    """Signal this very process, or nobody."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = look(process.pid)
        if now is None or now.born != process.born or now.zombie:
            return False
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, number)
            return True
        return False
    finally:
        os.close(handle)
