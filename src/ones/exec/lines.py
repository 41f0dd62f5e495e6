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
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ones.exec.records import SOCKET

LONGEST = 8 << 20  # bytes of a request; environments may be large, but not so large


class Connection:
    """One end, which never blocks: what cannot be sent yet is kept."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
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
        """The messages that have come; `closed` is set at the end of the line."""
        while not self.closed:
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
        if len(self._in) > LONGEST:
            self.closed = True
        for line in whole:
            message = json.loads(line)
            if isinstance(message, dict):
                yield message

    def close(self) -> None:
        self.closed = True
        self.sock.close()


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
