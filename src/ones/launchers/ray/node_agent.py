"""The agent of one Ray node: runs in an actor that Ray keeps there.

Ray counts the node's slots as the actor's. The agent passes launches on to a LocalLauncher, and
answers what happened when it is polled. A new agent that replaces a dead one finds the workers in
the run directories. If Ray has given it other GPUs meanwhile, the workers must end.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ones.exec import lease
from ones.exec.files import make_private
from ones.launchers.api import LaunchedProcess, LauncherEvent, Slot
from ones.launchers.devices import cpu_slots, granted_gpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.node_agent import NodeAgent
from ones.launchers.probe import Probe, check_probe

CHUNK_BYTES = 1 << 20
ANSWER_BYTES = 8 << 20
LOOK_SECONDS = 0.2  # between two looks for output while a poll waits
RENEWALS = 5  # in the time of a lease
JOIN_SECONDS = 2.0  # a head that is silent at the end is not waited for longer

log = logging.getLogger(__name__)


class RayNodeAgent(NodeAgent):
    """`licensed(timeout)`: does the head say that this node may run workers? Raises if it cannot
    be asked."""

    def __init__(
        self,
        root: Path,
        slots: list[Slot],
        lease_seconds: float,
        licensed: Callable[[float], bool],
    ) -> None:
        make_private(root)
        self._root = root
        self._slots = slots
        self._lease, self._lease_seconds = root / "lease", lease_seconds
        self._licensed = licensed
        self._has_licence = True
        self._version = 1  # counts events of launches
        self._changed = threading.Condition()
        self._closed = threading.Event()
        super().__init__(LocalLauncher(root, slots, lease=self._lease))
        has_other_devices = self._store_devices()
        self._launcher.open(self._on_launcher)
        if has_other_devices:
            self.stop_all(0.0)
        self.renew()
        self._renewer = threading.Thread(target=self._keep_lease, name="ones-lease", daemon=True)
        self._renewer.start()

    def _store_devices(self) -> bool:
        """True: an earlier agent had other devices."""
        file = self._root / "slots.json"
        now = json.dumps([slot.device for slot in self._slots])
        before = file.read_text() if file.exists() else now
        file.write_text(now)
        return before != now

    # the lease

    def _keep_lease(self) -> None:
        while not self._closed.wait(self._lease_seconds / RENEWALS):
            try:
                self.renew()
                if not self._root.exists():  # and with it all that the lease was for
                    return
                for job in (self._root / "ended").glob("*"):  # the controller has their output
                    shutil.rmtree(job, ignore_errors=True)
            except Exception:  # without this thread the lease would run out
                log.exception("lease not renewed")

    def renew(self) -> None:
        began = lease.now()
        try:
            self._has_licence = self._licensed(self._lease_seconds / RENEWALS)
        except Exception:  # the head was not reached: the lease is not renewed
            return
        if self._closed.is_set():
            return
        if self._has_licence:
            with suppress(OSError):  # a full disk: the next renewal may succeed
                lease.renew(self._lease, began + self._lease_seconds)
        else:
            self.stop_all(0.0)

    # called by the driver

    def describe(self) -> list[dict[str, Any]]:
        return [asdict(slot) for slot in self._slots]

    def check(self, controller: str, shared: Probe | None) -> str:
        """Why no worker could do its work here; empty: it can."""
        if shared is not None and (cause := check_probe(shared)):
            return cause
        if controller:
            where = urlsplit(controller)
            port = where.port or (443 if where.scheme == "https" else 80)
            try:
                socket.create_connection((where.hostname or "", port), timeout=10.0).close()
            except OSError as problem:
                return f"the controller at {controller}: {problem.strerror or problem}"
        return ""

    def close(self, kill: bool = True) -> None:
        """The last call: nothing is left behind except, without `kill`, the workers."""
        self._closed.set()
        self._renewer.join(JOIN_SECONDS)
        self._launcher.close(kill=kill)

    def poll(self, since: int, copied: dict[str, int], wait: float) -> dict[str, Any]:
        """All launches, if there were events after version `since`; output beyond what the caller
        has of each launch, and reports that it stored if it has exited. Waits for one of them."""
        deadline = time.monotonic() + wait
        while True:
            with self._changed:
                version = self._version
            launches = self._launcher.running()
            output, is_all = self._output(copied, launches)
            if version > since or output or time.monotonic() >= deadline:
                return {
                    "version": version,
                    "launches": {
                        id: (process.job, process.pid, process.exit and asdict(process.exit))
                        for id, process in launches.items()
                        if version > since
                    },
                    "reports": {
                        id: kept
                        for id in copied
                        if (process := launches.get(id)) is not None
                        and process.exit is not None
                        and (kept := self._launcher.reports(process.job, id))
                    },
                    "output": output,
                    "is_all": is_all,
                    "licensed": self._has_licence,
                    "alive": len(self.alive()),
                }
            with self._changed:
                if self._version == version:
                    self._changed.wait(LOOK_SECONDS)

    def _output(
        self, copied: dict[str, int], launches: dict[str, LaunchedProcess]
    ) -> tuple[dict[str, tuple[int, bytes]], bool]:
        """Offset and data for each launch that has some, and whether all of them were read."""
        found: dict[str, tuple[int, bytes]] = {}
        room = ANSWER_BYTES
        for id, offset in copied.items():
            process = launches.get(id)
            if process is None:
                continue
            if room <= 0:
                return found, False
            chunk = self._launcher.logs(process.job, id, offset, min(room, CHUNK_BYTES))
            if chunk.data:
                found[id] = (chunk.offset, chunk.data)
                room -= len(chunk.data)
        return found, True

    def _on_launcher(self, event: LauncherEvent) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()


def node_root(node_dir: str, instance: str, node: str) -> Path:
    """Creates the directory of an agent, such that no other user can change it. Raises
    PermissionError if that is not possible: other users know `node_dir` beforehand."""
    base = Path(node_dir)
    base.parent.mkdir(parents=True, exist_ok=True)
    try:
        base.mkdir(mode=0o700)
    except FileExistsError:
        found = base.lstat()
        shared = stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()) or shared:
            raise PermissionError(
                f"{base}: other users can change it (user {found.st_uid},"
                f" mode {stat.S_IMODE(found.st_mode):o}), or it is a link;"
                " remove it or choose another with the setting service.node_dir"
            ) from None
    for directory in (base / instance, base / instance / node):
        make_private(directory)
    return base / instance / node


def granted_slots(node: str, host: str, count: int, gpus: Sequence[str] | None) -> list[Slot]:
    """Slots that Ray gave to this actor: GPUs by their ids, or a count of shares of the CPUs."""
    slots = cpu_slots(node, count) if gpus is None else granted_gpu_slots(node, gpus)
    return [replace(slot, host=host) for slot in slots]
