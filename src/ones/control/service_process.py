"""The service as a process of its own: started from a command, and still there when it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from ones.config import ServiceSettings
from ones.control.launching import stop_jobs
from ones.control.logs import last_error
from ones.control.statedir import Address, StateDir
from ones.errors import UserError, WorldError

START_SECONDS = 60.0
STOP_SECONDS = 30.0


def start(settings: ServiceSettings, policies: Mapping[str, Mapping[str, Any]]) -> Address:
    """Start it and wait until it can be reached. `policies`: settings of each."""
    settings = settings.rooted()
    directory = StateDir.of(settings.state)
    directory.make()
    with directory.log.open("ab") as log:
        before = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "ones.control.server"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdin is not None
    try:
        process.stdin.write(
            json.dumps({"service": asdict(settings), "policy": dict(policies)}).encode()
        )
        process.stdin.close()
        address = _await_address(directory, process, before)
    except BaseException:  # an impatient Ctrl-C, too: what nobody waits for must not stay
        process.kill()
        process.wait()
        raise
    process.returncode = 0  # it stays when this object goes: no reason to complain
    return address


def _await_address(directory: StateDir, process: subprocess.Popen[bytes], said: int) -> Address:
    """`said`: bytes in its log before it began."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        address = directory.address()
        if address is not None and address.pid == process.pid and directory.is_locked():
            return address
        if process.poll() is not None:
            last = last_error(_said_since(directory, said)) or f"see {directory.log}"
            kind = UserError if process.returncode == UserError.exit_code else WorldError
            raise kind(f"the service did not start: {last}")
        if time.monotonic() > deadline:
            raise WorldError(f"the service did not start in time; see {directory.log}")
        time.sleep(0.05)


def _said_since(directory: StateDir, said: int) -> str:
    log = directory.log.read_bytes()
    # a log that is shorter than it was has been rotated since
    return log[said if len(log) >= said else 0 :].decode(errors="replace")


def kill(directory: StateDir) -> None:
    """Controller and workers, at once: nobody waits for work to be saved."""
    address = directory.address()
    if address is not None and directory.is_locked():
        os.kill(address.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while directory.is_locked() or not _is_gone(address.pid):
            if time.monotonic() > deadline:
                os.kill(address.pid, signal.SIGKILL)
                deadline = inf
            time.sleep(0.05)
    if directory.runs.exists():
        stop_jobs(directory)


def _is_gone(pid: int) -> bool:
    """Our own child is taken leave of; it would stay as a zombie."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")
