"""Finding the job's store, and through it the other workers of a group."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from ones.train.formation import Formation, node_of
from ones.train.group import Group, GroupLostError
from ones.train.roll_call import RollCall, StoreAddress, answers, start_store
from ones.wire.environment import WorkerEnvironment

CONNECT_SECONDS = 120.0
#: no store is found for so long: the next node in the formation offers one
TURN_SECONDS = 5.0


class Meeting:
    """Keeps this worker on the roll call, also when the store dies and another takes its place."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        *,
        on_started: Callable[[StoreAddress], None],
        on_hung: Callable[[str], None],
        on_silence: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._on_started, self._on_hung, self._on_silence = on_started, on_hung, on_silence
        self._told: StoreAddress | None = None
        self._offered: StoreAddress | None = None
        self._silent: StoreAddress | None = None  # it was on another node, and says nothing more
        self._calls: RollCall | None = None
        self._gone: set[str] = set()
        self._groups: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._left = False

    def told(self, address: str) -> None:
        """By the controller: for nodes that do not share a directory with the store."""
        with contextlib.suppress(ValueError):
            told = StoreAddress.parse(address)
            calls, before, self._told = self._calls, self._told, told
            moved = before is not None and told != before
            if moved and calls is not None and calls.address != told and self._answers(told):
                calls.close()  # two nodes offered one: the controller's word holds

    def calls(self, *, may_start: bool, patience: float = CONNECT_SECONDS) -> RollCall:
        """On the roll call of the living store; starts one where that is ours to do."""
        with self._lock:
            began = time.monotonic()
            until = began + patience
            problem: OSError | None = None
            while not self._left and time.monotonic() < until:
                if self._calls is not None and not self._calls.broken.is_set():
                    return self._calls
                try:
                    found = self._address(may_start)
                    if found is not None:
                        return self._join(found)
                except OSError as this:
                    problem = this
                if not may_start and time.monotonic() > began + self._turn * TURN_SECONDS:
                    self._offer()
                time.sleep(0.05)
        raise GroupLostError(f"the job's store was not found: {problem or 'no address'}")

    def _address(self, may_start: bool) -> StoreAddress | None:
        told, here = self._told, StoreAddress.read(self._environment.job_dir)
        if told is not None and told not in (here, self._silent) and self._answers(told):
            return told
        if may_start:
            address = self._start()
            if address != here:
                self._on_started(address)
            return address
        # what was offered here counts only once the controller has said so: others may offer, too
        return here if here != self._offered or here == told else None

    def _answers(self, address: StoreAddress) -> bool:
        return answers(address, self._environment.token)

    def _start(self) -> StoreAddress:
        here = self._environment
        return start_store(here.job_dir, here.host, here.token)

    def _offer(self) -> None:
        """The node that should have started a store is gone, or the store with its node."""
        with contextlib.suppress(OSError):
            offered = self._start()
            if offered != self._offered:
                self._offered = offered
                self._on_started(offered)

    def _join(self, address: StoreAddress) -> RollCall:
        self._gone.clear()
        calls = self._calls = RollCall(
            address,
            self._environment.worker,
            self._environment.token,
            groups=self._groups,
            on_came=self._gone.discard,
            on_gone=self._has_gone,
        )
        threading.Thread(target=self._keep, args=(calls,), name="ones-store", daemon=True).start()
        return calls

    def _keep(self, calls: RollCall) -> None:
        """A store that died is replaced before it is missed. One on another node that is silent is
        out of reach, and so are the workers there: who waits for them must not any more."""
        calls.broken.wait()
        if self._left or calls.expelled:
            return
        is_elsewhere = calls.address.host != self._environment.host
        if calls.is_silent and is_elsewhere and not self._alone_on_node:
            self._silent = calls.address
            self._on_silence()
        calls.close()
        with contextlib.suppress(GroupLostError):
            self.calls(may_start=self._alone_on_node)

    #: by the formation: all workers of the job are on this node; how many nodes come before it
    _alone_on_node = True
    _turn = 0

    def place(self, formation: Formation) -> bool:
        """May we start a store for this formation?"""
        nodes = list(dict.fromkeys(map(node_of, formation.workers)))
        here = node_of(self._environment.worker)
        self._alone_on_node = nodes == [here]
        self._turn = nodes.index(here) if here in nodes else len(nodes)
        return self._alone_on_node or node_of(formation.workers[0]) == here

    def _has_gone(self, worker: str, hangs: bool) -> None:
        self._gone.add(worker)
        if hangs:
            self._on_hung(worker)

    def joins(self, generation: tuple[int, int]) -> None:
        """This worker is part of that group from here on."""
        self._groups = [*self._groups[-3:], generation]
        if self._calls is not None:
            self._calls.joins(*generation)

    def expect(self, workers: Iterable[str]) -> None:
        """Whoever was gone before this may be back, in another process."""
        self._gone.difference_update(workers)

    def connect(
        self,
        formation: Formation,
        device: torch.device,
        *,
        offer: int | None = None,
        given_up: Callable[[], bool] = lambda: False,
        seconds: float = CONNECT_SECONDS,
    ) -> Group:
        """The group of a formation of several; gives up at once when one of them is gone.

        `offer`: a number that all learn of one another; all give one, or none.
        """
        calls = self.calls(may_start=self.place(formation))
        results: queue.SimpleQueue[Group | Exception] = queue.SimpleQueue()
        is_there = threading.Event()  # at the store
        host, worker = self._environment.host, self._environment.worker

        def work() -> None:
            try:
                c10d: Any = torch.distributed
                store = c10d.TCPStore(
                    calls.address.host,
                    calls.address.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=seconds),
                )
                is_there.set()
                rank = formation.workers.index(worker)
                size = len(formation.members)
                group = Group.connect(
                    store,
                    formation.name,
                    rank=rank,
                    size=size,
                    host=host,
                    device=device,
                    timeout=seconds,
                )
                if offer is not None:
                    group.offers = group.of_all(offer)
                results.put(group)
            except Exception as problem:
                results.put(problem)

        threading.Thread(target=work, name="ones-connect", daemon=True).start()
        until = time.monotonic() + seconds  # gloo itself may take several times as long
        while True:
            try:
                result = results.get(timeout=0.02)
            except queue.Empty:
                gone = self._gone & set(formation.workers)
                if gone:
                    raise GroupLostError(f"{', '.join(sorted(gone))} is gone") from None
                if calls.broken.is_set() and not is_there.is_set():
                    # a TCPStore would go on calling a port where nobody is
                    raise GroupLostError("the job's store is gone") from None
                if given_up():
                    raise GroupLostError("withdrawn") from None
                if time.monotonic() > until:
                    late = f"group {formation.name} did not come together in {seconds:.0f} s"
                    raise GroupLostError(late) from None
                continue
            if isinstance(result, Group):
                return result
            raise GroupLostError(str(result)) from result

    def interrupt(self) -> None:
        """An order has come: whoever waits for the roll call looks up."""
        if self._calls is not None:
            self._calls.interrupt()

    def limit_is(self, samples: int) -> None:
        if self._calls is not None:
            self._calls.limit_is(samples)

    def leave(self) -> None:
        self._left = True
        if self._calls is not None:
            self._calls.leave()
