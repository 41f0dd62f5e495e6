"""What places are worth: the score again, now with who sits where.

The search counts GPUs as if every job were packed on the fewest nodes and had their network to
itself. Of two ways to place the same numbers, the better one is that with the higher score at
the speeds that follow from real nodes and shared network cards, less what moves cost.

This is for jobs that restart for every change. Those that re-scale while they train must keep a
worker to do so, and change often: for them to move brought less than it cost (docs/calibration.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ones.core.cluster import Gpu, NodeId
from ones.core.job import JobId, SwitchCost
from ones.core.view import View
from ones.models.packing import GpuPool
from ones.policies.ones.placing import Places, keep_places, nodes_of, repack
from ones.policies.ones.problem_builder import PosedProblem
from ones.policies.ones.speeds import Speeds

#: a move must save so many times what it costs
MOVE_WORTH = 2.0
#: a restart that costs no more than so many re-scales is taken for one
RESTART_RATIO = 1.5


def place_jobs(
    view: View, posed: PosedProblem, sizes: Mapping[JobId, int], score: PlacementScore
) -> Places:
    """Where jobs with these sizes go."""
    if not all(_restarts(job.switch_cost) for job in posed.jobs):
        return GpuPool(view).arrange(posed.held_gpus, sizes)
    close = keep_places(view, posed.held_gpus, sizes)
    if not score.is_spread(close):
        return close
    packed = repack(view, posed.held_gpus, sizes)
    if packed is None or score.value(packed) <= score.value(close):
        return close
    return packed


class PlacementScore:
    """Of the ways to place the jobs of one question."""

    def __init__(self, view: View, posed: PosedProblem, speeds: Speeds) -> None:
        self._posed, self._speeds = posed, speeds
        self._per_node = max(1, view.cluster.width)
        weights = posed.problem.work.mean(axis=0)
        # of each job with each number of GPUs, packed; as lists, since single numbers are read
        self._packed: list[list[float]] = (weights[:, None] * -posed.problem.cost).tolist()
        self._slowdowns: dict[tuple[int, int, int, int], float] = {}  # asked before

    def is_spread(self, places: Places) -> bool:
        """Is anybody on more nodes than it needs, or on a network card with others?"""
        cards = _cards(places)
        return any(n > 1 for n in cards.values()) or any(map(self._is_spread, places.values()))

    def _is_spread(self, gpus: tuple[Gpu, ...]) -> bool:
        return nodes_of(gpus) > -(-len(gpus) // self._per_node)

    def value(self, places: Places) -> float:
        """Of all jobs, also of those that get nothing."""
        cards = _cards(places)
        jobs = enumerate(self._posed.jobs)
        return sum(self._value(i, places.get(job.id, ()), cards) for i, job in jobs)

    def smaller_sizes(self, places: Places) -> dict[int, int]:
        """Who would do better with fewer of the GPUs that it was given, on fewer nodes: how
        many of them, by its place in the question."""
        cards = _cards(places)
        smaller: dict[int, int] = {}
        for i, job in enumerate(self._posed.jobs):
            gpus = places.get(job.id, ())
            if not gpus or not self._is_spread(gpus):
                continue
            least = int(self._posed.problem.least[i])
            held = self._posed.held_gpus[job.id]
            best = self._value(i, gpus, cards)
            for size in self._posed.choices[i].sizes.tolist():
                if not least <= size < len(gpus):
                    continue
                fewer = held if size == len(held) else _fewest_nodes(gpus, size)
                value = self._value(i, fewer, cards)
                if value > best:
                    best, smaller[i] = value, size
        return smaller

    def _value(self, i: int, gpus: tuple[Gpu, ...], cards: Mapping[NodeId, int]) -> float:
        size, nodes = len(gpus), nodes_of(gpus)
        value = self._packed[i][size]
        if nodes > 1:
            sharing = max(1, *(cards[gpu.node] for gpu in gpus))
            value *= self._slowdown(i, size, nodes, sharing)
        lost = self._move_seconds(i, gpus)
        if lost:
            choices = self._posed.choices[i]
            rate = choices.present or float(choices.rates[0])
            horizon = min(self._posed.horizon, float(self._posed.remaining[i]) / rate)
            value *= horizon / (horizon + MOVE_WORTH * lost)
        return value

    def _slowdown(self, i: int, size: int, nodes: int, sharing: int) -> float:
        key = (i, size, nodes, sharing)
        if key not in self._slowdowns:
            job, choices = self._posed.jobs[i], self._posed.choices[i]
            batch = int(choices.batches[choices.at(size)])
            self._slowdowns[key] = self._speeds.slowdown(
                job, size, batch, nodes, self._per_node, sharing
            )
        return self._slowdowns[key]

    def _move_seconds(self, i: int, gpus: tuple[Gpu, ...]) -> float:
        """Seconds that a move costs; a change of the size costs them anyway."""
        job = self._posed.jobs[i]
        held = self._posed.held_gpus[job.id]
        is_move = len(held) == len(gpus) and set(held) != set(gpus)
        return job.switch_cost.rescale_seconds if is_move else 0.0


def _fewest_nodes(gpus: tuple[Gpu, ...], size: int) -> tuple[Gpu, ...]:
    """So many of them, from the nodes with the most."""
    here = Counter(gpu.node for gpu in gpus)
    return tuple(sorted(gpus, key=lambda gpu: (-here[gpu.node], gpu))[:size])


def _restarts(cost: SwitchCost) -> bool:
    """Does it cost as much to change as to stop and start?"""
    return cost.restart_seconds <= RESTART_RATIO * cost.rescale_seconds


def _cards(places: Places) -> Counter[NodeId]:
    """On each node, how many jobs use the network."""
    return Counter(
        node for gpus in places.values() if nodes_of(gpus) > 1 for node in {g.node for g in gpus}
    )
