"""Scenarios: a small cluster with its jobs and faults, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from ones.control.live.timeouts import Timeouts
from ones.lab.faults.context import FaultContext
from ones.lab.faults.disk import SimulatedDisk
from ones.lab.faults.job_spec import JobSpec
from ones.lab.faults.launcher import SimulatedLauncher, SimulatedNode
from ones.lab.faults.network import SimulatedNetwork
from ones.lab.faults.users import SimulatedUsers

#: kinds of faults and what happens
KINDS = {
    "crash": "the controller ends at any use of clock, disk, launcher or inbox",
    "loss": "a request of a worker, or its answer, does not arrive",
    "duplicate": "a request arrives twice, the second time later",
    "delay": "requests take seconds, so that they overtake one another",
    "slow-disk": "commits take seconds",
    "full-disk": "commits fail for a while",
    "node-loss": "a node vanishes; it is fenced and returns later",
    "node-cut": "a node is out of reach for a while; its workers live",
    "worker-death": "a worker process is killed",
    "script-failure": "a script ends with an error",
    "slow-join": "a script takes long to join, or never does",
    "stranger": "another user's process comes to a GPU",
    "cancel": "users cancel jobs",
    "priority": "users change priorities",
    "drain": "operators drain nodes and GPUs",
    "clock": "the wall clock is set back while the controller is down",
    "hostile": "a job sends changed, repeated, oversized and random reports",
}
POLICIES = ("fifo", "fifo", "fifo", "equi", "equi", "equi", "equi", "ones")
TIMEOUTS = Timeouts(
    join_seconds=60.0,
    switch_seconds=40.0,
    checkpoint_seconds=30.0,
    end_seconds=6.0,
    grace_seconds=5.0,
    quiet_seconds=15.0,
    silence_seconds=60.0,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    nodes: dict[str, int]
    jobs: tuple[tuple[float, JobSpec], ...]  # with the time of submission
    policy: str
    mechanism: str
    kinds: frozenset[str]  # of faults
    calm_at: float  # no more faults from then on
    crashes: int  # at most
    tail: int  # entries before a snapshot is taken


def draw_scenario(rng: Random, kinds: Collection[str], policy: str | None) -> Scenario:
    nodes = {f"n{i}": rng.randint(2, 4) for i in range(rng.randint(1, 3))}
    chosen = frozenset(k for k in kinds if rng.random() < (0.8 if k == "crash" else 0.4))
    # a script that does not join is one process, and policies may place such a job on several nodes
    largest, fixed = max(nodes.values()), max(nodes.values()) if len(nodes) == 1 else 1
    jobs = []
    hostile = 0
    for number in range(rng.randint(3, 7)):
        is_hostile = "hostile" in chosen and rng.random() < 0.4
        hostile += is_hostile
        jobs.append(
            (rng.uniform(0.0, 120.0), _spec(rng, number, chosen, (largest, fixed), is_hostile))
        )
    if "hostile" in chosen and not hostile:
        at, spec = jobs[0]
        jobs[0] = (at, _spec(rng, spec.number, chosen, (largest, fixed), is_hostile=True))
    return Scenario(
        nodes=nodes,
        jobs=tuple(jobs),
        policy=policy or rng.choice(POLICIES),
        mechanism="restart" if rng.random() < 0.15 else "elastic",
        kinds=chosen,
        calm_at=rng.uniform(120.0, 400.0),
        crashes=rng.randint(1, 5) if "crash" in chosen else 0,
        tail=rng.choice((5, 30, 100, 2000)),
    )


def _spec(
    rng: Random, number: int, kinds: Collection[str], sizes: tuple[int, int], is_hostile: bool
) -> JobSpec:
    """`sizes`: maximum GPUs of a job with a script that joins, and of one that does not join."""
    fails = "script-failure" in kinds and rng.random() < 0.4
    slow = "slow-join" in kinds and rng.random() < 0.3
    kind = rng.random()
    joins = is_hostile or kind < 0.8
    elastic = True if joins and kind < 0.6 else None if kind < 0.9 else False
    epochs = rng.randint(1, 5)
    return JobSpec(
        number=number,
        epochs=epochs,
        dataset_size=rng.choice((500, 1000, 2000)),
        base_batch=rng.choice((16, 32, 64)),
        samples_per_second=rng.choice((40.0, 80.0, 150.0)),
        max_local_batch=rng.choice((None, 64, 128)),
        joins=joins,
        elastic=True if is_hostile else elastic,
        min_gpus=rng.randint(1, 2) if joins and rng.random() < 0.3 else 1,
        requested_gpus=1 if elastic is None and not joins else rng.randint(1, sizes[not joins]),
        retries=rng.randint(0, 3),
        fixed_seconds=rng.uniform(5.0, 60.0),
        is_slow=slow,
        failing_starts=rng.randint(1, 3) if fails and rng.random() < 0.5 else 0,
        failing_epoch=rng.randint(1, epochs) if fails else 0,
        is_hostile=is_hostile,
    )


@dataclass(slots=True)
class FaultInjector:
    """Injects the faults of a scenario until `calm_at`."""

    context: FaultContext
    scenario: Scenario
    disk: SimulatedDisk
    network: SimulatedNetwork
    launcher: SimulatedLauncher
    users: SimulatedUsers
    kill_one: Callable[[], None]

    def begin(self) -> None:
        for at, spec in self.scenario.jobs:
            self.context.after(at, lambda spec=spec: self.users.submit(spec))  # type: ignore[misc]
        faults: dict[str, tuple[Callable[[], None], float]] = {
            "loss": (self._lose_requests, 60.0),
            "duplicate": (self._repeat_requests, 60.0),
            "delay": (self._delay_requests, 90.0),
            "slow-disk": (self._slow_disk, 90.0),
            "full-disk": (self._full_disk, 120.0),
            "node-loss": (self._lose_node, 150.0),
            "node-cut": (self._cut_node, 120.0),
            "worker-death": (self.kill_one, 60.0),
            "stranger": (self._occupy_gpu, 120.0),
            "cancel": (self.users.cancel_one, 100.0),
            "priority": (self.users.change_priority, 80.0),
            "drain": (self._drain, 120.0),
        }
        for kind, (act, every) in faults.items():
            if kind in self.scenario.kinds:
                self._schedule(act, every)
        self.context.after(self.scenario.calm_at, self._undrain_all)

    def _undrain_all(self) -> None:
        """The operator undrains every GPU again and again, because failing scripts make the
        controller cordon others."""
        self.context.after(200.0, self._undrain_all)
        for node in self.launcher.nodes.values():
            for place in (node.name, *(slot.id for slot in node.slots())):
                self.users.undrain(place)

    def _schedule(self, act: Callable[[], None], every: float) -> None:
        seconds = self.context.rng.expovariate(1.0 / every)
        if self.context.now + seconds < self.scenario.calm_at:
            self.context.after(seconds, lambda: self._inject(act, every))

    def _inject(self, act: Callable[[], None], every: float) -> None:
        self._schedule(act, every)  # before it, because the controller may crash in `act`
        act()

    def _undo_later(self, low: float, high: float, undo: Callable[[], None]) -> None:
        self.context.after(self.context.rng.uniform(low, high), undo)

    # network

    def _lose_requests(self) -> None:
        self.network.loss = self.context.rng.choice((0.1, 0.3, 0.9))
        self._undo_later(5.0, 60.0, lambda: setattr(self.network, "loss", 0.0))

    def _repeat_requests(self) -> None:
        self.network.repeats = self.context.rng.choice((0.1, 0.5))
        self._undo_later(5.0, 60.0, lambda: setattr(self.network, "repeats", 0.0))

    def _delay_requests(self) -> None:
        self.context.fault("delay", "requests take up to 8 s")
        self.network.delay = (0.01, 8.0)
        self._undo_later(5.0, 40.0, lambda: setattr(self.network, "delay", (0.001, 0.02)))

    # disk

    def _slow_disk(self) -> None:
        self.context.fault("slow-disk", "commits take up to 6 s")
        self.disk.latency = (0.1, 6.0)
        self._undo_later(5.0, 60.0, lambda: setattr(self.disk, "latency", (0.002, 0.02)))

    def _full_disk(self) -> None:
        self.context.fault("full-disk", "commits fail")
        self.disk.is_full = True
        self._undo_later(1.0, 40.0, lambda: setattr(self.disk, "is_full", False))

    # nodes

    def _any_node(self) -> SimulatedNode | None:
        up = [n for n in self.launcher.nodes.values() if n.is_up and not n.is_cut]
        return self.context.rng.choice(up) if up else None

    def _lose_node(self) -> None:
        node = self._any_node()
        if node is None:
            return
        self.context.fault("node-loss", node.name)
        if self.context.rng.random() < 0.3:
            self.launcher.ending(node)
        self.launcher.cut(node)

        def lose() -> None:
            if node.is_cut:
                self.launcher.lose(node, "it does not answer")
                self._undo_later(1.0, 60.0, lambda: self.launcher.restore(node))

        self._undo_later(1.0, 40.0, lose)

    def _cut_node(self) -> None:
        node = self._any_node()
        if node is None:
            return
        self.context.fault("node-cut", node.name)
        self.launcher.cut(node)
        self._undo_later(1.0, 50.0, lambda: self.launcher.reconnect(node) if node.is_cut else None)

    def _occupy_gpu(self) -> None:
        node = self._any_node()
        if node is None:
            return
        index = self.context.rng.randrange(node.gpus)
        self.context.fault("stranger", f"{node.name}/{index}")
        self.launcher.used(node, index, "pid 77 of eve")
        self._undo_later(5.0, 60.0, lambda: self.launcher.used(node, index, ""))

    def _drain(self) -> None:
        node = self._any_node()
        if node is None:
            return
        place = node.name
        if self.context.rng.random() < 0.5:
            place = f"{node.name}/{self.context.rng.randrange(node.gpus)}"
        self.users.drain(place)
        self._undo_later(10.0, 60.0, lambda: self.users.undrain(place))
