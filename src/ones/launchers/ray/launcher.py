"""RayLauncher: the controller's side. One thread, which starts the driver process and talks to it.

The root directory has `nodes.json` (nodes with slots of this service), the mirror of all launches,
and the log of the driver. When the head of the cluster is gone, no lease is renewed: after the
duration of a lease, all nodes are lost.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from ones.errors import InvalidSettingError, WorldError
from ones.exec.records import Exit, Launch, fenced, not_started
from ones.extras import require
from ones.launchers.api import LauncherContext, Listener, Slot
from ones.launchers.node_table import NodeTable, RemoteNode
from ones.launchers.ray.driver_client import DriverClient
from ones.launchers.ray.mirror import Mirror
from ones.launchers.ray.settings import MARGIN_SECONDS, RayOptions, RaySettings
from ones.launchers.remote_launcher import RemoteLauncher
from ones.launchers.threaded_launcher import TURN_SECONDS
from ones.launchers.work_queue import wait_for_input

OPEN_SECONDS = 50.0  # less than `ones up` waits for the service
CLOSE_SECONDS = 40.0
LOG = "ray-driver.log"

log = logging.getLogger(__name__)


class RayLauncher(RemoteLauncher[RemoteNode]):
    """Starts workers on the nodes of a Ray cluster.

    `controller` returns the URL that workers call; each node checks that it can be reached.
    `waits`: `open` waits for a cluster that does not answer, if nodes of it are known.
    """

    Settings = RaySettings

    def __init__(
        self,
        root: Path,
        options: RayOptions,
        controller: Callable[[], str] = str,
        *,
        waits: bool = True,
    ) -> None:
        self._mirror = Mirror(root)
        super().__init__(self._mirror)
        self._root, self._options, self._controller = root, options, controller
        self._waits = waits
        self._nodes = NodeTable(root, self._notify, RemoteNode)
        self._driver = DriverClient(root / LOG, self._hello)
        self._settled = threading.Event()
        self._failure = ""  # why Ray could not be reached at the last attempt
        self._gone_since: float | None = None  # the head's port refuses connections
        self._close_request: int | None = None
        self._close_by = 0.0

    @classmethod
    def for_service(cls, context: LauncherContext, **settings: Any) -> Self:
        options = RayOptions(
            **settings, instance=_instance(context.runs), shared=context.checkpoints
        )
        require("--launcher ray", "ray")
        if not options.address:
            raise InvalidSettingError(
                "address is not set: give the head of the Ray cluster, as --address HOST:PORT"
            )
        if context.slots is not None:
            raise InvalidSettingError(
                f"slots {context.slots}: Ray counts slots by a resource; give its name with"
                " --ray-slots NAME instead"
            )
        return cls(context.runs, options, context.url)

    @classmethod
    def stop_workers(cls, context: LauncherContext, **settings: Any) -> None:
        """Ends the workers. If Ray is out of reach their lease ends them; a warning says when."""
        options = RayOptions(**settings, instance=_instance(context.runs))
        launcher = cls(context.runs, options, waits=False)
        if not launcher._may_have_workers():
            launcher.close(kill=False)
            return
        with suppress(WorldError):  # logged below
            launcher.open(lambda event: None)
            launcher.close(kill=True)
        if launcher._failure:
            is_gone = launcher._gone_since is not None
            how = f"within {options.lease_seconds:g} s" if is_gone else "once its head is gone"
            log.warning(f"{launcher._failure}; workers end by themselves {how}")

    def _may_have_workers(self) -> bool:
        """Whether workers or agents may run, by the files; called before `open`."""
        return bool(self._nodes.stored()) or any(process.alive for process in self._mirror.all())

    def open(self, listener: Listener) -> None:
        self._mirror.make()
        self._restore_launches()
        self._nodes.restore()
        self._start_thread(listener)
        if not self._settled.wait(OPEN_SECONDS):
            self._failure = (
                f"Ray at {self._options.address}: no answer in {OPEN_SECONDS:g} s"
                " (does the cluster require TLS or a token?)"
            )
        if self._failure and not self._nodes.all():
            self.close(kill=False)
            raise WorldError(f"{self._failure}; see {self._root / LOG}")

    # the thread

    def _turn(self) -> None:
        self._driver.start_if_due()
        wait_for_input([self._work, *self._driver.connections], self._seconds_to_wait())
        for message in self._driver.receive():
            try:
                self._handle(message)
            except Exception:
                about = {"launch": str(message.get("id", "")), "node": str(message.get("node", ""))}
                log.exception("invalid message from the Ray driver", extra=about)
        if self._driver.has_died:
            self._on_driver_death()
        self._work.run_all()
        self._check_head()

    def _end(self) -> None:
        self._driver.end()

    def _hello(self) -> dict[str, Any]:
        options = asdict(replace(self._options, controller=self._controller()))
        nodes = {node.name: node.source for node in self._nodes.all()}
        return {"options": options, "root": str(self._root), "nodes": nodes}

    def _on_driver_death(self) -> None:
        self._driver.end()
        if not self._closing or self._close_request is not None:
            self._driver.start_again()
        for node in self._nodes.all():
            self._nodes.suspect(node, "the Ray driver is being started again")

    def _seconds_to_wait(self) -> float:
        close_by = self._close_by if self._closing else None
        times = [t for t in (self._driver.start_at, close_by, self._all_lost_at()) if t]
        return min(TURN_SECONDS, max(0.0, min(times) - time.monotonic())) if times else TURN_SECONDS

    def _all_lost_at(self) -> float | None:
        if self._gone_since is None or not self._nodes.all():
            return None
        return self._gone_since + self._options.lease_seconds + MARGIN_SECONDS

    def _check_head(self) -> None:
        """Gives up all nodes once the leases must have expired after the loss of the head."""
        at = self._all_lost_at()
        if at is not None and time.monotonic() >= at:
            for node in self._nodes.all():
                self._lose(node.name, "the head of the Ray cluster is gone")

    def _is_done(self) -> bool:
        number = self._close_request
        waiting = number is not None and self._driver.is_pending(number)
        return not waiting or time.monotonic() > self._close_by

    def _kill_all(self) -> None:
        self._close_by = time.monotonic() + CLOSE_SECONDS
        if self._driver.is_there and self._gone_since is None:
            self._close_request = self._driver.request({"do": "close"})

    # requests

    def _send(self, node: RemoteNode, request: dict[str, Any]) -> None:
        self._driver.request({"node": node.name, **request})

    def _send_launch(self, node: RemoteNode, launch: Launch) -> None:
        try:
            self._mirror.add(launch, node.name)
        except OSError as problem:  # a full disk
            self._exited(launch.id, not_started((problem.strerror or str(problem)).lower()))
            return
        self._send(node, {"do": "launch", "launch": asdict(launch)})

    def _stop(self, id: str, grace: float) -> None:
        process = self._launches.living(id)
        if process is not None and process.node:
            self._driver.request({"node": process.node, "do": "stop", "id": id, "grace": grace})

    def _forget(self, job: str) -> None:
        names = self._launches.nodes_of(job)
        self._launches.forget(job)
        for node in self._nodes.all():
            if node.name in names:
                self._send(node, {"do": "forget", "job": job})
        self._mirror.end_job(job)

    # messages of the driver

    def _handle(self, message: dict[str, Any]) -> None:
        if message.get("event") != "failed":
            # the driver is connected to a head: from now on it reports which nodes are lost
            self._gone_since = None
        match message.get("event"):
            case None:
                self._on_answer(message)
            case "node":
                self._add_node(message)
            case "settled":
                self._failure = ""
                self._settled.set()
            case "failed":
                self._on_failure(message["cause"], is_gone=message["gone"])
            case "suspect":
                if (node := self._nodes.get(message["node"])) is not None:
                    self._nodes.suspect(node, message["cause"])
            case "lost":
                self._lose(message["node"], message["cause"])
            case "unfit":
                self.unfit[message["node"]] = message["cause"]
            case "started" | "exited":
                self._handle_launch_event(message)
            case "sampled":
                self._handle_samples(message["node"], message.get("samples"))

    def _on_answer(self, message: dict[str, Any]) -> None:
        request = self._driver.answered(message["n"])
        if "left" in message:  # the answer to `close`: workers may run on these nodes only
            self._nodes.keep_only(message["left"])
        if request is not None and "error" in message and request["do"] == "launch":
            self._exited(request["launch"]["id"], fenced(message["error"]))

    def _on_failure(self, cause: str, *, is_gone: bool) -> None:
        self._failure = cause
        if not is_gone:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        if is_gone or not self._waits or not self._nodes.all() or self._launches.all():
            self._settled.set()
        if self._close_request is not None:  # no agent can be reached: the lease ends the workers
            self._driver.answered(self._close_request)

    def _add_node(self, message: dict[str, Any]) -> None:
        name, launches = message["node"], message["launches"]
        self.unfit.pop(name, None)
        for id, pid in launches.items():
            if pid is not None:
                self._launches.started(id, pid)
        self._fail_unknown(name, {*launches, *self._driver.pending_launches()})
        slots = [Slot.of(plain) for plain in message["slots"]]
        self._nodes.add(RemoteNode(name, slots, message["ray"]))

    def _lose(self, name: str, cause: str) -> None:
        """Removes a node on which no process runs any more, and ends its launches."""
        if (node := self._nodes.get(name)) is not None:
            self._nodes.remove(node, cause)
        self._driver.drop(name)
        record = fenced(f"node {name}: {cause}")
        for process in self._launches.living_on(name):
            self._exited(process.id, record)

    def _exited(self, id: str, exit: Exit) -> None:
        """Writes the exit to disk before it is reported."""
        process = self._launches.living(id)
        if process is not None and process.node:
            self._mirror.exited(process.job, process.node, id, exit)
        super()._exited(id, exit)


def _instance(runs: Path) -> str:
    """The name that distinguishes this service's agents from others on the same cluster."""
    file = runs / "instance"
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    return file.read_text().strip()
