"""Starts the service as a background process, and kills it."""

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
    """Start the service and wait until it can be reached. `policies`: their settings by name."""
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
    except BaseException:  # also Ctrl-C: a half-started service must not stay
        process.kill()
        process.wait()
        raise
    process.returncode = 0  # the process outlives this object: avoids a ResourceWarning
    return address


def _await_address(directory: StateDir, process: subprocess.Popen[bytes], offset: int) -> Address:
    """The address of a started service. `offset`: size of its log before the start."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        address = directory.address()
        if address is not None and address.pid == process.pid and directory.is_locked():
            return address
        if process.poll() is not None:
            last = last_error(_log_since(directory, offset)) or f"see {directory.log}"
            kind = UserError if process.returncode == UserError.exit_code else WorldError
            raise kind(f"the service did not start: {last}")
        if time.monotonic() > deadline:
            raise WorldError(
                f"the service did not start within {START_SECONDS:g} s; see {directory.log}"
            )
        time.sleep(0.05)


def _log_since(directory: StateDir, offset: int) -> str:
    log = directory.log.read_bytes()
    # a log that is shorter than before has been rotated
    return log[offset if len(log) >= offset else 0 :].decode(errors="replace")


def kill(directory: StateDir) -> None:
    """Stop controller and workers by signals, without waiting for the controller's checkpoints."""
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
    """Whether a process has ended. Our own child is reaped; it would stay as a zombie."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")
