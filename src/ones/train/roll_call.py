"""A worker's side of the roll call: who of the job is alive, and who goes on after a death.

Each worker keeps one connection to the job's store process (`ones.train.store`). The kernel
closes it when the worker dies, so a death is known in milliseconds; a worker that hangs does
not answer the pings, and a store that is out of reach sends none. Lines of JSON, both ways;
`store` lists them.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from ones.train.not_inherited import ours

ADDRESS_FILE = "store.json"
STORE_LOCK = "store.lock"
ZYGOTE_SOCKET = "zygote.sock"  # where `ones.exec.zygote` has it
HANG_SECONDS = 60.0
WELCOME_SECONDS = 20.0
LIVES = b'{"lives": true}\n'  # what a store says to who has the token of its job


@dataclass(frozen=True, slots=True)
class StoreAddress:
    host: str
    port: int  # of the TCPStore, where groups meet
    calls: int  # of the roll call

    def __str__(self) -> str:
        return f"{self.host}:{self.port}:{self.calls}"

    @classmethod
    def parse(cls, text: str) -> StoreAddress:
        host, port, calls = text.rsplit(":", 2)
        return cls(host, int(port), int(calls))

    def write(self, job_dir: str) -> None:
        path = Path(job_dir, ADDRESS_FILE)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)

    @classmethod
    def read(cls, job_dir: str) -> StoreAddress | None:
        try:
            return cls(**json.loads(Path(job_dir, ADDRESS_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def start_store(job_dir: str, host: str, token: str, *, patience: float = 120.0) -> StoreAddress:
    """The address of a living store on this node; starts one if there is none.

    Several workers may ask at once: the lock lets one of them start it. It is a process
    of the job and not of this worker, so it has a session of its own.
    """
    os.makedirs(job_dir, exist_ok=True)
    with open(Path(job_dir, "store.starting"), "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        until = time.monotonic() + patience
        while True:
            found = StoreAddress.read(job_dir)
            if found is not None and answers(found, token):
                return found
            if not _has_a_store(job_dir):
                break
            if time.monotonic() > until:
                raise OSError(f"the job's store did not answer in {patience:.0f} s")
            time.sleep(0.01)  # it is about to end, or has much to do
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(job_dir, ADDRESS_FILE))
        with open(Path(job_dir, "store.log"), "ab") as log:
            ended = _fork_store(job_dir, host, log.fileno()) or _spawn_store(job_dir, host, log)
        while time.monotonic() < until:
            over = ended()
            found = StoreAddress.read(job_dir)
            if found is not None:
                return found
            if over:
                raise OSError("the job's store ended at once: see store.log")
            time.sleep(0.01)
    raise OSError(f"the job's store did not start in {patience:.0f} s")


def _has_a_store(job_dir: str) -> bool:
    """A store holds this lock as long as it lives; its port may be another's after that."""
    with open(Path(job_dir, STORE_LOCK), "w") as alone:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


_COMMAND = ["-m", "ones.train.store"]


def _fork_store(job_dir: str, host: str, log: int) -> Callable[[], bool] | None:
    """From the job's zygote, which has torch already: milliseconds instead of seconds."""
    line = socket.socket(socket.AF_UNIX)
    try:
        here = os.getcwd()
        line.connect(os.path.relpath(Path(job_dir, ZYGOTE_SOCKET), here))
        env = _environment_of_the_job()
        request = {"argv": [*_COMMAND, job_dir, host], "cwd": job_dir, "env": env}
        text = json.dumps(request).encode() + b"\n"
        line.sendall(text[socket.send_fds(line, [text], [log, log]) :])
        answer = json.loads(line.makefile().readline() or "{}")
    except (OSError, ValueError):
        line.close()
        return None
    if "pid" not in answer:
        line.close()
        return None

    def ended() -> bool:
        """It has ended if the zygote says so. The line is closed with this function."""
        return bool(select.select([line], [], [], 0)[0])

    return ended


def _spawn_store(job_dir: str, host: str, log: IO[bytes]) -> Callable[[], bool]:
    process = subprocess.Popen(
        [sys.executable, *_COMMAND, job_dir, host],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=_environment_of_the_job(),
    )
    # who starts it need not be there when it ends: somebody must wait for it all the same
    threading.Thread(target=process.wait, daemon=True).start()
    return lambda: process.poll() is not None


def _environment_of_the_job() -> dict[str, str]:
    """By this ones-exec knows a process of the job, which stays when the worker goes."""
    env = {name: value for name, value in os.environ.items() if name != "ONES_RUN_DIR"}
    return {**env, "ONES_OF_JOB": "1"}


def answers(address: StoreAddress, token: str) -> bool:
    """Does the job's store live there? Its port may have become that of somebody else."""
    try:
        with socket.create_connection((address.host, address.calls), timeout=5.0) as line:
            line.sendall(json.dumps({"lives": token}).encode() + b"\n")
            with line.makefile("rb") as lines:
                return lines.readline(64) == LIVES
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Reform:
    """Who goes on, as what."""

    plan: int
    incarnation: int
    members: tuple[str, ...]
    limit: int | None = None  # samples that fit one worker, where one died of memory


class RollCall:
    """One connection. When it breaks it stays broken: make another.

    It is made once the store has answered: one that had nobody may be about to end, though its
    port still takes connections. From then on it stays while this worker does.
    """

    def __init__(
        self,
        address: StoreAddress,
        worker: str,
        token: str,
        *,
        groups: Sequence[tuple[int, int]],
        on_came: Callable[[str], None],
        on_gone: Callable[[str, bool], None],
    ) -> None:
        self.address = address
        self._worker = worker
        self._on_came = on_came
        self._on_gone = on_gone  # (worker, does it hang?)
        self._answers: queue.Queue[Reform | None] = queue.Queue()
        self._lock = threading.Lock()
        with ours():
            there = (address.host, address.calls)
            self._socket = socket.create_connection(there, timeout=WELCOME_SECONDS)
        self._socket.settimeout(hang_seconds())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.broken = threading.Event()
        self._heard = threading.Event()
        self.is_silent = False  # broken, for nothing was heard any more
        self.expelled = False
        hello = {"hello": worker, "token": token, "pid": os.getpid(), "born": born(os.getpid())}
        self._say(**hello, machine=machine(), groups=groups)
        threading.Thread(target=self._listen, name="ones-roll-call", daemon=True).start()
        if not self._heard.wait(WELCOME_SECONDS) or self.broken.is_set():
            self.close()
            raise ConnectionError(f"the job's store at {address} has ended, or does not answer")

    def reform(
        self, plan: int, incarnation: int, members: tuple[str, ...], step: int
    ) -> Reform | None:
        """My group has failed. Waits for the word on who goes on.

        None: the store is gone, or somebody has called `interrupt`.
        """
        while True:  # an answer to an earlier question may still be there
            try:
                self._answers.get_nowait()
            except queue.Empty:
                break
        self._say(failed=[plan, incarnation], members=list(members), step=step)
        if self.broken.is_set():
            return None
        return self._answers.get()

    def interrupt(self) -> None:
        self._answers.put(None)

    def unfail(self) -> None:
        """What I said of a failed group no longer holds: I take no part in it."""
        self._say(failed=None)

    def joins(self, plan: int, incarnation: int) -> None:
        self._say(joins=[plan, incarnation])

    def limit_is(self, samples: int) -> None:
        """I am dying of memory: so many samples fit."""
        self._say(limit=samples)

    def leave(self) -> None:
        self._say(leaving=True)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _say(self, **words: Any) -> None:
        try:
            with self._lock:
                self._socket.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            self._break()

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._hear(json.loads(line))
        except TimeoutError:
            self.is_silent = True
        except (OSError, ValueError):
            pass
        self._break()

    def _hear(self, words: dict[str, Any]) -> None:
        if "ping" in words:
            self._say(pong=words["ping"])
        elif "came" in words:
            if words["came"] == self._worker:
                self._heard.set()
            self._on_came(words["came"])
        elif "gone" in words:
            self._on_gone(words["gone"], words["hangs"])
        elif "expelled" in words:
            self.expelled = True
            self._answers.put(None)
        elif "reform" in words:
            plan, incarnation = words["reform"]
            members = tuple(words["members"])
            self._answers.put(Reform(plan, incarnation, members, words["limit"]))

    def _break(self) -> None:
        self.broken.set()
        self._heard.set()
        self._answers.put(None)


def hang_seconds() -> float:
    """Who is silent for so long hangs, or cannot be reached."""
    return float(os.environ.get("ONES_HANG_SECONDS", HANG_SECONDS))


def born(pid: int) -> str:
    """When a process started: with its pid it names the process, as pids come again."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


def machine() -> str:
    """Which pids can be killed from where: the same boot and the same pid namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
