"""Score of a placement: the score of the search, at the speeds on real nodes.

The search assumes that every job is packed and uses its network cards alone. This score uses the
nodes of each job and the sharing of network cards, less the cost of moves.

Only jobs that restart for every change are repacked. For jobs that rescale while they train, moves
cost more than they gained (docs/calibration.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ones.core.cluster import Gpu, NodeId
from ones.core.job import JobId, SwitchCost
from ones.core.view import View
from ones.models.packing import GpuPool
from ones.policies.ones.place.placing import Places, keep_places, nodes_of, repack
from ones.policies.ones.predict.speeds import Speeds
from ones.policies.ones.score.problem_builder import PosedProblem

#: least benefit of a move, as a multiple of its cost
MOVE_WORTH = 2.0
#: a job restarts for changes if a restart costs at most this multiple of a rescale
RESTART_RATIO = 1.5


def place_jobs(
    view: View, posed: PosedProblem, sizes: Mapping[JobId, int], score: PlacementScore
) -> Places:
    """Returns the GPUs of jobs with these sizes, from the better way to place them."""
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
    """Compares placements of the jobs of one problem."""

    def __init__(self, view: View, posed: PosedProblem, speeds: Speeds) -> None:
        self._posed, self._speeds = posed, speeds
        self._per_node = max(1, view.cluster.width)
        weights = posed.problem.mean_work
        # value of each job at each size, if packed; lists are faster for single reads
        self._packed: list[list[float]] = (weights[:, None] * -posed.problem.cost).tolist()
        self._slowdowns: dict[tuple[int, int, int, int], float] = {}  # cache

    def is_spread(self, places: Places) -> bool:
        """Returns whether a job uses more nodes than it needs or shares a network card."""
        cards = _cards(places)
        return any(n > 1 for n in cards.values()) or any(map(self._is_spread, places.values()))

    def _is_spread(self, gpus: tuple[Gpu, ...]) -> bool:
        return nodes_of(gpus) > -(-len(gpus) // self._per_node)

    def value(self, places: Places) -> float:
        """Returns the value of all jobs, including waiting ones."""
        cards = _cards(places)
        jobs = enumerate(self._posed.jobs)
        return sum(self._value(i, places.get(job.id, ()), cards) for i, job in jobs)

    def smaller_sizes(self, places: Places) -> dict[int, int]:
        """Returns better sizes of jobs that span too many nodes, by index of the job."""
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
        """Returns the pause of a move; 0 if the size changes, which pauses the job anyway."""
        job = self._posed.jobs[i]
        held = self._posed.held_gpus[job.id]
        is_move = len(held) == len(gpus) and set(held) != set(gpus)
        return job.switch_cost.rescale_seconds if is_move else 0.0


def _fewest_nodes(gpus: tuple[Gpu, ...], size: int) -> tuple[Gpu, ...]:
    """Returns `size` of these GPUs, from the nodes with the most of them."""
    here = Counter(gpu.node for gpu in gpus)
    return tuple(sorted(gpus, key=lambda gpu: (-here[gpu.node], gpu))[:size])


def _restarts(cost: SwitchCost) -> bool:
    """Returns whether a rescale costs about as much as a restart."""
    return cost.restart_seconds <= RESTART_RATIO * cost.rescale_seconds


def _cards(places: Places) -> Counter[NodeId]:
    """Returns the number of jobs that use the network card of each node."""
    return Counter(
        node for gpus in places.values() if nodes_of(gpus) > 1 for node in {g.node for g in gpus}
    )
