"""Episodes: the policy in the simulator, with every decision recorded.

The reward of a decision is the negative time to the next one, times the unfinished jobs. The sum
of an episode is then the negative sum of completion times (Decima's reward).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ones.core.cluster import Cluster
from ones.core.events import Event
from ones.core.plan import PlanAdopted
from ones.core.policy import Policy
from ones.core.view import View
from ones.lab.runs import RunSpec, trace_of
from ones.policies.drl.kind_table import KindTable
from ones.policies.drl.network import Floats, Observation
from ones.policies.drl.online_learner import OnlineLearner
from ones.policies.drl.policy import Drl
from ones.policies.drl.trained_weights import TrainedWeights
from ones.policies.drl.window import JobWindow
from ones.policies.fifo import Fifo
from ones.sim.run import Simulator
from ones.workload import stretched

JOBS = 50
GAP = 12.0


@dataclass(frozen=True, slots=True)
class DrlScenario:
    """One workload on one cluster."""

    seed: int
    gpus: int = 64
    gap: float = GAP
    mechanism: str = "checkpoint"
    jobs: int = JOBS
    workload: str = "paper"


@dataclass(frozen=True, slots=True)
class Episode:
    """The decisions of a run, and its result."""

    looks: list[Any]  # observations, as the policy has them
    chosen: list[int]
    times: Floats
    backlog: Floats  # unfinished jobs, integrated over time up to each decision
    total: float  # the sum of completion times
    mean_jct: float

    @property
    def reward_to_go(self) -> Floats:
        """Reward from each decision to the end of the episode."""
        return self.backlog - self.total


class Student(Drl):
    """The policy with given weights; records its decisions. `pick` replaces its choice."""

    def __init__(
        self,
        learned: TrainedWeights,
        *,
        seed: int = 0,
        sampled: bool = True,
        pick: Callable[[JobWindow], int] | None = None,
    ) -> None:
        super().__init__(seed=seed, sampled=sampled, online=False)
        self._learner = OnlineLearner(learned.weights, learns=False)
        self._kind_table = KindTable(learned.kinds)
        self._instead = pick
        self.looks: list[Observation] = []
        self.chosen: list[int] = []
        self.times: list[float] = []
        self.counts: list[tuple[float, int]] = []  # (time, unfinished from then on)

    def kinds(self) -> dict[str, Any]:
        """The table of kinds learned so far."""
        return self._kind_table.save()

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        super().observe(event, view)
        if type(event) in self.decides_on:
            self.counts.append((view.now, len(view.jobs)))
            window, chosen = self._choice(view)
            if window is not None:
                self.looks.append(window.observation)
                self.chosen.append(chosen)
                self.times.append(view.now)

    def _pick(self, window: JobWindow) -> int:
        return super()._pick(window) if self._instead is None else self._instead(window)


class Recording(Policy, Protocol):
    """A policy that records its choices while it plays an episode."""

    looks: list[Any]
    chosen: list[int]
    times: list[float]
    counts: list[tuple[float, int]]  # (time, unfinished jobs from then on)


def run_episode(scenario: DrlScenario, student: Recording) -> Episode:
    """Runs the scenario to its end. Deterministic."""
    result = _simulator(scenario, student).run()
    times = np.array([at for at, _ in student.counts])
    unfinished = np.array([n for _, n in student.counts], float)
    backlog = np.concatenate([[0.0], np.cumsum(np.diff(times) * unfinished[:-1])])
    jct = [outcome.completion_seconds for outcome in result.state.ended.values()]
    return Episode(
        student.looks,
        student.chosen,
        np.array(student.times),
        np.interp(student.times, times, backlog),
        float(backlog[-1]),
        float(np.mean(jct)),
    )


@lru_cache(maxsize=1024)
def fifo_jct(scenario: DrlScenario) -> float:
    """Mean completion time of `fifo` in this scenario: the baseline."""
    result = _simulator(scenario, Fifo()).run()
    return float(np.mean([job.completion_seconds for job in result.state.ended.values()]))


def _simulator(scenario: DrlScenario, policy: Policy) -> Simulator:
    trace = trace_of(
        RunSpec(
            policy="",
            workload=scenario.workload,
            jobs=scenario.jobs,
            seed=scenario.seed,
            gap=scenario.gap,
        )
    )
    if scenario.workload == "paper-artifact":  # it has its own gaps
        trace = stretched(trace, scenario.gap / GAP)
    cluster = Cluster.of(scenario.gpus)
    return Simulator(trace, cluster, policy, mechanism=scenario.mechanism, seed=scenario.seed)
