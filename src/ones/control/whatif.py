"""What-if replays: the last hours of jobs under another policy, each in a process of its own.

The process (`ones.lab.whatif`) has the lowest priority and a limit of CPU time, and ends when this
controller does. A user has one replay at a time; its result is kept in memory until the next one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Literal

from ones.control import logs
from ones.control.limits import LimitError
from ones.errors import UserError

COMMAND = ("-m", "ones.lab.whatif")
#: libraries compute with one thread
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
HOUR = 3600.0
MOST_AT_ONCE = 2  # of all users

State = Literal["running", "done", "failed", "cancelled"]
RUNNING: State = "running"
DONE: State = "done"
FAILED: State = "failed"
CANCELLED: State = "cancelled"

log = logs.logger(__name__)


@dataclass(slots=True)
class Replay:
    """One replay of a user."""

    policy: str
    hours: float
    started_at: float
    state: State = RUNNING
    done: int = 0  # jobs that have ended in the simulations
    total: int = 0  # 0: the run log is being read
    problem: str = ""
    result: Mapping[str, Any] | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    errors: IO[bytes] = field(default_factory=tempfile.TemporaryFile, repr=False)


class WhatIf:
    """`database`: its URL; `cpu_seconds`: limit of a replay."""

    def __init__(self, database: str, cpu_seconds: float, now: Callable[[], float]) -> None:
        self._database, self._cpu_seconds, self._now = database, cpu_seconds, now
        self._lock = threading.Lock()
        self._replays: dict[str, Replay] = {}  # the last one of each user

    def of(self, user: str) -> Replay | None:
        return self._replays.get(user)

    def start(self, user: str, policy: str, hours: float) -> Replay:
        with self._lock:
            last = self._replays.get(user)
            if last is not None and last.state == RUNNING:
                raise UserError(
                    f"a replay of {user} runs already (policy {last.policy}); wait for it or"
                    " cancel it"
                )
            running = sum(each.state == RUNNING for each in self._replays.values())
            if running >= MOST_AT_ONCE:
                raise LimitError(f"{running} replays of other users run", "replays at once",
                                 MOST_AT_ONCE, status=429, wait=10.0)  # fmt: skip
            replay = self._replays[user] = Replay(policy, hours, self._now())
            replay.process = _process(replay.errors)
        threading.Thread(
            target=self._follow, args=(replay,), name="ones-whatif", daemon=True
        ).start()
        log.info("what-if started", user=user, policy=policy, hours=hours)
        return replay

    def cancel(self, user: str) -> Replay | None:
        """Ends the user's replay, if one runs."""
        replay = self._replays.get(user)
        if replay is not None:
            self._end(replay)
        return replay

    def close(self) -> None:
        for replay in list(self._replays.values()):
            self._end(replay)

    def _end(self, replay: Replay) -> None:
        with self._lock:
            if replay.state != RUNNING:
                return
            replay.state = CANCELLED
        if replay.process is not None:
            replay.process.kill()

    def _follow(self, replay: Replay) -> None:
        """Send the request and read messages until the process has ended."""
        process, errors = replay.process, replay.errors
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has died: its exit code says why
                process.stdin.write(json.dumps(self._request(replay)).encode() + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                message = json.loads(line)
                replay.done = message.get("done", replay.done)
                replay.total = message.get("total", replay.total)
                replay.problem = message.get("problem", replay.problem)
                replay.result = message.get("result", replay.result)
        except (OSError, ValueError) as problem:
            replay.problem = f"the replay failed: {problem}"
        finally:
            with suppress(OSError):
                process.stdin.close()  # this ends the process
            process.stdout.close()
        code = process.wait()
        with self._lock:
            if replay.state == RUNNING:
                replay.state = DONE if replay.result is not None else FAILED
        if replay.state == FAILED and not replay.problem:
            replay.problem = self._why(code, _last_line(errors))
        errors.close()
        log.info("what-if ended", policy=replay.policy, state=replay.state, problem=replay.problem)

    def _request(self, replay: Replay) -> dict[str, Any]:
        return {
            "database": self._database,
            "policy": replay.policy,
            "since": replay.started_at - replay.hours * HOUR,
            "until": replay.started_at,
            "cpu_seconds": self._cpu_seconds,
        }

    def _why(self, code: int, last: str) -> str:
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return (
                f"the replay used more than {self._cpu_seconds:g} s of CPU time or too much memory;"
                " ask for fewer hours, or let an admin raise service.whatif_cpu_seconds"
            )
        return f"the replay ended with code {code}: {last or 'no message'}"


def _process(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **ONE_THREAD},
    )


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
