"""JSON lines over a socket: the protocol between launchers and ones-exec, and between agents.

Requests are numbered and answered by number; events are sent to launchers that watch.

    {"n": 1, "do": "launch", "spec": {...}}             {"n": 1, "ok": true, "known": false}
    {"n": 1, "do": "prepare", "spec": {...}}            {"n": 1, "ok": true}
    {"n": 2, "do": "stop", "id": "3-n0.1", "grace": 5}  {"n": 2, "ok": true}
    {"n": 3, "do": "watch"}                             {"n": 3, "ok": true, "launches": [...]}
    {"n": 4, "do": "close", "grace": 5}                 {"n": 4, "ok": true}
    event: {"event": "started", "id": ..., "status": {...}}, {"event": "exited", ..., "exit": {...}}

A line that is not a JSON object, is too long, or holds a number out of range ends the connection:
`closed` is set and the reason is logged. Reading never raises.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from ones.exec.files import connect_socket, listen_socket, peer_uid
from ones.exec.logs import LogLimiter
from ones.exec.run_dir import SOCKET

MAX_LINE = 8 << 20  # bytes; a request holds the environment of a process
MAX_UNAUTHENTICATED_LINE = 4 << 10  # bytes, from a peer that is not authenticated yet
MAX_NUMBER = 2**63

log = logging.getLogger(__name__)
_limiter = LogLimiter()


class Connection:
    """One end of a connection. Sending never blocks: data that the peer does not read yet is kept.

    `max_line`: bytes; may be raised once the peer is authenticated. `raw`: strings may hold lone
    surrogates, as environments do.
    """

    def __init__(self, sock: socket.socket, *, max_line: int = MAX_LINE, raw: bool = False) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.max_line = max_line
        self._raw = raw
        self._in = b""
        self._out = b""
        self.closed = False  # nothing more arrives: the owner unregisters it and calls `close`

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        if len(self._out) > MAX_LINE:
            self.closed = True  # the peer does not read
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
        """Yields the messages that have arrived. Sets `closed` at the end or at an invalid line."""
        while not self.closed and len(self._in) <= self.max_line:
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
                message = self._parse(line)
            except (ValueError, RecursionError) as problem:
                self._refuse(problem)
                return
            yield message
        if len(self._in) > self.max_line:
            self._refuse(f"a line is longer than {self.max_line} bytes")

    def _parse(self, line: bytes) -> dict[str, Any]:
        if len(line) > self.max_line:
            raise ValueError(f"a line is longer than {self.max_line} bytes")
        message = json.loads(
            line.decode(), parse_int=_integer, parse_float=_finite, parse_constant=_reject_constant
        )
        if not isinstance(message, dict):
            raise ValueError("a line is not a JSON object")  # noqa: TRY004
        if not self._raw and b"\\u" in line:
            json.dumps(message, ensure_ascii=False).encode()  # raises for a lone surrogate
        return message

    def _refuse(self, problem: Exception | str) -> None:
        self.closed = True
        self._in = b""
        why = type(problem).__name__ if isinstance(problem, RecursionError) else str(problem)[:200]
        if (more := _limiter.suppressed()) is not None:
            extra = {"reason": why, "suppressed": more}
            log.warning("invalid line, connection closed", extra=extra)

    def close(self) -> None:
        self.closed = True
        self.sock.close()


def _integer(text: str) -> int:
    value = int(text)
    if not -MAX_NUMBER <= value < MAX_NUMBER:
        raise ValueError("a number is out of range")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def listen(run_dir: Path) -> socket.socket:
    sock = listen_socket(run_dir, SOCKET)
    sock.setblocking(False)
    return sock


def connect(run_dir: Path, owner: int | None = None) -> Connection:
    """Connects to the ones-exec of a run directory.

    Raises OSError if none listens there, or a process of another user than `owner`: the directory
    may be a link to that of another job.
    """
    sock = connect_socket(run_dir, SOCKET)
    if owner is not None and (uid := peer_uid(sock)) != owner:
        sock.close()
        raise PermissionError(f"{run_dir}: a process of user {uid} answers, not of {owner}")
    return Connection(sock)
