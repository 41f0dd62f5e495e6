"""The bridge as its launcher sees it: started, started again when it died, asked, and heard.

Requests are kept until they are answered: a new bridge is asked again.
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

AGAIN_SECONDS = 1.0  # between two starts
END_SECONDS = 5.0

log = logging.getLogger(__name__)


class Driver:
    """`hello` gives the first words to a new one."""

    def __init__(self, log: Path, hello: Callable[[], dict[str, Any]]) -> None:
        self._log, self._hello = log, hello
        self._requests: dict[int, dict[str, Any]] = {}  # without an answer
        self._number = 0
        self._line: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.start_at: float | None = 0.0

    # its life

    def start_if_due(self) -> None:
        if self.start_at is None or time.monotonic() < self.start_at:
            return
        self.start_at = None
        ours, its = socket.socketpair()
        try:
            with self._log.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "ones.launchers.ray.bridge", str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=[its.fileno()],
                )
        except OSError as problem:  # a full disk, too many processes
            log.warning("bridge not started, tried again", extra={"reason": str(problem)})
            ours.close()
            self.start_again()
            return
        finally:
            its.close()
        self._line = Connection(ours)
        self._line.send({"do": "hello", **self._hello()})
        for number, request in self._requests.items():
            self._line.send({"n": number, **request})

    def start_again(self) -> None:
        self.start_at = time.monotonic() + AGAIN_SECONDS

    @property
    def is_there(self) -> bool:
        """Or will be."""
        return self._line is not None or self.start_at is not None

    @property
    def has_died(self) -> bool:
        return self._line is not None and self._line.closed

    def end(self) -> None:
        """It ends when its line is closed."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    # the line

    @property
    def lines(self) -> list[Connection]:
        return [self._line] if self._line is not None else []

    def receive(self) -> Iterator[dict[str, Any]]:
        if self._line is not None:
            self._line.flush()
            yield from self._line.receive()

    def ask(self, request: dict[str, Any]) -> int:
        self._number += 1
        self._requests[self._number] = request
        if self._line is not None:
            self._line.send({"n": self._number, **request})
        return self._number

    def answered(self, number: int) -> dict[str, Any] | None:
        """The request that it was; None: nobody waits for it any more."""
        return self._requests.pop(number, None)

    def is_asked(self, number: int) -> bool:
        return number in self._requests

    def launches_asked(self) -> set[str]:
        return {r["launch"]["id"] for r in self._requests.values() if r["do"] == "launch"}

    def drop(self, node: str) -> None:
        """What it was asked to do there will not be done."""
        for number in [n for n, r in self._requests.items() if r.get("node") == node]:
            del self._requests[number]
