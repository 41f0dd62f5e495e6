"""The network: chooses a new size for one job, or no change.

A small network is applied to every job of the window (12 features, two layers of 32 tanh, an output
for each of 6 sizes and one more), together with the mean of its first layer over all jobs: so the
order of the jobs has no effect. The choice is a softmax over all (job, size) and "no change"; the
logit of the latter is the mean of the additional output.

Weights are one flat vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FEATURES = 12
HIDDEN = 32
#: GPUs that a job can be given
SIZES = (1, 2, 4, 8, 16, 32)
OUTPUTS = len(SIZES) + 1
SHAPES = (
    (FEATURES, HIDDEN), (HIDDEN,),
    (HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,),  # of the job, of the mean of all
    (HIDDEN, OUTPUTS), (OUTPUTS,),
)  # fmt: skip
WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES)
_INVALID = -1e9  # logit of an invalid choice


@dataclass(frozen=True, slots=True)
class Observation:
    """Features and valid choices of a decision. Choice `i * 6 + k`: size k for job i; last: none.

    At least one choice is valid.
    """

    features: Floats  # (jobs, 12)
    valid: Flags  # (jobs * 6 + 1,)

    @property
    def nothing(self) -> int:
        return len(self.valid) - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Many decisions, padded to the same number of jobs; padding is never valid."""

    features: Floats  # (decisions, jobs, 12)
    present: Flags  # (decisions, jobs)
    valid: Flags  # (decisions, jobs * 6 + 1)

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Batch:
        jobs = max(len(observation.features) for observation in observations)
        features = np.zeros((len(observations), jobs, FEATURES))
        present = np.zeros((len(observations), jobs), np.bool_)
        valid = np.zeros((len(observations), jobs * len(SIZES) + 1), np.bool_)
        for row, observation in enumerate(observations):
            n = len(observation.features)
            features[row, :n] = observation.features
            present[row, :n] = True
            valid[row, : n * len(SIZES)] = observation.valid[:-1]
            valid[row, -1] = observation.valid[-1]
        return cls(features, present, valid)

    def choices(
        self, observations: Sequence[Observation], chosen: Sequence[int]
    ) -> NDArray[np.intp]:
        """The indices of choices in the padded arrays."""
        last = self.valid.shape[1] - 1
        pairs = zip(observations, chosen, strict=True)
        return np.array([last if c == o.nothing else c for o, c in pairs], np.intp)


def initial_weights(rng: np.random.Generator) -> Floats:
    """Random weights; small in the last layer, so that all choices are about equally likely."""
    parts = []
    for shape in SHAPES:
        if len(shape) == 1:
            parts.append(np.zeros(shape))
        else:
            scale = 0.1 if shape[1] == OUTPUTS else 1.0
            parts.append(rng.normal(0.0, scale / np.sqrt(shape[0]), shape))
    return np.concatenate([part.ravel() for part in parts])


def log_probabilities(weights: Floats, batch: Batch) -> Floats:
    """Logarithms of the probability of every choice: (decisions, choices)."""
    return _forward(weights, batch)[-1]


def scores(weights: Floats, observation: Observation) -> Floats:
    """`log_probabilities` of one decision."""
    present = np.ones((1, len(observation.features)), np.bool_)
    one: Floats = log_probabilities(
        weights, Batch(observation.features[None], present, observation.valid[None])
    )[0]
    return one


def gradient(
    weights: Floats,
    batch: Batch,
    chosen: NDArray[np.intp],
    worth: Floats,
    *,
    entropy: float = 0.0,
) -> tuple[float, Floats]:
    """The objective to maximise, and its gradient.

    It is the mean over decisions of worth x log probability of the choice + entropy x entropy.
    """
    hidden1, mean1, hidden2, logs = _forward(weights, batch)
    _, _, own, others, _, last, _ = _unpacked(weights)
    n, jobs = batch.present.shape
    rows = np.arange(n)
    probabilities = np.exp(logs)
    spread = -(probabilities * np.where(batch.valid, logs, 0.0)).sum(axis=1)
    value = float(np.mean(worth * logs[rows, chosen] + entropy * spread))

    # d value / d logits
    slope = -worth[:, None] * probabilities
    slope[rows, chosen] += worth
    if entropy:
        slope -= entropy * probabilities * (np.where(batch.valid, logs, 0.0) + spread[:, None])
    slope = np.where(batch.valid, slope, 0.0) / n

    out = np.zeros((n, jobs, OUTPUTS))
    out[:, :, :-1] = slope[:, :-1].reshape(n, jobs, len(SIZES))
    out[:, :, -1] = batch.present * (slope[:, -1] / batch.present.sum(axis=1))[:, None]
    flat = out.reshape(n * jobs, OUTPUTS)
    back2 = (flat @ last.T) * (1 - hidden2**2)
    together = back2.reshape(n, jobs, HIDDEN).sum(axis=1)
    shared = batch.present[:, :, None] * _per_job(together @ others.T, batch)[:, None]
    back1 = (back2 @ own.T + shared.reshape(n * jobs, HIDDEN)) * (1 - hidden1**2)
    inputs = batch.features.reshape(n * jobs, FEATURES)
    parts = (
        inputs.T @ back1, back1.sum(axis=0),
        hidden1.T @ back2, mean1.T @ together, back2.sum(axis=0),
        hidden2.T @ flat, flat.sum(axis=0),
    )  # fmt: skip
    return value, np.concatenate([part.ravel() for part in parts])


def _forward(weights: Floats, batch: Batch) -> tuple[Floats, Floats, Floats, Floats]:
    w1, b1, own, others, b2, w3, b3 = _unpacked(weights)
    n, jobs = batch.present.shape
    inputs = batch.features.reshape(n * jobs, FEATURES)
    hidden1 = np.tanh(inputs @ w1 + b1)
    present = batch.present[:, :, None] * hidden1.reshape(n, jobs, HIDDEN)
    mean1 = _per_job(present.sum(axis=1), batch)
    hidden2 = np.tanh(hidden1 @ own + np.repeat(mean1 @ others, jobs, axis=0) + b2)
    out = (hidden2 @ w3 + b3).reshape(n, jobs, OUTPUTS)
    nothing = _per_job((out[:, :, -1:] * batch.present[:, :, None]).sum(axis=1), batch)
    logits = np.concatenate([out[:, :, :-1].reshape(n, -1), nothing], axis=1)
    logits = np.where(batch.valid, logits, _INVALID)
    logits -= logits.max(axis=1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return hidden1, mean1, hidden2, logs


def _per_job(sums: Floats, batch: Batch) -> Floats:
    share: Floats = sums / batch.present.sum(axis=1)[:, None]
    return share


def _unpacked(weights: Floats) -> list[Floats]:
    parts, start = [], 0
    for shape in SHAPES:
        end = start + int(np.prod(shape))
        parts.append(weights[start:end].reshape(shape))
        start = end
    return parts


class Adam:
    """The Adam optimizer, for maximisation."""

    def __init__(self, size: int = WEIGHTS) -> None:
        self.steps = 0
        self.mean, self.square = np.zeros(size), np.zeros(size)

    def step(self, weights: Floats, slope: Floats, rate: float) -> Floats:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * slope
        self.square = 0.999 * self.square + 0.001 * slope**2
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        updated: Floats = weights + rate * mean / (np.sqrt(square) + 1e-8)
        return updated
