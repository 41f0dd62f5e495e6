"""The manager of one node: an actor that Ray keeps there, and a LocalLauncher inside it.

It holds the node's slots (Ray counts them as its own), passes launches on, and tells what
happened when it is asked. A new one that takes the place of a dead one finds the workers again, in
the run directories; if Ray has given it other GPUs meanwhile, the workers have to go.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ones.exec import Exit, lease
from ones.exec.files import make_private
from ones.launchers import probe
from ones.launchers.api import Exited, Launch, LauncherEvent, Slot, Started
from ones.launchers.devices import gpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.probe import Probe

CHUNK_BYTES = 1 << 20
ANSWER_BYTES = 8 << 20
LOOK_SECONDS = 0.2  # how often output is looked for while somebody waits
RENEWALS = 5  # in the time of a lease
JOIN_SECONDS = 2.0  # a head that is silent just then is not waited for longer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Known:
    job: str
    version: int
    pid: int | None = None
    exit: Exit | None = None


class NodeManager:
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
        self._known: dict[str, _Known] = {}
        self._version = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._launcher = LocalLauncher(root, slots, lease=self._lease)
        moved = self._slots_moved()
        self._launcher.open(self._hear)
        with self._changed:
            for process in self._launcher.running().values():
                self._version += 1
                self._known.setdefault(
                    process.id, _Known(process.job, self._version, process.pid, process.exit)
                )
        if moved:
            self._stop_all(0.0)
        self.renew()
        self._keeper = threading.Thread(target=self._keep_lease, name="ones-lease", daemon=True)
        self._keeper.start()

    def _slots_moved(self) -> bool:
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
        except Exception:  # whatever Ray raises: the head was not heard, so the lease runs on
            return
        if self._closed.is_set():
            return
        if self._has_licence:
            with suppress(OSError):  # a full disk: the lease runs on, and the next one may do
                lease.renew(self._lease, began + self._lease_seconds)
        else:
            self._stop_all(0.0)

    # what the bridge asks

    def describe(self) -> list[dict[str, Any]]:
        return [asdict(slot) for slot in self._slots]

    def trouble(self, controller: str, shared: Probe | None) -> str:
        """Why no worker could do its work here; empty: it can."""
        if shared is not None and (cause := probe.trouble(shared)):
            return cause
        if controller:
            where = urlsplit(controller)
            port = where.port or (443 if where.scheme == "https" else 80)
            try:
                socket.create_connection((where.hostname or "", port), timeout=10.0).close()
            except OSError as problem:
                return f"the controller at {controller}: {problem.strerror or problem}"
        return ""

    def launch(self, launch: dict[str, Any]) -> None:
        given = Launch.of(launch)
        with self._changed:
            if given.id not in self._known:
                self._version += 1
                self._known[given.id] = _Known(given.job, self._version)
        self._launcher.launch(given)

    def prepare(self, launch: dict[str, Any]) -> None:
        self._launcher.prepare(Launch.of(launch))

    def stop(self, id: str, grace: float) -> None:
        self._launcher.stop(id, grace)

    def stop_all(self, grace: float) -> None:
        self._stop_all(grace)

    def _stop_all(self, grace: float) -> None:
        for process in self._launcher.running().values():
            if process.alive:
                self._launcher.stop(process.id, grace)

    def close(self, kill: bool = True) -> None:
        """The last call: nothing is left behind but, if `kill` is not set, the workers."""
        self._closed.set()
        self._keeper.join(JOIN_SECONDS)
        self._launcher.close(kill=kill)

    def forget(self, job: str) -> None:
        self._launcher.forget(job)
        with self._changed:
            for id in [id for id, known in self._known.items() if known.job == job]:
                del self._known[id]

    def poll(self, since: int, have: dict[str, int], wait: float) -> dict[str, Any]:
        """What happened after version `since`, with the reports that a worker left when it ended,
        and output beyond what the asker has of each launch. Waits for something to tell."""
        deadline = time.monotonic() + wait
        while True:
            with self._changed:
                news = {id: k for id, k in self._known.items() if k.version > since}
                version = self._version
                told = {
                    id: (k.job, k.pid, asdict(k.exit) if k.exit else None) for id, k in news.items()
                }
            output, is_all = self._output(have)
            if news or output or time.monotonic() >= deadline:
                return {
                    "version": version,
                    "launches": told,
                    "reports": {
                        id: kept
                        for id, known in news.items()
                        if known.exit is not None
                        and (kept := self._launcher.reports(known.job, id))
                    },
                    "output": output,
                    "is_all": is_all,
                    "licensed": self._has_licence,
                    "alive": sum(p.alive for p in self._launcher.running().values()),
                }
            with self._changed:
                if self._version == version:
                    self._changed.wait(LOOK_SECONDS)

    def _output(self, have: dict[str, int]) -> tuple[dict[str, tuple[int, bytes]], bool]:
        """Offset and data for each launch that has some, and whether all of them had their turn."""
        found: dict[str, tuple[int, bytes]] = {}
        room = ANSWER_BYTES
        for id, offset in have.items():
            known = self._known.get(id)
            if known is None:
                continue
            if room <= 0:
                return found, False
            chunk = self._launcher.logs(known.job, id, offset, min(room, CHUNK_BYTES))
            if chunk.data:
                found[id] = (chunk.offset, chunk.data)
                room -= len(chunk.data)
        return found, True

    def _hear(self, event: LauncherEvent) -> None:
        if not isinstance(event, Started | Exited):
            return
        process = self._launcher.running().get(event.id)
        if process is None:  # of a job that is forgotten
            return
        with self._changed:
            self._version += 1
            known = self._known.setdefault(event.id, _Known(process.job, self._version))
            known.version = self._version
            if isinstance(event, Started):
                known.pid = event.pid
            else:
                known.exit = event.exit
            self._changed.notify_all()


def node_root(node_dir: str, instance: str, node: str) -> Path:
    """The directory of a manager, made so that no other user can have a hand in it. Raises
    PermissionError where that is not so: `node_dir` is a name that anybody can know beforehand."""
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


def slots_of(node: str, host: str, count: int, gpus: list[str] | None) -> list[Slot]:
    """As Ray gave them to this actor: GPUs by their ids, or a count of shares of the processors."""
    if gpus is None:
        return [Slot(node=node, index=i, kind="cpu", name="CPU", host=host) for i in range(count)]
    real: dict[str, Slot] = {}
    with suppress(Exception):  # no NVML: fake GPUs, or another make
        real = {str(slot.index): slot for slot in gpu_slots(node, lambda pid: True)}
        real |= {slot.device: slot for slot in list(real.values())}
    found = []
    for index, gpu in enumerate(gpus):
        known = real.get(gpu, Slot(node=node, index=index, kind="gpu", name="GPU", device=gpu))
        found.append(replace(known, index=index, host=host))
    return found
