"""The agent of one Ray node: runs in an actor that Ray keeps there.

The actor reserves the node's slots in Ray. The agent passes launches to a LocalLauncher; the driver
polls it for events and output. A new agent that replaces a dead one finds the workers in the run
directories. If Ray has given it other GPUs meanwhile, it ends those workers.
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
from ones.launchers.api import LaunchedProcess, LauncherEvent, Sampled, Slot
from ones.launchers.devices import cpu_slots, granted_gpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.node_agent import NodeAgent
from ones.launchers.probe import Probe, check_probe
from ones.wire.samples import SAMPLE_SECONDS, SlotSample, plain_samples

CHUNK_BYTES = 1 << 20
ANSWER_BYTES = 8 << 20
LOOK_SECONDS = 0.2  # between two checks for output while a poll waits
RENEWALS = 5  # of a lease in its duration
JOIN_SECONDS = 2.0  # longest wait for the renewing thread at the end, if the head is silent

log = logging.getLogger(__name__)


class RayNodeAgent(NodeAgent):
    """`licensed(timeout)`: whether this node has its licence; raises if the head is not reached."""

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
        self._samples: tuple[SlotSample, ...] = ()  # the last ones that were not polled
        launcher = LocalLauncher(root, slots, lease=self._lease)
        launcher.sample_seconds = SAMPLE_SECONDS
        super().__init__(launcher)
        has_other_devices = self._store_devices()
        self._launcher.open(self._on_launcher)
        if has_other_devices:
            self.stop_all(0.0)
        self.renew()
        self._renewer = threading.Thread(target=self._keep_lease, name="ones-lease", daemon=True)
        self._renewer.start()

    def _store_devices(self) -> bool:
        """Writes the devices to a file; True if an earlier agent had other devices."""
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
                if not self._root.exists():  # no run directory is left
                    return
                for job in (self._root / "ended").glob("*"):  # the controller has their output
                    shutil.rmtree(job, ignore_errors=True)
            except Exception:  # without this thread the lease would expire
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
        """Why workers cannot run on this node; empty: they can."""
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
        """Ends the agent and, with `kill`, its workers. No other call may follow."""
        self._closed.set()
        self._renewer.join(JOIN_SECONDS)
        self._launcher.close(kill=kill)

    def poll(self, since: int, copied: dict[str, int], wait: float) -> dict[str, Any]:
        """Waits for events after version `since`, or new output, up to `wait` seconds.

        Returns all launches if there were events, the output behind the offsets `copied`, and the
        stored reports of launches that have exited.
        """
        deadline = time.monotonic() + wait
        while True:
            with self._changed:
                version = self._version
            launches = self._launcher.running()
            output, is_all = self._output(copied, launches)
            if version > since or output or time.monotonic() >= deadline:
                samples, self._samples = self._samples, ()
                return {
                    "samples": plain_samples(samples),
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
        """Offset and data of each launch with new output, and whether all launches were read."""
        found: dict[str, tuple[int, bytes]] = {}
        left = ANSWER_BYTES
        for id, offset in copied.items():
            process = launches.get(id)
            if process is None:
                continue
            if left <= 0:
                return found, False
            chunk = self._launcher.logs(process.job, id, offset, min(left, CHUNK_BYTES))
            if chunk.data:
                found[id] = (chunk.offset, chunk.data)
                left -= len(chunk.data)
        return found, True

    def _on_launcher(self, event: LauncherEvent) -> None:
        if isinstance(event, Sampled):
            self._samples = event.samples
            return
        with self._changed:
            self._version += 1
            self._changed.notify_all()


def node_root(node_dir: str, instance: str, node: str) -> Path:
    """Creates the directory of an agent, which no other user can change.

    Another user may have created the predictable path before: raises PermissionError then.
    """
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
    """The slots that Ray gave to this actor: `gpus` by their ids, or `count` CPU slots."""
    slots = cpu_slots(node, count) if gpus is None else granted_gpu_slots(node, gpus)
    return [replace(slot, host=host) for slot in slots]
