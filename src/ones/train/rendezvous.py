"""Rendezvous: finds the job's store and connects process groups through it."""

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

from ones.train.layout import GroupLayout, node_of
from ones.train.membership import MembershipClient
from ones.train.process_group import GroupLostError, ProcessGroup
from ones.train.store_process import StoreAddress, start_store
from ones.wire.environment import WorkerEnvironment

CONNECT_SECONDS = 120.0
#: time without a store after which the next node of the layout starts one
NODE_TURN_SECONDS = 5.0


class Rendezvous:
    """Keeps this worker connected to the job's store, also when another replaces it."""

    def __init__(
        self,
        environment: WorkerEnvironment,
        *,
        on_store_started: Callable[[StoreAddress], None],
        on_lost: Callable[[str, bool], None],
        on_store_silent: Callable[[], None],
        on_broken: Callable[[tuple[int, int]], None] = lambda generation: None,
    ) -> None:
        self._environment = environment
        self._on_store_started = on_store_started
        self._on_lost, self._on_store_silent = on_lost, on_store_silent  # (worker, hangs)
        self._on_broken = on_broken  # argument: the generation of a group that failed
        self._announced: StoreAddress | None = None  # by the controller
        self._started: StoreAddress | None = None  # here, as a replacement
        self._silent: StoreAddress | None = None  # on another node, does not answer any more
        self._client: MembershipClient | None = None
        self._lost: set[str] = set()  # workers
        self._generations: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._left = False
        # in the layout: whether all workers are on this node, and the number of nodes before it
        self._is_only_node, self._nodes_before = True, 0

    def set_store_address(self, address: str) -> None:
        """Sets the address that the controller announces, for nodes without a shared directory."""
        with contextlib.suppress(ValueError):
            new = StoreAddress.parse(address)
            client, previous, self._announced = self._client, self._announced, new
            moved = previous is not None and new != previous
            if moved and client is not None and client.address != new and self._is_alive(new):
                client.close()  # two nodes started a store: the announced one counts

    def membership(self, *, may_start: bool, timeout: float = CONNECT_SECONDS) -> MembershipClient:
        """Returns the connection to the store; with `may_start`, starts one if there is none."""
        with self._lock:
            started = time.monotonic()
            deadline = started + timeout
            problem: OSError | None = None
            while not self._left and time.monotonic() < deadline:
                if self._client is not None and not self._client.broken.is_set():
                    return self._client
                try:
                    address = self._find_store(may_start)
                    if address is not None:
                        return self._join(address)
                except OSError as error:
                    problem = error
                turn = started + self._nodes_before * NODE_TURN_SECONDS
                if not may_start and time.monotonic() > turn:
                    self._start_replacement()
                time.sleep(0.05)
        raise GroupLostError(f"the job's store was not found: {problem or 'no address'}")

    def _find_store(self, may_start: bool) -> StoreAddress | None:
        announced, here = self._announced, StoreAddress.read(self._environment.job_dir)
        if announced not in (None, here, self._silent) and self._is_alive(announced):
            return announced
        if may_start:
            address = self._start_store()
            if address != here:
                self._on_store_started(address)
            return address
        # a replacement counts once the controller has announced it: other nodes may start one, too
        return here if here != self._started or here == announced else None

    def _is_alive(self, address: StoreAddress | None) -> bool:
        return address is not None and address.is_alive(self._environment.token)

    def _start_store(self) -> StoreAddress:
        environment = self._environment
        return start_store(environment.job_dir, environment.host, environment.token)

    def _start_replacement(self) -> None:
        """Starts a store here, because the node that should have one is lost."""
        with contextlib.suppress(OSError):
            started = self._start_store()
            if started != self._started:
                self._started = started
                self._on_store_started(started)

    def _join(self, address: StoreAddress) -> MembershipClient:
        self._lost.clear()
        client = self._client = MembershipClient(
            address,
            self._environment.worker,
            self._environment.token,
            generations=self._generations,
            on_joined=self._lost.discard,
            on_left=self._on_left,
            on_broken=self._on_broken,
        )
        threading.Thread(
            target=self._reconnect, args=(client,), name="ones-store", daemon=True
        ).start()
        return client

    def _reconnect(self, client: MembershipClient) -> None:
        """Finds another store when this one breaks.

        A silent store on another node is out of reach, and so are the workers there:
        `on_store_silent` wakes the thread that waits for them.
        """
        client.broken.wait()
        if self._left or client.expelled:
            return
        is_elsewhere = client.address.host != self._environment.host
        if client.is_silent and is_elsewhere and not self._is_only_node:
            self._silent = client.address
            self._on_store_silent()
        client.close()
        with contextlib.suppress(GroupLostError):
            self.membership(may_start=self._is_only_node)

    def may_start_store(self, layout: GroupLayout) -> bool:
        """Whether this worker may start a store at once, for this layout."""
        nodes = list(dict.fromkeys(map(node_of, layout.workers)))
        here = node_of(self._environment.worker)
        self._is_only_node = nodes == [here]
        self._nodes_before = nodes.index(here) if here in nodes else len(nodes)
        return self._is_only_node or nodes[0] == here

    def _on_left(self, worker: str, hangs: bool) -> None:
        self._lost.add(worker)
        self._on_lost(worker, hangs)

    def has_lost(self, workers: Iterable[str]) -> bool:
        """Whether one of these workers is known to be lost."""
        return not self._lost.isdisjoint(workers)

    def join_generation(self, generation: tuple[int, int]) -> None:
        """Records that this worker is part of that group from here on."""
        self._generations = [*self._generations[-3:], generation]
        if self._client is not None:
            self._client.join_generation(*generation)

    def expect(self, workers: Iterable[str]) -> None:
        """Forgets that these workers were lost: they may be back, in other processes."""
        self._lost.difference_update(workers)

    def connect(
        self,
        layout: GroupLayout,
        device: torch.device,
        *,
        state_role: int | None = None,
        is_withdrawn: Callable[[], bool] = lambda: False,
        timeout: float = CONNECT_SECONDS,
    ) -> ProcessGroup:
        """Connects the group of a layout; raises GroupLostError at once when a member is lost.

        `state_role`: a number that all members exchange; all pass one, or none.
        """
        client = self.membership(may_start=self.may_start_store(layout))
        results: queue.SimpleQueue[ProcessGroup | Exception] = queue.SimpleQueue()
        store_connected, given_up = threading.Event(), threading.Event()

        def connect() -> None:
            try:
                c10d: Any = torch.distributed
                store = c10d.TCPStore(
                    client.address.host,
                    client.address.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=timeout),
                )
                store_connected.set()
                group = ProcessGroup.connect(
                    store,
                    layout.name,
                    rank=layout.workers.index(self._environment.worker),
                    size=len(layout.members),
                    host=self._environment.host,
                    device=device,
                    timeout=timeout,
                )
                if state_role is not None:
                    group.state_roles = group.all_gather(state_role)
                results.put(group)
                if given_up.is_set():
                    group.close()  # its members would wait for this worker
            except Exception as error:
                results.put(error)

        threading.Thread(target=connect, name="ones-connect", daemon=True).start()
        try:
            return self._await_group(
                layout, client, results, store_connected, is_withdrawn=is_withdrawn, timeout=timeout
            )
        except BaseException:
            given_up.set()
            with contextlib.suppress(queue.Empty):
                late = results.get_nowait()
                if isinstance(late, ProcessGroup):
                    late.close()
            raise

    def _await_group(
        self,
        layout: GroupLayout,
        client: MembershipClient,
        results: queue.SimpleQueue[ProcessGroup | Exception],
        store_connected: threading.Event,
        *,
        is_withdrawn: Callable[[], bool],
        timeout: float,
    ) -> ProcessGroup:
        deadline = time.monotonic() + timeout  # gloo itself may take several times as long
        while True:
            with contextlib.suppress(queue.Empty):
                result = results.get(timeout=0.02)
                if isinstance(result, ProcessGroup):
                    return result
                raise GroupLostError(str(result)) from result
            lost = self._lost & set(layout.workers)
            if lost:
                raise GroupLostError(f"lost workers: {', '.join(sorted(lost))}")
            if client.broken.is_set() and not store_connected.is_set():
                # TCPStore itself would go on trying to connect to a closed port
                raise GroupLostError("the job's store is gone")
            if is_withdrawn():
                raise GroupLostError("withdrawn")
            if time.monotonic() > deadline:
                raise GroupLostError(f"group {layout.name} did not connect in {timeout:.0f} s")

    def interrupt(self) -> None:
        """Wakes the training thread if it waits for the survivors of a loss."""
        if self._client is not None:
            self._client.interrupt()

    def report_memory_limit(self, samples: int) -> None:
        if self._client is not None:
            self._client.report_memory_limit(samples)

    def leave(self) -> None:
        self._left = True
        if self._client is not None:
            self._client.leave()
