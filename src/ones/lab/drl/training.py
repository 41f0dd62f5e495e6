"""From nothing to a file of weights: look around, imitate the teacher, then learn by doing.

Everything is drawn from one seed and counted in iterations, so the same plan gives the
same weights. Traces of seeds 1-40 are learned from, those of 50-55 choose among the weights
met on the way, and those of 60-69 say how good the chosen ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ones.lab.drl.episodes import GAP, Episode, Scene, Student, fifo_jct, play
from ones.lab.drl.learners import LEARNERS
from ones.lab.drl.teacher import teach
from ones.policies.drl.network import Adam, Batch, Floats, Observation, gradient, initial_weights
from ones.policies.drl.trained_weights import TrainedWeights

LEARNED_FROM = range(1, 41)
CHOSEN_BY = range(50, 56)
VALIDATED_ON = range(60, 70)
#: clusters and mechanisms of the episodes; the first is what the policy is mainly for
CLUSTERS = (64, 64, 32, 16)
MECHANISMS = ("checkpoint", "checkpoint", "checkpoint", "elastic")
JITTER = 0.3  # of the mean gap between arrivals
AT_A_TIME = 64  # decisions of the teacher that are imitated in one step
IDLE_WORTH = 0.3  # of a decision to do nothing
_GATHER, _WARM, _SCENE, _ROLL, _LESSON = 1, 2, 3, 4, 5  # what a random number is for


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that the weights depend on. The defaults make the shipped ones."""

    learner: str = "cem"
    iterations: int = 60
    seed: int = 1
    rollouts: int = 8
    rate: float = 1e-3
    late_rate: float = 0.3  # times the rate: in the second half, and in the last lessons
    gathered: int = 20  # traces from which kinds are learned first
    taught: int = 20  # traces on which the teacher is imitated
    lessons: int = 20  # times that each is gone through
    teach_rate: float = 5e-3
    evaluate_every: int = 10
    jobs: int = 50


@dataclass(frozen=True, slots=True)
class Report:
    """Where the training stands. Scores are mean completion times in parts of fifo's."""

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
    plan: Plan,
    *,
    report: Callable[[Report], None] = lambda report: None,
    keep: Callable[[TrainedWeights], object] = lambda learned: None,
    start: TrainedWeights | None = None,
) -> TrainedWeights:
    """The best weights met. `keep` is given each that is better than all before; Ctrl-C ends the
    training early, with what there is. `start` takes the place of gathering and the teacher."""
    learn = LEARNERS[plan.learner]
    if start is None:
        rng = np.random.default_rng([plan.seed, _WARM])
        learned = TrainedWeights(initial_weights(rng), _gather(plan, report))
        weights = _imitate(plan, learned, report)
    else:
        learned, weights = start, start.weights.copy()
    kinds = learned.kinds
    best = _Best(weights)
    told: dict[str, Any] = {
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
            **told,
            "chosen_at": best.at,
            "score": round(best.score, 4),
            "curve": best.curve,
        }
        return TrainedWeights(best.weights, kinds, training)

    try:
        adam = Adam()
        for i in range(plan.iterations + 1):
            if i % plan.evaluate_every == 0 or i == plan.iterations:
                before = best.score
                best.consider(
                    weights, score(TrainedWeights(weights, kinds), CHOSEN_BY, plan.jobs), i
                )
                report(Report("learning", i, plan.iterations, best.curve[-1][1], best.score))
                if best.score < before:
                    keep(chosen())
            if i < plan.iterations:
                slope = learn(weights, list(_episodes(plan, TrainedWeights(weights, kinds), i)))
                late = i >= plan.iterations / 2
                weights = adam.step(weights, slope, plan.rate * (plan.late_rate if late else 1.0))
                report(Report("learning", i + 1, plan.iterations, best.curve[-1][1], best.score))
    except KeyboardInterrupt:
        told["interrupted"] = True
    return chosen()


def validate(learned: TrainedWeights, jobs: int = 50) -> dict[str, float]:
    """Mean completion seconds on traces that nothing was chosen by, beside fifo's."""
    means: dict[str, float] = {}
    for mechanism in ("checkpoint", "elastic"):
        scenes = [Scene(seed, mechanism=mechanism, jobs=jobs) for seed in VALIDATED_ON]
        jcts = [play(scene, Student(learned, sampled=False)).mean_jct for scene in scenes]
        means[mechanism] = round(float(np.mean(jcts)), 1)
        means["fifo"] = round(float(np.mean([fifo_jct(scene) for scene in scenes])), 1)
    sampled = [play(Scene(seed, jobs=jobs), Student(learned, seed=seed)) for seed in VALIDATED_ON]
    means["checkpoint, sampled"] = round(float(np.mean([e.mean_jct for e in sampled])), 1)
    return means


def score(learned: TrainedWeights, seeds: range, jobs: int = 50) -> float:
    """Mean completion time in parts of fifo's: at home on every trace, elsewhere on two each."""
    scenes = [Scene(seed, jobs=jobs) for seed in seeds]
    scenes += [Scene(seed, mechanism="elastic", jobs=jobs) for seed in seeds[:2]]
    scenes += [Scene(seed, gpus=gpus, jobs=jobs) for gpus in (32, 16) for seed in seeds[:2]]
    parts = [
        play(scene, Student(learned, sampled=False)).mean_jct / fifo_jct(scene) for scene in scenes
    ]
    return float(np.mean(parts))


def _gather(plan: Plan, report: Callable[[Report], None]) -> Mapping[str, Any]:
    """A book of the kinds, written by a policy that does whatever it may."""
    learned = TrainedWeights(initial_weights(np.random.default_rng([plan.seed, _GATHER])) * 0.0, {})
    for i, seed in enumerate(LEARNED_FROM[: plan.gathered]):
        report(Report("gathering", i, plan.gathered))
        student = Student(learned, seed=plan.seed * 1000 + seed)
        play(Scene(seed, jobs=plan.jobs), student)
        learned = TrainedWeights(learned.weights, student.kinds())
    return learned.kinds


def _imitate(plan: Plan, learned: TrainedWeights, report: Callable[[Report], None]) -> Floats:
    """Make the teacher's decisions likely, a few at a time. Mostly it does nothing, which is soon
    learned and counts for less."""
    looks: list[Observation] = []
    chosen: list[int] = []
    for i in range(plan.taught):
        report(Report("watching the teacher", i, plan.taught))
        scene = _scene(plan, np.random.default_rng([plan.seed, _WARM, i]))
        episode = play(scene, Student(learned, pick=partial(teach, gpus=scene.gpus)))
        looks += episode.looks
        chosen += episode.chosen
    real = np.array([n for n, look in enumerate(looks) if int(look.valid.sum()) > 1])
    rng = np.random.default_rng([plan.seed, _LESSON])
    weights, adam = learned.weights, Adam()
    for lesson in range(plan.lessons):
        report(Report("imitating the teacher", lesson, plan.lessons))
        late = 3 * lesson >= 2 * plan.lessons
        rate = plan.teach_rate * (plan.late_rate if late else 1.0)
        rng.shuffle(real)
        for first in range(0, len(real), AT_A_TIME):
            some = real[first : first + AT_A_TIME].tolist()
            batch = Batch.of([looks[n] for n in some])
            choices = batch.choices([looks[n] for n in some], [chosen[n] for n in some])
            nothing = choices == batch.valid.shape[1] - 1
            _, slope = gradient(weights, batch, choices, np.where(nothing, IDLE_WORTH, 1.0))
            weights = adam.step(weights, slope, rate)
    return weights


def _episodes(plan: Plan, learned: TrainedWeights, iteration: int) -> Iterator[Episode]:
    """Of one scene, with different luck."""
    scene = _scene(plan, np.random.default_rng([plan.seed, _SCENE, iteration]))
    for roll in range(plan.rollouts):
        luck = np.random.default_rng([plan.seed, _ROLL, iteration, roll]).integers(2**31)
        yield play(scene, Student(learned, seed=int(luck)))


def _scene(plan: Plan, rng: np.random.Generator) -> Scene:
    return Scene(
        seed=int(rng.choice(LEARNED_FROM)),
        gpus=int(rng.choice(CLUSTERS)),
        gap=float(np.round(GAP * rng.uniform(1 - JITTER, 1 + JITTER), 3)),
        mechanism=str(rng.choice(MECHANISMS)),
        jobs=plan.jobs,
    )


def _span(seeds: range) -> str:
    return f"{seeds[0]}-{seeds[-1]}"
