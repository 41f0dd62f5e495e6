"""Training of the weights: collect kinds, imitate the teacher, then learn from episodes.

Everything is drawn from one seed and counted in iterations, so the same plan gives the same
weights. Traces of seeds 1-40 are for training, 50-55 select among the weights of the training,
and 60-69 validate the selected ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ones.lab.drl.episodes import GAP, DrlScenario, Episode, Student, fifo_jct, run_episode
from ones.lab.drl.learners import LEARNERS
from ones.lab.drl.trainables import TRAINABLE
from ones.policies.drl.network import Adam, Floats, initial_weights
from ones.policies.drl.trained_weights import TrainedWeights

LEARNED_FROM = range(1, 41)
CHOSEN_BY = range(50, 56)
VALIDATED_ON = range(60, 70)
#: clusters and mechanisms of the episodes; the first is the main use of the policy
CLUSTERS = (64, 64, 32, 16)
MECHANISMS = ("checkpoint", "checkpoint", "checkpoint", "elastic")
JITTER = 0.3  # of the mean gap between arrivals
BATCH_SIZE = 64  # decisions of the teacher that are imitated in one step
IDLE_WEIGHT = 0.3  # of a decision to do nothing
_GATHER, _WARM, _SCENARIO, _ROLL, _LESSON = 1, 2, 3, 4, 5  # purposes of random numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Everything that the weights depend on. The defaults make the shipped weights."""

    policy: str = "drl"
    learner: str = "cem"
    iterations: int = 60
    seed: int = 1
    rollouts: int = 8
    rate: float = 1e-3
    late_rate: float = 0.3  # times the rate: in the second half, and in the last lessons
    gathered: int = 20  # traces from which kinds are learned first
    taught: int = 20  # traces on which the teacher is imitated
    lessons: int = 20  # passes over them
    teach_rate: float = 5e-3
    evaluate_every: int = 10
    jobs: int = 50
    workload: str = "paper"


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """Progress of the training. Scores are mean completion times relative to fifo's."""

    stage: str
    done: int
    of: int
    score: float | None = None
    best: float | None = None


@dataclass(slots=True)
class _Best:
    weights: Floats
    score: float = float("inf")
    at: int = 0
    curve: list[list[float]] = field(default_factory=list)

    def consider(self, weights: Floats, score: float, at: int) -> None:
        self.curve.append([at, round(score, 4)])
        if score < self.score:
            self.weights, self.score, self.at = weights.copy(), score, at


def train(
    plan: TrainingPlan,
    *,
    report: Callable[[TrainingStatus], None] = lambda report: None,
    keep: Callable[[TrainedWeights], object] = lambda learned: None,
    start: TrainedWeights | None = None,
) -> TrainedWeights:
    """The best weights found. `keep` gets each that is better than all before; Ctrl-C ends the
    training early with the best so far. `start` replaces collecting kinds and the teacher."""
    learn, trainable = LEARNERS[plan.learner], TRAINABLE[plan.policy]
    if start is None:
        rng = np.random.default_rng([plan.seed, _WARM])
        kinds = _gather(plan, report) if trainable.has_kinds else {}
        learned = TrainedWeights(trainable.initial(rng), kinds)
        weights = _imitate(plan, learned, report)
    else:
        learned, weights = start, start.weights.copy()
    kinds = learned.kinds
    best = _Best(weights)
    metadata: dict[str, Any] = {
        "learner": plan.learner,
        "iterations": plan.iterations,
        "seed": plan.seed,
        "trace_seeds": {
            "learned from": _span(LEARNED_FROM),
            "chosen by": _span(CHOSEN_BY),
            "validated on": _span(VALIDATED_ON),
        },
    }

    def chosen() -> TrainedWeights:
        training = {
            **metadata,
            "chosen_at": best.at,
            "score": round(best.score, 4),
            "curve": best.curve,
        }
        return TrainedWeights(best.weights, kinds, training)

    try:
        adam = Adam(len(weights))
        for i in range(plan.iterations + 1):
            if i % plan.evaluate_every == 0 or i == plan.iterations:
                before = best.score
                best.consider(
                    weights,
                    score(
                        TrainedWeights(weights, kinds),
                        CHOSEN_BY,
                        plan.jobs,
                        plan.workload,
                        policy=plan.policy,
                    ),
                    i,
                )
                report(
                    TrainingStatus("learning", i, plan.iterations, best.curve[-1][1], best.score)
                )
                if best.score < before:
                    keep(chosen())
            if i < plan.iterations:
                episodes = list(_episodes(plan, TrainedWeights(weights, kinds), i))
                slope = learn(weights, episodes, trainable.slope)
                late = i >= plan.iterations / 2
                weights = adam.step(weights, slope, plan.rate * (plan.late_rate if late else 1.0))
                report(
                    TrainingStatus(
                        "learning", i + 1, plan.iterations, best.curve[-1][1], best.score
                    )
                )
    except KeyboardInterrupt:
        metadata["interrupted"] = True
    return chosen()


def validate(
    learned: TrainedWeights, jobs: int = 50, workload: str = "paper", *, policy: str = "drl"
) -> dict[str, float]:
    """Mean completion seconds on traces that selected nothing, and fifo's."""
    means: dict[str, float] = {}
    student = TRAINABLE[policy].student
    for mechanism in ("checkpoint", "elastic"):
        scenarios = [
            DrlScenario(seed, mechanism=mechanism, jobs=jobs, workload=workload)
            for seed in VALIDATED_ON
        ]
        jcts = [
            run_episode(scenario, student(learned, sampled=False)).mean_jct
            for scenario in scenarios
        ]
        means[mechanism] = round(float(np.mean(jcts)), 1)
        means["fifo"] = round(float(np.mean([fifo_jct(scenario) for scenario in scenarios])), 1)
    sampled = [
        run_episode(DrlScenario(seed, jobs=jobs, workload=workload), student(learned, seed=seed))
        for seed in VALIDATED_ON
    ]
    means["checkpoint, sampled"] = round(float(np.mean([e.mean_jct for e in sampled])), 1)
    return means


def score(
    learned: TrainedWeights,
    seeds: range,
    jobs: int = 50,
    workload: str = "paper",
    *,
    policy: str = "drl",
) -> float:
    """Mean completion time relative to fifo's: every trace at 64 GPUs, two in other settings."""
    student = TRAINABLE[policy].student
    scenario = partial(DrlScenario, jobs=jobs, workload=workload)
    scenarios = [scenario(seed) for seed in seeds]
    scenarios += [scenario(seed, mechanism="elastic") for seed in seeds[:2]]
    scenarios += [scenario(seed, gpus=gpus) for gpus in (32, 16) for seed in seeds[:2]]
    parts = [
        run_episode(scenario, student(learned, sampled=False)).mean_jct / fifo_jct(scenario)
        for scenario in scenarios
    ]
    return float(np.mean(parts))


def _gather(plan: TrainingPlan, report: Callable[[TrainingStatus], None]) -> Mapping[str, Any]:
    """Statistics of the kinds, collected by a policy with random decisions."""
    learned = TrainedWeights(initial_weights(np.random.default_rng([plan.seed, _GATHER])) * 0.0, {})
    for i, seed in enumerate(LEARNED_FROM[: plan.gathered]):
        report(TrainingStatus("gathering", i, plan.gathered))
        student = Student(learned, seed=plan.seed * 1000 + seed)
        run_episode(DrlScenario(seed, jobs=plan.jobs, workload=plan.workload), student)
        learned = TrainedWeights(learned.weights, student.kinds())
    return learned.kinds


def _imitate(
    plan: TrainingPlan, learned: TrainedWeights, report: Callable[[TrainingStatus], None]
) -> Floats:
    """Makes the teacher's decisions likely. Most of them are to do nothing, so these count less."""
    trainable = TRAINABLE[plan.policy]
    looks: list[Any] = []
    chosen: list[int] = []
    for i in range(plan.taught):
        report(TrainingStatus("watching the teacher", i, plan.taught))
        scenario = _scenario(plan, np.random.default_rng([plan.seed, _WARM, i]))
        episode = run_episode(scenario, trainable.student(learned, taught=scenario.gpus))
        looks += episode.looks
        chosen += episode.chosen
    real = np.array([n for n, look in enumerate(looks) if int(look.valid.sum()) > 1])
    rng = np.random.default_rng([plan.seed, _LESSON])
    weights, adam = learned.weights, Adam(len(learned.weights))
    for lesson in range(plan.lessons):
        report(TrainingStatus("imitating the teacher", lesson, plan.lessons))
        late = 3 * lesson >= 2 * plan.lessons
        rate = plan.teach_rate * (plan.late_rate if late else 1.0)
        rng.shuffle(real)
        for first in range(0, len(real), BATCH_SIZE):
            some = real[first : first + BATCH_SIZE].tolist()
            idle = np.array([chosen[n] == looks[n].nothing for n in some])
            slope = trainable.slope(
                weights,
                [looks[n] for n in some],
                [chosen[n] for n in some],
                np.where(idle, IDLE_WEIGHT, 1.0),
            )
            weights = adam.step(weights, slope, rate)
    return weights


def _episodes(plan: TrainingPlan, learned: TrainedWeights, iteration: int) -> Iterator[Episode]:
    """Episodes of one scenario with different random numbers."""
    scenario = _scenario(plan, np.random.default_rng([plan.seed, _SCENARIO, iteration]))
    for roll in range(plan.rollouts):
        luck = np.random.default_rng([plan.seed, _ROLL, iteration, roll]).integers(2**31)
        yield run_episode(scenario, TRAINABLE[plan.policy].student(learned, seed=int(luck)))


def _scenario(plan: TrainingPlan, rng: np.random.Generator) -> DrlScenario:
    return DrlScenario(
        seed=int(rng.choice(LEARNED_FROM)),
        gpus=int(rng.choice(CLUSTERS)),
        gap=float(np.round(GAP * rng.uniform(1 - JITTER, 1 + JITTER), 3)),
        mechanism=str(rng.choice(MECHANISMS)),
        jobs=plan.jobs,
        workload=plan.workload,
    )


def _span(seeds: range) -> str:
    return f"{seeds[0]}-{seeds[-1]}"
