"""Jobs that a progress predictor learns from, and what it says of others then."""

from __future__ import annotations

import numpy as np

from ones.core import JobId
from ones.policies.ones.predict.progress import (
    Features,
    ProgressModel,
)

NEW = Features(dataset_size=1000, samples=0.0)


def epochs_of_job(
    rng: np.random.Generator, *, kind: str = "cnn", mean: float = 40.0, scatter: float = 0.4
) -> list[Features]:
    """A job of about `mean` epochs with loss and accuracy that show its progress, with noise."""
    length = max(4, round(mean * float(np.exp(rng.normal(0.0, scatter)))))
    size = int(rng.integers(5_000, 50_000))
    first = float(rng.uniform(2, 4))
    constant = length / 3 * float(np.exp(rng.normal(0.0, 0.2)))
    found = []
    for epoch in range(1, length + 1):
        done = 1 - np.exp(-epoch / constant)
        found.append(
            Features(
                dataset_size=size,
                samples=epoch * size,
                first_loss=first,
                loss=first * (1 - 0.8 * done) * float(np.exp(rng.normal(0, 0.05))),
                accuracy=float(np.clip(0.9 * done + rng.normal(0, 0.02), 0, 1)),
                kind=kind,
            )
        )
    return found


def teach(model: ProgressModel, name: str, job: list[Features], *, completed: bool = True) -> None:
    for features in job:
        model.record_epoch(JobId(name), features)
    model.finished(JobId(name), completed)


def taught(jobs: int, seed: int = 0) -> ProgressModel:
    rng = np.random.default_rng(seed)
    model = ProgressModel(seed=seed)
    for i in range(jobs):
        kind, mean = (("cnn", 40.0), ("bert", 12.0))[i % 2]
        teach(model, f"j{i}", epochs_of_job(rng, kind=kind, mean=mean))
    return model


def epochs_left(model: ProgressModel, *features: Features) -> list[float]:
    alpha, beta = model.predict(features)
    return [
        model.forecast(f, a, b)[0] / f.dataset_size
        for f, a, b in zip(features, alpha, beta, strict=True)
    ]
