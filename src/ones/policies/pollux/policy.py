"""Pollux: every minute, new GPUs for all jobs, with the largest power mean of speed-ups.

`observe` runs the genetic search when a round is due; `decide` turns its result into GPUs and
batches. Between rounds a job changes only its batch, at the end of an epoch. Lengths are not
predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core import reasons
from ones.core.cluster import NodeId
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.view import JobView, View
from ones.models.goodput_rounds import DECIDES_ON, GoodputRounds
from ones.models.node_counts import capacity_without
from ones.policies.pollux.problem import fitness
from ones.policies.pollux.problem_builder import build_problem
from ones.policies.pollux.search import GeneticSearch
from ones.policies.pollux.settings import PolluxSettings


class Pollux:
    decides_on: ClassVar[frozenset[type[Event]]] = DECIDES_ON
    native_mechanism: ClassVar[str] = "checkpoint"
    Settings: ClassVar[type[PolluxSettings]] = PolluxSettings

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._rounds = GoodputRounds(chosen)
        self._search = GeneticSearch(chosen.members, chosen.generations, seed)
        # result of the current round: GPUs on each node, and the power mean
        self._found: dict[JobId, dict[NodeId, int]] = {}
        self._fitness = 0.0

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._rounds.observe(event, view)
        self._found = {}
        if self._rounds.due:
            self._evolve(view)

    def _evolve(self, view: View) -> None:
        jobs = _in_order(view)
        capacity = capacity_without(view, jobs)
        if not jobs or not sum(capacity.values()):
            return
        problem = build_problem(view, jobs, capacity, self._rounds, self._settings)
        nodes = list(capacity)
        best, cost = self._search.round(problem, [job.id for job in jobs], nodes)
        self._fitness = fitness(cost, len(jobs), self._settings.power)
        for job, row in zip(jobs, best, strict=True):
            self._found[job.id] = {nodes[i]: int(row[i]) for i in np.flatnonzero(row).tolist()}

    def decide(self, view: View) -> Decision:
        if not self._rounds.due:
            return self._rounds.decide_between_rounds(view)
        why = reasons.best_goodput(len(view.jobs), view.cluster.n_gpus)
        return self._rounds.deploy(view, self._found, why)

    def save(self) -> dict[str, Any]:
        return {
            "rounds": self._rounds.save(),
            "search": self._search.save(),
            "found": self._found,
            "fitness": self._fitness,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._rounds.load(saved["rounds"])
        self._search.load(saved["search"])
        self._found = {
            JobId(job): {NodeId(node): int(n) for node, n in counts.items()}
            for job, counts in saved["found"].items()
        }
        self._fitness = float(saved["fitness"])


def _in_order(view: View) -> list[JobView]:
    """Movable jobs; the first keep their GPUs if there are too few."""
    movable = (job for job in view.jobs.values() if not job.pinned)
    return sorted(
        movable, key=lambda job: (-job.priority, job.gpu_seconds_at(view.now), job.number)
    )
