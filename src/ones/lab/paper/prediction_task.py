"""Accuracy of predictions of progress: a run under `ones` with the paper's predictor beside it.

The predictor sees what the scheduler sees; no decision depends on it.
"""

from __future__ import annotations

from typing import Any

from ones.core import events as ev
from ones.core.cluster import Cluster
from ones.core.events import Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision, Policy
from ones.core.view import View
from ones.lab.runs import RunSpec, trace_of
from ones.policies import create
from ones.policies.ones.predict.progress import ProgressModel, features_of
from ones.sim.run import Simulator

MAX_POINTS = 60  # of one job


def predictions(spec: RunSpec) -> dict[str, Any]:
    """Predictions for each epoch of each completed job: the Beta distribution of its progress
    (`alpha`, `beta`) and its true progress."""
    observer = _Observer(create(spec.policy, seed=spec.seed, **spec.settings), spec)
    simulator = Simulator(
        trace_of(spec),
        Cluster.of(spec.gpus, spec.gpus_per_node),
        observer,
        mechanism=spec.mechanism,
        seed=spec.seed,
    )
    result = simulator.run()
    return {"wall_seconds": round(result.wall_seconds, 3), "jobs": observer.jobs}


class _Observer:
    """The policy, and a predictor that learns beside it."""

    def __init__(self, policy: Policy, spec: RunSpec) -> None:
        self._policy = policy
        self.decides_on = policy.decides_on
        self.native_mechanism = policy.native_mechanism
        self.save = policy.save
        self.load = policy.load
        self._model = ProgressModel(seed=spec.seed)
        self._under_way: dict[JobId, list[tuple[float, float, float, float]]] = {}
        self.jobs: list[dict[str, Any]] = []

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._policy.observe(event, view)
        if isinstance(event, ev.EpochFinished):
            job = view.job(event.job)
            features = features_of(job)
            if features is not None:
                self._model.record_epoch(job.id, features)
                alpha, beta = self._model.predict([features])
                self._under_way.setdefault(job.id, []).append(
                    (event.at, features.samples, float(alpha[0]), float(beta[0]))
                )
        elif isinstance(event, ev.JobEnded):
            learned = self._model.n_completed
            self._model.finished(event.job, completed=event.reason.completed)
            points = self._under_way.pop(event.job, [])
            if event.reason.completed and points:
                self.jobs.append(_trajectory(event.job, points, learned))

    def decide(self, view: View) -> Decision:
        return self._policy.decide(view)


def _trajectory(
    job: JobId, points: list[tuple[float, float, float, float]], learned: int
) -> dict[str, Any]:
    whole = points[-1][1]  # samples at its end
    step = -(-len(points) // MAX_POINTS)
    sampled = points[::step]
    return {
        "id": job,
        "learned_from": learned,  # jobs that had finished before it did
        "epochs": len(points),
        "at": [round(at, 3) for at, *_ in sampled],
        "progress": [round(samples / whole, 6) for _, samples, *_ in sampled],
        "alpha": [round(alpha, 4) for *_, alpha, _ in sampled],
        "beta": [round(beta, 4) for *_, beta in sampled],
    }
