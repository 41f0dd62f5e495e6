"""`python -m ones.launchers.slurm.agent ROOT ALLOCATION NODE`: one node of an allocation.

A LocalLauncher with the node's slots, and a line to the controller over which launches come and
news go. The agent outlives the controller: it dials again and again, and says what lives. It
renews the lease of its node as long as the controller is heard or, when it is not, as long as the
shared directory does not say that the node was given up; then everything here is killed before
the node offers itself anew.
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
from ones.launchers.api import Exited, Launch, LauncherEvent, Process, Slot, Started
from ones.launchers.local import LocalLauncher
from ones.launchers.loop import Bell, wait_for
from ones.launchers.probe import Probe, trouble
from ones.launchers.slurm.call import Call
from ones.launchers.slurm.fence import clear_node, lease_file
from ones.launchers.slurm.granted import slots_of
from ones.launchers.slurm.shared import HERE, LOST, Shared, Timing

AGAIN_SECONDS = 0.5  # between two calls
UNFIT_SECONDS = 10.0  # the same when the node was found unfit
LAST_SECONDS = 5.0  # left between the workers' last moment and the allocation's
TERM_SECONDS = 20.0  # to save work after SIGTERM: Slurm gives 30 s by default (KillWait)
TICK_SECONDS = 0.1

log = logging.getLogger("ones.launchers.slurm.agent")


class Agent:
    def __init__(
        self, root: Path, allocation: str, node: str, *, slots: list[Slot], timing: Timing
    ) -> None:
        self._shared = Shared(root)
        self._allocation, self._node, self._timing = allocation, node, timing
        self._lease = lease_file(root, node)
        self._slots = slots
        self._launcher = self._new_launcher()
        self._news: deque[dict[str, Any]] = deque()
        self._call = Call(self._shared, node)
        self._dial_at = 0.0
        self._checked = self._looked = 0.0
        self._forgetting: set[str] = set()
        self._stop_by: float | None = None  # workers must be gone by then
        self._is_ending = False
        self._bell = Bell()

    def _new_launcher(self) -> LocalLauncher:
        return LocalLauncher(self._shared.root, self._slots, lease=self._lease, only=self._node)

    def run(self) -> str:
        """Until the allocation ends (`left`), or the node was given up (`lost`)."""
        self._renew()
        self._launcher.open(self._on_launcher)
        signal.signal(signal.SIGTERM, lambda number, frame: self._told_to_go())
        signal.set_wakeup_fd(self._bell.cord, warn_on_full_buffer=False)
        while True:
            self._turn()
            if not self._renew():
                self._launcher.close(kill=False)
                return LOST
            if self._stop_by is not None and not self._alive():
                self._launcher.close(kill=True)
                self._say({"event": "leaving"})
                self._settle()
                return "left"

    def hang_up(self) -> None:
        self._call.hang_up()

    # one turn of the loop

    def _turn(self) -> None:
        now = time.monotonic()
        if not self._call.is_up and now >= self._dial_at:
            self._dial_at = now + AGAIN_SECONDS
            self._dial()
        tick = TICK_SECONDS if self._forgetting else self._timing.ping / 4
        wait_for([self._bell], self._call.lines, tick)
        self._bell.silence()
        try:
            for message in self._call.receive():
                self._hear(message)
        except Exception as problem:
            why = f"{type(problem).__name__}: {problem}"[:200]
            log.warning("invalid message from controller", extra={"reason": why})
            self.hang_up()
        self._look_at_forgotten()
        if time.monotonic() - self._looked >= self._timing.ping:
            self._looked = time.monotonic()
            self._look_at_allocation()
        self._settle()

    def _settle(self) -> None:
        """Tell what is to be told, if somebody listens; who comes later is told everything."""
        if not self._call.is_registered:
            self._news.clear()
        while self._news:
            self._call.send(self._news.popleft())
        self._call.end_if_closed()

    def _say(self, message: dict[str, Any]) -> None:
        self._news.append(message)

    def _dial(self) -> None:
        here = self._call.dial()
        if here:
            # other nodes reach our workers at the interface from which the controller is reached
            self._slots = [replace(slot, host=here) for slot in self._slots]
            self._launcher.reached_at(here)

    # the lease

    def _renew(self) -> bool:
        """False: this node was given up, and nothing may run here."""
        now = time.monotonic()
        if now - self._checked < self._timing.ping:
            return True
        began = lease.now()
        is_near = self._call.is_registered and now - self._call.heard < self._timing.suspect
        self._checked = now
        try:
            if not is_near and self._shared.word(self._node) == LOST:
                return False
        except OSError:
            return True  # nobody can say that we may: the lease runs on
        # from before we looked: who is stopped in between renews nothing
        lease.renew(self._lease, began + self._timing.lease)
        if self._call.is_registered:
            self._say({"event": "ping"})
        if self._call.is_up and now - self._call.heard > self._timing.condemn:
            self.hang_up()
        return True

    # what the controller says

    def _hear(self, message: dict[str, Any]) -> None:
        match message.get("do"):
            case "welcome":
                self._register(message)
            case "unfit":
                why = str(message["why"])[:200]
                log.warning("node cannot be used", extra={"node": self._node, "reason": why})
                self._dial_at = time.monotonic() + UNFIT_SECONDS
                self.hang_up()
            case "launch":
                self._launch(message["launch"])
            case "prepare":
                self._launcher.prepare(Launch.of(message["launch"]))
            case "stop":
                self._launcher.stop(message["id"], message["grace"])
            case "forget":
                self._forgetting.add(message["job"])
                self._launcher.forget(message["job"])
            case "close":
                self._clear()
            case _:
                pass  # a ping

    def _register(self, message: dict[str, Any]) -> None:
        probes = [Probe(*plain) for plain in message["probes"]]
        # from here on news are sent: what happened before is in what is said now
        self._call.register(
            message,
            {
                "allocation": self._allocation,
                "ending": self._is_ending,
                "slots": [asdict(slot) for slot in self._slots],
                "launches": [_told(p) for p in self._launcher.running().values()],
                "trouble": next((why for probe in probes if (why := trouble(probe))), ""),
            },
        )

    def _launch(self, plain: dict[str, Any]) -> None:
        launch = Launch.of(plain)
        if self._stop_by is not None:
            why = "its allocation ends"
            self._say({"event": "refused", "id": launch.id, "why": why})
            return
        self._launcher.launch(launch)

    def _on_launcher(self, event: LauncherEvent) -> None:
        """In the launcher's thread."""
        if isinstance(event, Started):
            self._say({"event": "started", "id": event.id, "pid": event.pid})
        elif isinstance(event, Exited):
            self._say({"event": "exited", "id": event.id, "exit": asdict(event.exit)})
        self._bell.ring()

    def _look_at_forgotten(self) -> None:
        if self._forgetting:
            known = {process.job for process in self._launcher.running().values()}
            for job in self._forgetting - known:
                self._say({"event": "forgotten", "job": job})
            self._forgetting &= known

    # the end

    def _alive(self) -> list[Process]:
        return [process for process in self._launcher.running().values() if process.alive]

    def _stop_all(self, grace: float) -> None:
        for process in self._alive():
            self._launcher.stop(process.id, grace)

    def _clear(self) -> None:
        """Everybody goes, and every ones-exec; the node stays."""
        self._launcher.close(kill=True)
        self._launcher = self._new_launcher()
        self._launcher.open(self._on_launcher)

    def _look_at_allocation(self) -> None:
        allocation = self._shared.allocation(self._allocation)
        if allocation is None or not allocation.ending:
            return
        if not self._is_ending:
            self._is_ending = True
            self._say({"event": "ending"})
        if self._stop_by is None and (time.time() >= allocation.stop_at or not self._alive()):
            left = allocation.ends_at - time.time() - LAST_SECONDS
            self._go(max(1.0, left) if allocation.ends_at else TERM_SECONDS)

    def _told_to_go(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._say({"event": "ending"})
        self._go(TERM_SECONDS)

    def _go(self, grace: float) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + grace
            self._stop_all(grace)


def _told(process: Process) -> dict[str, Any]:
    exit = asdict(process.exit) if process.exit is not None else None
    return {"id": process.id, "job": process.job, "slots": process.slots, "pid": process.pid,
            "exit": exit}  # fmt: skip


def main(arguments: list[str]) -> int:
    log_to_stderr()
    root, allocation, node, gpus, cpus, timing = arguments
    shared = Shared(Path(root))
    alone = open(lease_file(shared.root, node).with_suffix(".lock"), "w")  # noqa: SIM115
    fcntl.flock(alone, fcntl.LOCK_EX)  # an earlier agent may still be clearing up
    while True:
        if shared.word(node) == LOST:
            clear_node(shared.root, node)
            shared.say(node, HERE)
        indices = [int(gpu) for gpu in gpus.split(",") if gpu]
        agent = Agent(
            shared.root,
            allocation,
            node,
            slots=slots_of(node, indices, int(cpus)),
            timing=Timing.from_text(timing),
        )
        how = agent.run()
        agent.hang_up()
        if how != LOST:
            return 0
        log.warning("node was given up, its workers are killed", extra={"node": node})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
