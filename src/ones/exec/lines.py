"""JSON lines over a Unix socket: how launchers and ones-exec talk.

Requests are numbered and answered by number; news come unasked. The socket lies in the run
directory and is reached through an open directory, for its path may be longer than a
socket's address.

    {"n": 1, "do": "launch", "spec": {...}}             {"n": 1, "ok": true, "known": false}
    {"n": 1, "do": "prepare", "spec": {...}}            {"n": 1, "ok": true}
    {"n": 2, "do": "stop", "id": "3-n0.1", "grace": 5}  {"n": 2, "ok": true}
    {"n": 3, "do": "watch"}                             {"n": 3, "ok": true, "launches": [...]}
    {"n": 4, "do": "close", "grace": 5}                 {"n": 4, "ok": true}
    news:  {"event": "started", "id": ..., "status": {...}}, {"event": "exited", ..., "exit": {...}}

A line that is not a JSON object, is too long, or holds a number out of range ends the connection:
`closed` is set and the reason is logged. Reading never raises.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from ones.exec.logs import Sparing
from ones.exec.records import SOCKET

LONGEST = 8 << 20  # bytes of a request; environments may be large, but not so large
BEFORE_PROOF = 4 << 10  # bytes of a line from a peer that has not proved who it is
LARGEST = 2**63  # of a number

log = logging.getLogger(__name__)
_refusals = Sparing()


class Connection:
    """One end, which never blocks: what cannot be sent yet is kept.

    `most`: bytes of a line; may be raised once the peer has proved who it is. `raw`: texts may
    hold what is not Unicode, as environments do."""

    def __init__(self, sock: socket.socket, *, most: int = LONGEST, raw: bool = False) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.most = most
        self._raw = raw
        self._in = b""
        self._out = b""
        self.closed = False  # the other end is; `close` is for the owner, who unregisters first

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        if len(self._out) > LONGEST:
            self.closed = True  # somebody who does not read
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out) and not self.closed

    def flush(self) -> None:
        while self._out and not self.closed:
            try:
                sent = self.sock.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            self._out = self._out[sent:]

    def receive(self) -> Iterator[dict[str, Any]]:
        """The messages that have come; `closed` is set at the end of the line, and by the first
        line that is not a message."""
        while not self.closed and len(self._in) <= self.most:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            self._in += data
        *whole, self._in = self._in.split(b"\n")
        for line in whole:
            try:
                message = self._read(line)
            except (ValueError, RecursionError) as problem:
                self._refuse(problem)
                return
            yield message
        if len(self._in) > self.most:
            self._refuse(f"a line is longer than {self.most} bytes")

    def _read(self, line: bytes) -> dict[str, Any]:
        if len(line) > self.most:
            raise ValueError(f"a line is longer than {self.most} bytes")
        message = json.loads(
            line.decode(), parse_int=_whole, parse_float=_finite, parse_constant=_no_number
        )
        if not isinstance(message, dict):
            raise ValueError("a line is not a JSON object")  # noqa: TRY004
        if not self._raw and b"\\u" in line:
            json.dumps(message, ensure_ascii=False).encode()  # refuses half a character
        return message

    def _refuse(self, problem: Exception | str) -> None:
        self.closed = True
        self._in = b""
        why = type(problem).__name__ if isinstance(problem, RecursionError) else str(problem)[:200]
        if (more := _refusals.suppressed()) is not None:
            about = {"reason": why, "suppressed": more}
            log.warning("invalid line, connection closed", extra=about)

    def close(self) -> None:
        self.closed = True
        self.sock.close()


def _whole(text: str) -> int:
    value = int(text)
    if not -LARGEST <= value < LARGEST:
        raise ValueError("a number is out of range")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def listen(run_dir: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        (run_dir / SOCKET).unlink(missing_ok=True)
        sock.bind(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    sock.listen(64)
    sock.setblocking(False)
    return sock


def connect(run_dir: Path) -> Connection:
    """Raises OSError if nobody listens there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{SOCKET}")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(directory)
    return Connection(sock)
