"""Membership of a job: the worker's connection to the membership server of the job's store.

The kernel closes the connection when a worker dies, so a death is known in milliseconds. A worker
that hangs does not answer pings, and a store that is out of reach sends none. Messages are lines of
JSON; `store` lists them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ones.exec.processes import find_process
from ones.exec.run_dir import boot_id
from ones.train.connection_tracking import track_connections
from ones.train.store_process import StoreAddress

HANG_SECONDS = 60.0
WELCOME_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Survivors:
    """The members that continue after a loss, and the generation of their group."""

    plan: int
    incarnation: int
    members: tuple[str, ...]
    limit: int | None = None  # samples that fit one worker, where one ran out of memory


class MembershipClient:
    """One connection. When it breaks it stays broken: create another.

    The constructor returns once the store has answered: a store without workers may be about to
    end while its port still accepts connections. From then on the store stays for this worker.
    """

    def __init__(
        self,
        address: StoreAddress,
        worker: str,
        token: str,
        *,
        generations: Sequence[tuple[int, int]],
        on_joined: Callable[[str], None],
        on_left: Callable[[str, bool], None],
        on_broken: Callable[[tuple[int, int]], None] = lambda generation: None,
    ) -> None:
        self.address = address
        self._worker = worker
        self._on_joined = on_joined
        self._on_broken = on_broken  # a generation that another member reported as failed
        self._on_left = on_left  # (worker, whether it hangs)
        self._answers: queue.Queue[Survivors | None] = queue.Queue()
        self._lock = threading.Lock()
        with track_connections():
            target = (address.host, address.membership_port)
            self._socket = socket.create_connection(target, timeout=WELCOME_SECONDS)
        self._socket.settimeout(hang_seconds())
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.broken = threading.Event()
        self._welcomed = threading.Event()
        self.is_silent = False  # broken because no ping came
        self.expelled = False  # the other members continue without this worker
        pid = os.getpid()
        hello = {"hello": worker, "token": token, "pid": pid, "born": start_time(pid)}
        self._send(**hello, machine=machine_id(), groups=generations)
        threading.Thread(target=self._listen, name="ones-membership", daemon=True).start()
        if not self._welcomed.wait(WELCOME_SECONDS) or self.broken.is_set():
            self.close()
            raise ConnectionError(f"the job's store at {address} has ended or does not answer")

    def report_failure(
        self, plan: int, incarnation: int, members: tuple[str, ...], position: int
    ) -> Survivors | None:
        """Reports that this worker's group has failed, and waits for the members that continue.

        None: the store is gone, or `interrupt` was called.
        """
        with contextlib.suppress(queue.Empty):  # answers to earlier reports
            while True:
                self._answers.get_nowait()
        self._send(failed=[plan, incarnation], members=list(members), step=position)
        if self.broken.is_set():
            return None
        return self._answers.get()

    def interrupt(self) -> None:
        """Ends the wait in `report_failure`."""
        self._answers.put(None)

    def withdraw_failure(self) -> None:
        """Withdraws the reported failure: this worker does not continue in that group."""
        self._send(failed=None)

    def join_generation(self, plan: int, incarnation: int) -> None:
        """Reports that this worker is a member of the group of that generation."""
        self._send(joins=[plan, incarnation])

    def report_memory_limit(self, samples: int) -> None:
        """Reports the number of samples that fit, before this worker dies out of memory."""
        self._send(limit=samples)

    def leave(self) -> None:
        self._send(leaving=True)
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, **message: Any) -> None:
        try:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._break()

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._handle(json.loads(line))
        except TimeoutError:
            self.is_silent = True
        except (OSError, ValueError):
            pass
        self._break()

    def _handle(self, message: dict[str, Any]) -> None:
        if "ping" in message:
            self._send(pong=message["ping"])
        elif "came" in message:
            if message["came"] == self._worker:
                self._welcomed.set()
            self._on_joined(message["came"])
        elif "gone" in message:
            self._on_left(message["gone"], message["hangs"])
        elif "broken" in message:
            plan, incarnation = message["broken"]
            self._on_broken((plan, incarnation))
        elif "expelled" in message:
            self.expelled = True
            self._answers.put(None)
        elif "reform" in message:
            plan, incarnation = message["reform"]
            members = tuple(message["members"])
            self._answers.put(Survivors(plan, incarnation, members, message["limit"]))

    def _break(self) -> None:
        self.broken.set()
        self._welcomed.set()
        self._answers.put(None)


def hang_seconds() -> float:
    """Seconds of silence after which a peer counts as hanging or out of reach."""
    return float(os.environ.get("ONES_HANG_SECONDS", HANG_SECONDS))


def start_time(pid: int) -> int | None:
    """When a process started: with its pid it identifies the process, as pids are reused."""
    process = find_process(pid)
    return None if process is None else process.born


def machine_id() -> str:
    """Boot and pid namespace: processes of the same machine id can kill each other by pid."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()
