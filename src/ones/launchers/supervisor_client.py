"""Client of one ones-exec: starts it, reconnects to it, and cleans up after it if it was killed.

Runs in the launcher's thread.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, Protocol

from ones.exec.cleanup import clean_up, lock_run_dir
from ones.exec.line_protocol import Connection, connect
from ones.exec.records import (
    Exit,
    Launch,
    Status,
    fenced,
    not_started,
    parse_record,
    without_process,
)
from ones.exec.run_dir import LOG, known_launches, read_record

RETRY_SECONDS = 0.05
CUT_SECONDS = 0.5  # if two connections are cut within this time, the pause before the next one
MOST_STARTS = 3
#: variables of the controller that ones-exec gets: no secrets
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LOGNAME", "ONES_BOOT_ID")


log = logging.getLogger(__name__)

#: time beyond the grace of a stop, after which a job user's ones-exec is not trusted any more
OVERDUE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class StartingSupervisor:
    """An ones-exec that was started: its first line says whether it is ready."""

    output: IO[bytes]
    process: subprocess.Popen[bytes] | None = None  # our child, which ends as it detaches

    def finish(self) -> None:
        self.output.close()
        if self.process is not None:
            self.process.wait()


class SupervisorStarter(Protocol):
    """Starts the ones-exec of a run directory, and cleans up after it."""

    #: user that ones-exec runs as and that owns its files; None: the user of this process
    owner: int | None

    def start(self, run_dir: Path, options: Sequence[str]) -> StartingSupervisor:
        """Starts ones-exec. Raises OSError."""
        ...

    def clean_up(self, run_dir: Path) -> bool:
        """Kills what a dead ones-exec has left. False: ask again. Raises OSError, TimeoutError."""
        ...

    def is_recorded(self, run_dir: Path) -> bool:
        """Whether the exits of all launches are recorded; else a new ones-exec must do that."""
        ...


class OwnSupervisor:
    """Starts ones-exec as the user of this process."""

    owner: int | None = None

    def start(self, run_dir: Path, options: Sequence[str]) -> StartingSupervisor:
        process = subprocess.Popen(
            [sys.executable, "-m", "ones.exec", str(run_dir), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
            start_new_session=True,
        )
        assert process.stdout is not None
        return StartingSupervisor(process.stdout, process)

    def clean_up(self, run_dir: Path) -> bool:
        with lock_run_dir(run_dir) as mine:
            if mine:
                clean_up(run_dir)
        return mine

    def is_recorded(self, run_dir: Path) -> bool:
        return True  # `clean_up` has written the records


class SupervisorState(Enum):
    ABSENT = "absent"
    STARTING = "starting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"  # the connection is cut: the process may be dead


class SupervisorClient:
    """Calls `on_update(id, pid, exit)` when a launch starts or exits."""

    def __init__(
        self,
        run_dir: Path,
        on_update: Callable[[str, int | None, Exit | None], None],
        idle: float,
        lease: Path | None = None,
        starter: SupervisorStarter | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.starter = starter or OwnSupervisor()
        self.state = SupervisorState.ABSENT
        self.closing = False  # the job has ended
        self.retry_at: float | None = None
        self.open: set[str] = set()  # launches without an exit
        self._on_update = on_update
        self._options = [str(idle), *([str(lease)] if lease else [])]
        self._unanswered: dict[int, dict[str, Any]] = {}
        self._number = 0
        self._starts = 0
        self._starting: StartingSupervisor | None = None
        self._overdue: dict[str, float] = {}  # launch, or empty for all -> until when it must end
        self._connection: Connection | None = None
        self._cut_at = float("-inf")  # when its connection was cut last

    # for the selector

    def fileno(self) -> int:
        if self._connection is not None:
            return self._connection.fileno()
        assert self._starting is not None
        return self._starting.output.fileno()

    @property
    def has_file(self) -> bool:
        return self._connection is not None or self._starting is not None

    @property
    def wants_to_write(self) -> bool:
        return self._connection is not None and self._connection.wants_to_write

    # requests

    def find(self) -> None:
        """Connects to the ones-exec of an earlier controller, which reports its launches."""
        if self.starter.owner is None:
            self.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in known_launches(self.run_dir, self.starter.owner):
            if read_record(path, Exit, self.starter.owner) is None:
                self.open.add(path.name)
        self._reach()

    def launch(self, launch: Launch) -> None:
        self.open.add(launch.id)
        try:
            self._request({"do": "launch", "spec": asdict(launch)})
        except OSError as problem:  # no ones-exec can be started
            self._fail_launches(f"ones-exec: {(problem.strerror or str(problem)).lower()}")

    def prepare(self, launch: Launch) -> None:
        """Prepares a similar launch. If this fails, that launch is only slower."""
        with suppress(OSError):
            self._request({"do": "prepare", "spec": asdict(launch)})

    def stop(self, id: str, grace: float) -> None:
        if id in self.open:
            self._request({"do": "stop", "id": id, "grace": grace})
            self._expect_end(id, grace)

    def close(self, grace: float) -> None:
        self.closing = True
        if self.state is not SupervisorState.ABSENT:
            self._request({"do": "close", "grace": grace})
            self._expect_end("", grace)

    def _expect_end(self, id: str, grace: float) -> None:
        """A job user may have stopped or replaced ones-exec: then all of the job is killed."""
        if self.starter.owner is not None:
            until = time.monotonic() + grace + OVERDUE_SECONDS
            self._overdue[id] = min(until, self._overdue.get(id, until))

    @property
    def overdue_at(self) -> float | None:
        return min(self._overdue.values(), default=None)

    def end_overdue(self) -> None:
        """Kills all of a job if its ones-exec has not carried out a stop in time."""
        log.warning("ones-exec does not follow, job killed", extra={"path": str(self.run_dir)})
        self._overdue.clear()
        self.disconnect()
        self._clean_up()

    def release(self) -> None:
        """Disconnects. ones-exec and its workers go on."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._starting is not None:
            self._starting.finish()
            self._starting = None

    def disconnect(self) -> None:
        """Closes the connection. `retry` opens another and sends unanswered requests again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self.state = SupervisorState.DISCONNECTED

    def _request(self, request: dict[str, Any]) -> None:
        self._number += 1
        self._unanswered[self._number] = request
        if self.state is SupervisorState.CONNECTED:
            assert self._connection is not None
            self._connection.send({"n": self._number, **request})
        elif self.state is SupervisorState.ABSENT:
            self._start()

    # the process

    def _start(self) -> None:
        self._starts += 1
        self.state = SupervisorState.STARTING
        self._starting = self.starter.start(self.run_dir, self._options)

    def serve(self) -> None:
        """Handles the input that has arrived."""
        if self._starting is not None:
            answer = os.read(self._starting.output.fileno(), 64)
            self._starting.finish()
            self._starting = None
            if answer.startswith((b"ready", b"busy")):
                self._reach()
            else:
                self._fail_launches("ones-exec did not start")
                if self.starter.owner is not None:  # its user spoiled the run directory
                    self._lose_all("ones-exec cannot use the run directory")
            return
        if self._connection is None:
            return
        connection = self._connection
        connection.flush()
        for message in connection.receive():
            self._handle(message)
        if connection.closed:
            connection.close()
            self._connection = None
            if self._cut_at > time.monotonic() - CUT_SECONDS:  # again: it may send invalid data
                self.state = SupervisorState.DISCONNECTED
                # one that was told to end may be about to: it still accepts, and then closes
                pause = RETRY_SECONDS if self.closing else CUT_SECONDS
                self.retry_at = time.monotonic() + pause
                return
            self._cut_at = time.monotonic()
            self._reach()

    def retry(self) -> None:
        self.retry_at = None
        self._reach()

    def _reach(self) -> None:
        """Connects. If no ones-exec runs: cleans up, and starts one if requests are left."""
        self.state = SupervisorState.DISCONNECTED
        try:
            self._connection = connect(self.run_dir, self.starter.owner)
        except OSError:
            self._clean_up()
            return
        self.state = SupervisorState.CONNECTED
        self._starts = 0
        self._connection.send({"n": 0, "do": "watch"})
        for number, request in self._unanswered.items():
            self._connection.send({"n": number, **request})

    def _clean_up(self) -> None:
        try:
            if not self.starter.clean_up(self.run_dir):
                self.retry_at = time.monotonic() + RETRY_SECONDS
                return
        except (TimeoutError, OSError):
            self.retry_at = time.monotonic() + 20 * RETRY_SECONDS
            return
        self.state = SupervisorState.ABSENT
        if self.open and not self.starter.is_recorded(self.run_dir):
            if self._starts < MOST_STARTS:
                self._start()  # it writes the missing records
                return
            self._lose_all("ones-exec was killed again and again")
        self._overdue.clear()
        for path in known_launches(self.run_dir, self.starter.owner):
            record = read_record(path, Exit, self.starter.owner)
            if path.name in self.open and record is not None:
                self._exited(path.name, record)
        # launches that never arrived are sent again; other requests have no purpose any more
        self._unanswered = {
            n: r
            for n, r in self._unanswered.items()
            if r["do"] == "launch" and r["spec"]["id"] in self.open
        }
        if self._unanswered and self._starts < MOST_STARTS:
            self._start()
        elif self._unanswered:
            self._fail_launches(f"ones-exec died {MOST_STARTS} times: see {self.run_dir / LOG}")

    def _fail_launches(self, why: str) -> None:
        self.state = SupervisorState.ABSENT
        self._starts = 0
        unanswered, self._unanswered = self._unanswered, {}
        for request in unanswered.values():
            if request["do"] == "launch":
                self._exited(request["spec"]["id"], not_started(why))

    def _lose_all(self, why: str) -> None:
        """Reports launches of which no process is left and no record can be written."""
        for id in list(self.open):
            self._exited(id, without_process("lost", why))

    # messages

    def _handle(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self._handle_update(message)
            return
        request = self._unanswered.pop(message["n"], None)
        for launch in message.get("launches", ()):
            self._handle_update(launch)
        if "error" in message and request is not None and request["do"] == "launch":
            why = str(message["error"])
            record = fenced(why) if message.get("fenced") else not_started(why)
            self._exited(request["spec"]["id"], record)

    def _handle_update(self, launch: dict[str, Any]) -> None:
        """Raises what `parse_record` raises for invalid records."""
        id = str(launch["id"])
        if launch["exit"] is not None:
            self._exited(id, parse_record(Exit, launch["exit"]))
        elif launch["status"] is not None:
            status = parse_record(Status, launch["status"])
            self.open.add(id)
            self._on_update(id, status.pid, None)

    def _exited(self, id: str, record: Exit) -> None:
        if id in self.open:
            self._on_update(id, None, record)  # if it raises, the exit is handled again
            self.open.discard(id)
            self._overdue.pop(id, None)
