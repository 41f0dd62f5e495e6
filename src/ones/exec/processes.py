"""Processes of this machine: finding descendants, and signals that cannot hit another process.

A process is identified by its pid and start time, so a reused pid is never mistaken for its former
owner. Orphans are reparented to ones-exec, which is their subreaper. An orphan belongs to the
worker that has the same session or the same ONES_RUN_DIR.
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

#: marks, in its environment, a process that belongs to the job and not to the worker that started
#: it, such as the job's store: it stays until the last worker has left
OF_JOB = b"ONES_OF_JOB=1"

_LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int | bytes) -> None:
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def die_with_parent(parent: int) -> None:
    """Makes a new child process die with its parent, also if the parent has just died."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


class ProcessInfo(NamedTuple):
    pid: int
    born: int  # start time in ticks since boot
    parent: int
    session: int
    zombie: bool


def find_process(pid: int) -> ProcessInfo | None:
    rest = _stat_fields(pid)
    if not rest:
        return None
    return ProcessInfo(pid, int(rest[19]), int(rest[1]), int(rest[3]), rest[0] in (b"Z", b"X"))


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return []
    return text[text.rindex(b")") + 2 :].split()  # the name may hold spaces and parentheses


class ProcessUsage(NamedTuple):
    pid: int
    born: int  # start time in ticks since boot
    parent: int
    cpu_seconds: float  # since its start
    memory_bytes: int  # resident; pages that processes share count in each


_TICK_SECONDS, _PAGE_BYTES = 1.0 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def usage_of_all() -> Iterator[ProcessUsage]:
    """What all processes use, of any user: /proc/PID/stat is open to all."""
    for name in os.listdir("/proc"):
        rest = _stat_fields(int(name)) if name.isdecimal() else []
        if rest:
            cpu_seconds = (int(rest[11]) + int(rest[12])) * _TICK_SECONDS
            memory = int(rest[21]) * _PAGE_BYTES
            yield ProcessUsage(int(name), int(rest[19]), int(rest[1]), cpu_seconds, memory)


def all_processes() -> Iterator[ProcessInfo]:
    """All processes but zombies."""
    for name in os.listdir("/proc"):
        process = find_process(int(name)) if name.isdecimal() else None
        if process is not None and not process.zombie:
            yield process


def descendants(roots: Iterable[int]) -> list[ProcessInfo]:
    """All descendants of these processes."""
    children: dict[int, list[ProcessInfo]] = {}
    for process in all_processes():
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessInfo] = []
    todo = list(roots)
    while todo:
        below = children.pop(todo.pop(), [])
        found += below
        todo += [p.pid for p in below]
    return found


def has_variable(pid: int, variable: bytes) -> bool:
    """Whether a process was started with this `NAME=value` in its environment."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable in file.read().split(b"\0")
    except OSError:
        return False


def kill_all(find: Callable[[], list[ProcessInfo]], where: str, seconds: float) -> None:
    """Kills processes until `find` returns none. Raises TimeoutError if one cannot be killed."""
    deadline = time.monotonic() + seconds
    while remaining := find():
        for process in remaining:
            send_signal(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in remaining)
            raise TimeoutError(f"{where}: processes {pids} cannot be killed")
        time.sleep(0.02)


def send_signal(process: ProcessInfo, number: int) -> None:
    """Signals exactly this process; does nothing if it has ended."""
    with suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            now = find_process(process.pid)
            if now is not None and now.born == process.born and not now.zombie:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
