"""The launcher's client of the driver process: starts it, restarts it, and sends it requests.

Requests are kept until they are answered: a new driver gets them again.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ones.exec.line_protocol import Connection

RESTART_SECONDS = 1.0  # between two starts
END_SECONDS = 5.0

log = logging.getLogger(__name__)


class DriverClient:
    """`hello` returns the first message to a new driver. `log`: file for the driver's output."""

    def __init__(self, log: Path, hello: Callable[[], dict[str, Any]]) -> None:
        self._log, self._hello = log, hello
        self._requests: dict[int, dict[str, Any]] = {}  # without an answer
        self._number = 0
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.start_at: float | None = 0.0

    # the process

    def start_if_due(self) -> None:
        if self.start_at is None or time.monotonic() < self.start_at:
            return
        self.start_at = None
        ours, its = socket.socketpair()
        try:
            with self._log.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ones.launchers.ray.driver", str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=[its.fileno()],
                )
        except OSError as problem:  # a full disk, too many processes
            log.warning("Ray driver not started, tried again", extra={"reason": str(problem)})
            ours.close()
            self.start_again()
            return
        finally:
            its.close()
        self._connection = Connection(ours)
        self._connection.send({"do": "hello", **self._hello()})
        for number, request in self._requests.items():
            self._connection.send({"n": number, **request})

    def start_again(self) -> None:
        self.start_at = time.monotonic() + RESTART_SECONDS

    @property
    def is_there(self) -> bool:
        """Whether a driver runs, or will be started."""
        return self._connection is not None or self.start_at is not None

    @property
    def has_died(self) -> bool:
        return self._connection is not None and self._connection.closed

    def end(self) -> None:
        """Ends the driver by closing its connection; kills it after END_SECONDS."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    # messages

    @property
    def connections(self) -> list[Connection]:
        return [self._connection] if self._connection is not None else []

    def receive(self) -> Iterator[dict[str, Any]]:
        if self._connection is not None:
            self._connection.flush()
            yield from self._connection.receive()

    def request(self, request: dict[str, Any]) -> int:
        self._number += 1
        self._requests[self._number] = request
        if self._connection is not None:
            self._connection.send({"n": self._number, **request})
        return self._number

    def answered(self, number: int) -> dict[str, Any] | None:
        """Removes and returns the request; None: it is not pending."""
        return self._requests.pop(number, None)

    def is_pending(self, number: int) -> bool:
        return number in self._requests

    def pending_launches(self) -> set[str]:
        return {r["launch"]["id"] for r in self._requests.values() if r["do"] == "launch"}

    def drop(self, node: str) -> None:
        """Drops the requests to a node that is lost."""
        for number in [n for n, r in self._requests.items() if r.get("node") == node]:
            del self._requests[number]
