"""From a seed to a small cluster, its jobs and its faults."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import Random

from ones.control.live.timeouts import Timeouts
from ones.lab.faults.disk import SimulatedDisk
from ones.lab.faults.launcher import SimulatedLauncher, SimulatedNode
from ones.lab.faults.network import SimulatedNetwork
from ones.lab.faults.spec import JobSpec
from ones.lab.faults.users import Users
from ones.lab.faults.world import World

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


def scenario(dice: Random, kinds: Collection[str], policy: str | None) -> Scenario:
    nodes = {f"n{i}": dice.randint(2, 4) for i in range(dice.randint(1, 3))}
    chosen = frozenset(k for k in kinds if dice.random() < (0.8 if k == "crash" else 0.4))
    # a script that does not join is one process, and no policy keeps such a job on one node
    largest, fixed = max(nodes.values()), max(nodes.values()) if len(nodes) == 1 else 1
    jobs = []
    hostile = 0
    for number in range(dice.randint(3, 7)):
        is_hostile = "hostile" in chosen and dice.random() < 0.4
        hostile += is_hostile
        jobs.append(
            (dice.uniform(0.0, 120.0), _spec(dice, number, chosen, (largest, fixed), is_hostile))
        )
    if "hostile" in chosen and not hostile:
        at, spec = jobs[0]
        jobs[0] = (at, _spec(dice, spec.number, chosen, (largest, fixed), is_hostile=True))
    return Scenario(
        nodes=nodes,
        jobs=tuple(jobs),
        policy=policy or dice.choice(POLICIES),
        mechanism="restart" if dice.random() < 0.15 else "elastic",
        kinds=chosen,
        calm_at=dice.uniform(120.0, 400.0),
        crashes=dice.randint(1, 5) if "crash" in chosen else 0,
        tail=dice.choice((5, 30, 100, 2000)),
    )


def _spec(
    dice: Random, number: int, kinds: Collection[str], sizes: tuple[int, int], is_hostile: bool
) -> JobSpec:
    """`sizes`: the most GPUs of a job whose script joins, and of one whose script does not."""
    fails = "script-failure" in kinds and dice.random() < 0.4
    slow = "slow-join" in kinds and dice.random() < 0.3
    kind = dice.random()
    joins = is_hostile or kind < 0.8
    elastic = True if joins and kind < 0.6 else None if kind < 0.9 else False
    epochs = dice.randint(1, 5)
    return JobSpec(
        number=number,
        epochs=epochs,
        dataset_size=dice.choice((500, 1000, 2000)),
        base_batch=dice.choice((16, 32, 64)),
        samples_per_second=dice.choice((40.0, 80.0, 150.0)),
        max_local_batch=dice.choice((None, 64, 128)),
        joins=joins,
        elastic=True if is_hostile else elastic,
        min_gpus=dice.randint(1, 2) if joins and dice.random() < 0.3 else 1,
        requested_gpus=1 if elastic is None and not joins else dice.randint(1, sizes[not joins]),
        retries=dice.randint(0, 3),
        fixed_seconds=dice.uniform(5.0, 60.0),
        is_slow=slow,
        failing_starts=dice.randint(1, 3) if fails and dice.random() < 0.5 else 0,
        failing_epoch=dice.randint(1, epochs) if fails else 0,
        is_hostile=is_hostile,
    )


@dataclass(slots=True)
class Trouble:
    """Lets the faults of a scenario happen, until it is calm."""

    world: World
    scenario: Scenario
    disk: SimulatedDisk
    network: SimulatedNetwork
    launcher: SimulatedLauncher
    users: Users
    kill_one: Callable[[], None]

    def begin(self) -> None:
        for at, spec in self.scenario.jobs:
            self.world.after(at, lambda spec=spec: self.users.submit(spec))  # type: ignore[misc]
        acts: dict[str, tuple[Callable[[], None], float]] = {
            "loss": (self._lossy, 60.0),
            "duplicate": (self._repeating, 60.0),
            "delay": (self._late, 90.0),
            "slow-disk": (self._slow_disk, 90.0),
            "full-disk": (self._full_disk, 120.0),
            "node-loss": (self._node_lost, 150.0),
            "node-cut": (self._node_cut, 120.0),
            "worker-death": (self.kill_one, 60.0),
            "stranger": (self._stranger, 120.0),
            "cancel": (self.users.cancel_one, 100.0),
            "priority": (self.users.change_priority, 80.0),
            "drain": (self._drain, 120.0),
        }
        for kind, (act, every) in acts.items():
            if kind in self.scenario.kinds:
                self._again(act, every)
        self.world.after(self.scenario.calm_at, self._all_is_well)

    def _all_is_well(self) -> None:
        """The operator puts every GPU back, also those that the controller suspects; and again,
        for scripts that fail make it suspect others."""
        self.world.after(200.0, self._all_is_well)
        for node in self.launcher.nodes.values():
            for place in (node.name, *(slot.id for slot in node.slots())):
                self.users.undrain(place)

    def _again(self, act: Callable[[], None], every: float) -> None:
        seconds = self.world.dice.expovariate(1.0 / every)
        if self.world.now + seconds < self.scenario.calm_at:
            self.world.after(seconds, lambda: self._happen(act, every))

    def _happen(self, act: Callable[[], None], every: float) -> None:
        self._again(act, every)  # first: the controller may crash in it
        act()

    def _for_a_while(self, low: float, high: float, undo: Callable[[], None]) -> None:
        self.world.after(self.world.dice.uniform(low, high), undo)

    # network

    def _lossy(self) -> None:
        self.network.loss = self.world.dice.choice((0.1, 0.3, 0.9))
        self._for_a_while(5.0, 60.0, lambda: setattr(self.network, "loss", 0.0))

    def _repeating(self) -> None:
        self.network.repeats = self.world.dice.choice((0.1, 0.5))
        self._for_a_while(5.0, 60.0, lambda: setattr(self.network, "repeats", 0.0))

    def _late(self) -> None:
        self.world.fault("delay", "requests take up to 8 s")
        self.network.delay = (0.01, 8.0)
        self._for_a_while(5.0, 40.0, lambda: setattr(self.network, "delay", (0.001, 0.02)))

    # disk

    def _slow_disk(self) -> None:
        self.world.fault("slow-disk", "commits take up to 6 s")
        self.disk.latency = (0.1, 6.0)
        self._for_a_while(5.0, 60.0, lambda: setattr(self.disk, "latency", (0.002, 0.02)))

    def _full_disk(self) -> None:
        self.world.fault("full-disk", "commits fail")
        self.disk.is_full = True
        self._for_a_while(1.0, 40.0, lambda: setattr(self.disk, "is_full", False))

    # nodes

    def _any_node(self) -> SimulatedNode | None:
        up = [n for n in self.launcher.nodes.values() if n.is_up and not n.is_cut]
        return self.world.dice.choice(up) if up else None

    def _node_lost(self) -> None:
        node = self._any_node()
        if node is None:
            return
        self.world.fault("node-loss", node.name)
        if self.world.dice.random() < 0.3:
            self.launcher.ending(node)
        self.launcher.cut(node)

        def lose() -> None:
            if node.is_cut:
                self.launcher.lose(node, "it does not answer")
                self._for_a_while(1.0, 60.0, lambda: self.launcher.restore(node))

        self._for_a_while(1.0, 40.0, lose)

    def _node_cut(self) -> None:
        node = self._any_node()
        if node is None:
            return
        self.world.fault("node-cut", node.name)
        self.launcher.cut(node)
        self._for_a_while(1.0, 50.0, lambda: self.launcher.mend(node) if node.is_cut else None)

    def _stranger(self) -> None:
        node = self._any_node()
        if node is None:
            return
        index = self.world.dice.randrange(node.gpus)
        self.world.fault("stranger", f"{node.name}/{index}")
        self.launcher.used(node, index, "pid 77 of eve")
        self._for_a_while(5.0, 60.0, lambda: self.launcher.used(node, index, ""))

    def _drain(self) -> None:
        node = self._any_node()
        if node is None:
            return
        place = node.name
        if self.world.dice.random() < 0.5:
            place = f"{node.name}/{self.world.dice.randrange(node.gpus)}"
        self.users.drain(place)
        self._for_a_while(10.0, 60.0, lambda: self.users.undrain(place))
