"""`python -m ones.launchers.slurm.agent ROOT ALLOCATION NODE`: the agent of one node.

It has a LocalLauncher with the node's slots, and a connection to the controller for requests and
events. The agent outlives the controller: it reconnects to the next one and reports its launches.
It renews the node's lease while it receives messages of the controller, or while the shared
directory does not say that the node was given up. On a node that was given up it kills all workers
and registers again.
"""

from __future__ import annotations

import fcntl
import logging
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ones.exec import lease
from ones.exec.logs import log_to_stderr
from ones.exec.waker import SelectorWaker
from ones.launchers.api import Exited, LauncherEvent, Sampled, Slot, Started
from ones.launchers.devices import cpu_slots, granted_gpu_slots
from ones.launchers.local import LocalLauncher
from ones.launchers.node_agent import NodeAgent
from ones.launchers.probe import Probe, check_probe
from ones.launchers.slurm.agent_client import AgentClient
from ones.launchers.slurm.node_cleanup import clear_node, lease_file
from ones.launchers.slurm.settings import Timing
from ones.launchers.slurm.shared_directory import HERE, LOST, SharedDirectory
from ones.launchers.work_queue import wait_for_input
from ones.wire.backoff import Backoff
from ones.wire.samples import SAMPLE_SECONDS, plain_samples

RETRY_SECONDS = (0.5, 2.0)  # first and longest pause between two attempts to connect
UNFIT_SECONDS = 10.0  # the same, if the controller cannot use the node
LAST_SECONDS = 5.0  # between the end of the workers and the end of the allocation
TERM_SECONDS = 20.0  # to save work after SIGTERM: Slurm gives 30 s by default (KillWait)
TICK_SECONDS = 0.1

log = logging.getLogger("ones.launchers.slurm.agent")


class SlurmNodeAgent(NodeAgent):
    def __init__(
        self, root: Path, allocation: str, node: str, *, slots: list[Slot], timing: Timing
    ) -> None:
        self._shared = SharedDirectory(root)
        self._allocation, self._node, self._timing = allocation, node, timing
        self._lease = lease_file(root, node)
        self._slots = slots
        super().__init__(self._new_launcher())
        self._events: deque[dict[str, Any]] = deque()
        self._client = AgentClient(self._shared, node)
        self._connect_at = 0.0
        self._renewed_at = self._looked_at = 0.0
        self._forgetting: set[str] = set()
        self._is_stopping = False  # workers are being stopped; then the agent ends
        self._is_ending = False
        self._waker = SelectorWaker()
        self._backoff = Backoff(*RETRY_SECONDS)

    def _new_launcher(self) -> LocalLauncher:
        root, slots = self._shared.root, self._slots
        launcher = LocalLauncher(root, slots, lease=self._lease, only=self._node)
        launcher.sample_seconds = SAMPLE_SECONDS
        return launcher

    def run(self) -> str:
        """Runs until the allocation ends (returns `left`) or the node was given up (`lost`)."""
        self._renew()
        self._launcher.open(self._on_launcher)
        signal.signal(signal.SIGTERM, lambda number, frame: self._on_sigterm())
        signal.set_wakeup_fd(self._waker.wakeup_fd, warn_on_full_buffer=False)
        while True:
            self._turn()
            if not self._renew():
                self._launcher.close(kill=False)
                return LOST
            if self._is_stopping and not self.alive():
                self._launcher.close(kill=True)
                self._report({"event": "leaving"})
                self._send_events()
                return "left"

    def disconnect(self) -> None:
        self._client.disconnect()

    # one turn of the loop

    def _turn(self) -> None:
        now = time.monotonic()
        if not self._client.is_connected and now >= self._connect_at:
            self._connect_at = now + self._backoff.next()
            self._connect()
        if self._client.is_registered:
            self._backoff.reset()
        tick = TICK_SECONDS if self._forgetting else self._timing.ping / 4
        wait_for_input([self._waker, *self._client.connections], tick)
        self._waker.clear()
        try:
            for message in self._client.receive():
                self._handle_message(message)
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"[:200]
            log.warning("invalid message from controller", extra={"reason": why})
            self.disconnect()
        self._report_forgotten()
        if time.monotonic() - self._looked_at >= self._timing.ping:
            self._looked_at = time.monotonic()
            self._check_allocation()
        self._send_events()

    def _send_events(self) -> None:
        """Sends events, if registered. A new controller gets the whole state by `_register`."""
        if not self._client.is_registered:
            self._events.clear()
        while self._events:
            self._client.send(self._events.popleft())
        self._client.disconnect_if_closed()

    def _report(self, event: dict[str, Any]) -> None:
        self._events.append(event)

    def _connect(self) -> None:
        own_address = self._client.connect()
        if own_address:
            # other nodes reach these workers at the interface that reaches the controller
            self._slots = [replace(slot, host=own_address) for slot in self._slots]
            self._launcher.set_host(own_address)

    # the lease

    def _renew(self) -> bool:
        """Renews the lease if it is due. False: this node was given up."""
        now = time.monotonic()
        if now - self._renewed_at < self._timing.ping:
            return True
        began = lease.now()
        silent = now - self._client.last_message_at
        is_near = self._client.is_registered and silent < self._timing.suspect
        self._renewed_at = now
        try:
            if not is_near and self._shared.node_state(self._node) == LOST:
                return False
        except OSError:
            return True  # the state of the node is not known: the lease is not renewed
        # counted from before the check: an agent that was frozen since then must not extend it
        lease.renew(self._lease, began + self._timing.lease)
        if self._client.is_registered:
            self._report({"event": "ping"})
        if self._client.is_connected and silent > self._timing.condemn:
            self.disconnect()
        return True

    # messages of the controller

    def _handle_message(self, message: dict[str, Any]) -> None:
        match message.get("do"):
            case "welcome":
                self._register(message)
            case "unfit":
                why = str(message["why"])[:200]
                log.warning("node cannot be used", extra={"node": self._node, "reason": why})
                self._connect_at = time.monotonic() + UNFIT_SECONDS
                self.disconnect()
            case "close":
                self._clear()
            case "launch" if self._is_stopping:
                id, why = message["launch"]["id"], f"allocation {self._allocation} ends"
                self._report({"event": "refused", "id": id, "why": why})
            case "ping":
                pass
            case request:
                if request == "forget":
                    self._forgetting.add(message["job"])
                self.handle(message)

    def _register(self, welcome: dict[str, Any]) -> None:
        problems = (check_probe(Probe(*plain)) for plain in welcome["probes"])
        # events are sent from here on; earlier ones are part of this description
        self._client.register(
            {
                "allocation": self._allocation,
                "ending": self._is_ending,
                "slots": [asdict(slot) for slot in self._slots],
                "launches": [asdict(process) for process in self._launcher.running().values()],
                "trouble": next(filter(None, problems), ""),
            }
        )

    def _on_launcher(self, event: LauncherEvent) -> None:
        """Reports an event of the local launcher. Runs in the launcher's thread."""
        if isinstance(event, Started):
            self._report({"event": "started", "id": event.id, "pid": event.pid})
        elif isinstance(event, Exited):
            self._report({"event": "exited", "id": event.id, "exit": asdict(event.exit)})
        elif isinstance(event, Sampled):
            self._report({"event": "sampled", "samples": plain_samples(event.samples)})
        self._waker.wake()

    def _report_forgotten(self) -> None:
        if self._forgetting:
            known = {process.job for process in self._launcher.running().values()}
            for job in self._forgetting - known:
                self._report({"event": "forgotten", "job": job})
            self._forgetting &= known

    # the end

    def _clear(self) -> None:
        """Ends all workers and every ones-exec; the node stays."""
        self._launcher.close(kill=True)
        self._launcher = self._new_launcher()
        self._launcher.open(self._on_launcher)

    def _check_allocation(self) -> None:
        allocation = self._shared.allocation(self._allocation)
        if allocation is None or not allocation.ending:
            return
        self._announce_end()
        if not self._is_stopping and (time.time() >= allocation.stop_at or not self.alive()):
            left = allocation.ends_at - time.time() - LAST_SECONDS
            self._stop_workers(max(1.0, left) if allocation.ends_at else TERM_SECONDS)

    def _on_sigterm(self) -> None:
        self._announce_end()
        self._stop_workers(TERM_SECONDS)

    def _announce_end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._report({"event": "ending"})

    def _stop_workers(self, grace: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self.stop_all(grace)


def main(arguments: list[str]) -> int:
    log_to_stderr()
    root, allocation, node, gpus, cpus, timing = arguments
    shared = SharedDirectory(Path(root))
    lock = open(lease_file(shared.root, node).with_suffix(".lock"), "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)  # waits for an earlier agent that cleans up
    while True:
        if shared.node_state(node) == LOST:
            clear_node(shared.root, node)
            shared.set_node_state(node, HERE)
        granted = [gpu for gpu in gpus.split(",") if gpu]
        agent = SlurmNodeAgent(
            shared.root,
            allocation,
            node,
            slots=granted_gpu_slots(node, granted) if granted else cpu_slots(node, int(cpus)),
            timing=Timing.from_text(timing),
        )
        how = agent.run()
        agent.disconnect()
        if how != LOST:
            return 0
        log.warning("node was given up, killing its workers", extra={"node": node})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
