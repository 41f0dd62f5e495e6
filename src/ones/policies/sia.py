"""Sia: every minute, a configuration for each job by an integer program on normalised goodputs.

Configurations are powers of two inside a node and whole nodes beyond (Jayaram
Subramanya et al., SOSP'23). Goodputs and batches are Pollux's. `decide` solves the
program of the round; between rounds a job changes only its batch, at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from ones.core import reasons
from ones.core.events import Event
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.adaptive_batch import gpu_limit
from ones.models.goodput_rounds import DECIDES_ON, GoodputRounds, RoundSettings
from ones.models.node_counts import capacity_without, gpus_by_node
from ones.models.settings import check_settings, setting
from ones.models.whole_nodes import WholeNodePlacement

Floats = NDArray[np.float64]

#: more than any cost of a configuration: higher priorities come first
_PRIORITY_STEP = 100.0
_GAP = 1e-4  # of the solver
_MAX_COST = 3000.0  # of a configuration


class Choice(NamedTuple):
    """A variable of the program: this job in this configuration."""

    job: int
    gpus: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiaSettings(RoundSettings):
    power: float = setting(-0.5, "exponent p of normalised goodputs, below 0; lower is fairer")
    waiting_cost: float = setting(
        1.1, "cost of a waiting job, as a multiple of its smallest configuration's", least=0
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.power < 0:
            raise ValueError(f"power {self.power} is not below 0")


class Sia:
    decides_on: ClassVar[frozenset[type[Event]]] = DECIDES_ON
    native_mechanism: ClassVar[str] = "checkpoint"
    Settings: ClassVar[type[SiaSettings]] = SiaSettings

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._rounds = GoodputRounds(chosen)

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._rounds.observe(event, view)

    def decide(self, view: View) -> Decision:
        if not self._rounds.due:
            return self._rounds.decide_between_rounds(view)
        jobs = [job for job in view.jobs.values() if not job.pinned]
        capacity = capacity_without(view, jobs)
        gpus = sum(capacity.values())
        choices = [c for i, job in enumerate(jobs) for c in self._choices(view, i, job, gpus)]
        waiting = self._waiting_costs(jobs)
        sizes = solve(choices, gpus, waiting, _owner_limits(view, jobs))
        held = {job.id: gpus_by_node(view, job) for job in jobs}
        wanted = {job.id: sizes[i] for i, job in enumerate(jobs) if sizes[i]}
        node_sizes = {node: view.cluster.nodes[node].gpus for node in capacity}
        found = WholeNodePlacement(capacity, node_sizes, held, wanted).place_all()
        why = reasons.best_goodput(len(view.jobs), view.cluster.n_gpus)
        return self._rounds.deploy(view, {job.id: found.get(job.id, {}) for job in jobs}, why)

    def save(self) -> dict[str, Any]:
        return self._rounds.save()

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds.load(saved)

    def _choices(self, view: View, index: int, job: JobView, gpus: int) -> list[Choice]:
        """The possible configurations of a job, with their costs."""
        least = job.job.min_gpus
        most = min(gpu_limit(job, self._rounds.models.rules, gpus), gpus)
        sizes = [c for c in sizes_for(view.cluster.width, most) if c >= least]
        if not sizes and least <= gpus:
            sizes = [least]  # its minimum is not among them
        if job.description is None or not job.profile or not sizes:
            return [Choice(index, c, 1.0) for c in sizes[:1]]
        goodputs = self._goodputs(view, job, sizes)
        goodputs /= goodputs.min()
        if job.wanted is not None:
            young = view.now - job.job.submitted_at < self._rounds.restart_seconds(job)
            factor = 1.0 if young else self._rounds.restart_factor(job, view.now)
            moved = np.array([c != job.wanted.n_gpus for c in sizes])
            goodputs = np.where(moved, goodputs * factor, goodputs)
        costs = np.minimum(np.maximum(goodputs, 1e-9) ** self._settings.power, _MAX_COST)
        return [Choice(index, c, round(float(k), 2)) for c, k in zip(sizes, costs, strict=True)]

    def _goodputs(self, view: View, job: JobView, sizes: list[int]) -> Floats:
        best = self._rounds.models.of(job).table(max(sizes)).goodput
        return np.array([best[int(c > view.cluster.width), c] for c in sizes])

    def _waiting_costs(self, jobs: list[JobView]) -> Floats:
        levels = {p: i for i, p in enumerate(sorted({job.priority for job in jobs}))}
        base = self._settings.waiting_cost
        return np.array([base + _PRIORITY_STEP * levels[job.priority] for job in jobs])


def sizes_for(per_node: int, most: int) -> list[int]:
    """1, 2, 4, ... GPUs of a node, all of them, then whole nodes.

    >>> sizes_for(4, 16)
    [1, 2, 4, 8, 12, 16]
    """
    inside = [1 << i for i in range(per_node.bit_length()) if 1 << i < per_node]
    return [c for c in (*inside, *range(per_node, most + 1, per_node)) if c <= most]


def solve(
    choices: list[Choice],
    gpus: int,
    waiting_costs: Floats,
    owners: list[tuple[list[int], int]] | None = None,
) -> list[int]:
    """GPUs of each job with the least sum of costs; at most one choice for each.

    `owners`: jobs and the GPUs that they may have in sum. The solver is limited in nodes of its
    tree and not in seconds, so that equal problems have equal solutions.
    """
    jobs = len(waiting_costs)
    sizes = [0] * jobs
    if not choices or gpus <= 0:
        return sizes
    rows = np.array([c.job for c in choices])
    counts = np.array([c.gpus for c in choices])
    costs = np.array([c.cost for c in choices]) - waiting_costs[rows]
    once = csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))), (jobs, len(rows)))
    limits = [
        LinearConstraint(once, ub=np.ones(jobs)),
        LinearConstraint(counts[None, :], ub=gpus),
    ]
    for members, room in owners or []:
        theirs = np.where(np.isin(rows, members), counts, 0)
        limits.append(LinearConstraint(theirs[None, :], ub=max(0, room)))
    found = milp(
        costs,
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        constraints=limits,
        options={"mip_rel_gap": _GAP, "node_limit": 100_000},
    )
    if found.x is not None:
        for i in np.flatnonzero(found.x > 0.5).tolist():
            sizes[choices[i].job] = choices[i].gpus
    return sizes


def _owner_limits(view: View, jobs: list[JobView]) -> list[tuple[list[int], int]]:
    """The jobs of every owner with a limit, and the GPUs that they may have in sum."""
    members: dict[str, list[int]] = {}
    for i, job in enumerate(jobs):
        members.setdefault(job.job.owner, []).append(i)
    limits = []
    for owner, theirs in members.items():
        room = view.room(owner)
        if room is not None:
            held = (jobs[i].wanted for i in theirs)
            limits.append((theirs, room + sum(a.n_gpus for a in held if a is not None)))
    return limits
