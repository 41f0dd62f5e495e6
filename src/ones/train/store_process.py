"""Finds or starts the job's store process (`ones.train.store`) on this node."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from ones.exec.files import try_lock
from ones.exec.zygote import connect_zygote, request_fork

ADDRESS_FILE = "store.json"
STORE_LOCK = "store.lock"
ALIVE = b'{"lives": true}\n'  # the answer of a store to a worker with the token of its job
_COMMAND = ["-m", "ones.train.store"]


@dataclass(frozen=True, slots=True)
class StoreAddress:
    host: str
    port: int  # of the TCPStore, where groups connect
    membership_port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}:{self.membership_port}"

    @classmethod
    def parse(cls, text: str) -> StoreAddress:
        host, port, membership_port = text.rsplit(":", 2)
        return cls(host, int(port), int(membership_port))

    def write(self, job_dir: str) -> None:
        path = Path(job_dir, ADDRESS_FILE)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)

    @classmethod
    def read(cls, job_dir: str) -> StoreAddress | None:
        try:
            return cls(**json.loads(Path(job_dir, ADDRESS_FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def is_alive(self, token: str) -> bool:
        """Whether the job's store listens there. Another job may use the port of a dead store."""
        try:
            with socket.create_connection((self.host, self.membership_port), timeout=5.0) as sock:
                sock.sendall(json.dumps({"lives": token}).encode() + b"\n")
                with sock.makefile("rb") as lines:
                    return lines.readline(64) == ALIVE
        except OSError:
            return False


def start_store(job_dir: str, host: str, token: str, *, timeout: float = 120.0) -> StoreAddress:
    """Returns the address of the store on this node; starts one if there is none.

    Several workers may call this at once: a lock lets one of them start the store. The store
    belongs to the job and not to this worker, so it has a session of its own.
    """
    os.makedirs(job_dir, exist_ok=True)
    with open(Path(job_dir, "store.starting"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        deadline = time.monotonic() + timeout
        while True:
            address = StoreAddress.read(job_dir)
            if address is not None and address.is_alive(token):
                return address
            if not _is_store_running(job_dir):
                break
            if time.monotonic() > deadline:
                raise OSError(f"the job's store did not answer in {timeout:.0f} s")
            time.sleep(0.01)  # the store is about to end, or busy
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(job_dir, ADDRESS_FILE))
        with open(Path(job_dir, "store.log"), "ab") as log:
            has_ended = _fork_store(job_dir, host, log) or _spawn_store(job_dir, host, log)
        while time.monotonic() < deadline:
            ended = has_ended()
            address = StoreAddress.read(job_dir)
            if address is not None:
                return address
            if ended:
                raise OSError(f"the job's store ended at once: see {job_dir}/store.log")
            time.sleep(0.01)
    raise OSError(f"the job's store did not start in {timeout:.0f} s")


def _is_store_running(job_dir: str) -> bool:
    """Whether a store runs here: it holds a lock while it lives."""
    with open(Path(job_dir, STORE_LOCK), "w") as lock:
        return not try_lock(lock.fileno())


def _fork_store(job_dir: str, host: str, log: IO[bytes]) -> Callable[[], bool] | None:
    """Forks the store from the job's zygote, which has torch loaded: milliseconds, not seconds.

    None: there is no zygote, or it refuses.
    """
    connection = connect_zygote(job_dir)
    if connection is None:
        return None
    try:
        argv = [*_COMMAND, job_dir, host]
        request_fork(connection, argv, job_dir, _job_environment(), log.fileno())
        forked = "pid" in json.loads(connection.makefile().readline() or "{}")
    except (OSError, ValueError):
        forked = False
    if not forked:
        connection.close()
        return None
    # readable when the zygote reports the end; closed together with this function
    return lambda: bool(select.select([connection], [], [], 0)[0])


def _spawn_store(job_dir: str, host: str, log: IO[bytes]) -> Callable[[], bool]:
    process = subprocess.Popen(
        [sys.executable, *_COMMAND, job_dir, host],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env=_job_environment(),
    )
    threading.Thread(target=process.wait, daemon=True).start()  # reaps it
    return lambda: process.poll() is not None


def _job_environment() -> dict[str, str]:
    """The environment of a process of the job: ones-exec keeps it when this worker leaves."""
    env = {name: value for name, value in os.environ.items() if name != "ONES_RUN_DIR"}
    return {**env, "ONES_OF_JOB": "1"}
