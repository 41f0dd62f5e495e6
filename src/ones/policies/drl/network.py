"""The network: which job gets which size next, or nothing at all.

One small network looks at every job of the window (12 numbers, two layers of 32 tanh, 6
sizes and one more), and at the mean of its first layer over all of them: so a job is seen
beside the others, and their order means nothing. The choice is a softmax over all (job,
size) and "change nothing", whose logit is the mean of the one more.

Weights are one flat vector, so that learners need no names.
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
_NEVER = -1e9  # logit of what may not be chosen


@dataclass(frozen=True, slots=True)
class Look:
    """What one decision sees and may do. Choice `i * 6 + k`: size k for job i; the last: nothing.

    At least one choice is open.
    """

    features: Floats  # (jobs, 12)
    valid: Flags  # (jobs * 6 + 1,)

    @property
    def nothing(self) -> int:
        return len(self.valid) - 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Many decisions, padded to as many jobs; padding is never valid."""

    features: Floats  # (decisions, jobs, 12)
    present: Flags  # (decisions, jobs)
    valid: Flags  # (decisions, jobs * 6 + 1)

    @classmethod
    def of(cls, looks: Sequence[Look]) -> Batch:
        jobs = max(len(look.features) for look in looks)
        features = np.zeros((len(looks), jobs, FEATURES))
        present = np.zeros((len(looks), jobs), np.bool_)
        valid = np.zeros((len(looks), jobs * len(SIZES) + 1), np.bool_)
        for row, look in enumerate(looks):
            n = len(look.features)
            features[row, :n] = look.features
            present[row, :n] = True
            valid[row, : n * len(SIZES)] = look.valid[:-1]
            valid[row, -1] = look.valid[-1]
        return cls(features, present, valid)

    def choices(self, looks: Sequence[Look], chosen: Sequence[int]) -> NDArray[np.intp]:
        """The same choices, counted with the padding."""
        last = self.valid.shape[1] - 1
        pairs = zip(looks, chosen, strict=True)
        return np.array([last if c == look.nothing else c for look, c in pairs], np.intp)


def initial_weights(rng: np.random.Generator) -> Floats:
    """Small at the last layer, so that at first all choices are about as likely."""
    parts = []
    for shape in SHAPES:
        if len(shape) == 1:
            parts.append(np.zeros(shape))
        else:
            scale = 0.1 if shape[1] == OUTPUTS else 1.0
            parts.append(rng.normal(0.0, scale / np.sqrt(shape[0]), shape))
    return np.concatenate([part.ravel() for part in parts])


def log_chances(weights: Floats, batch: Batch) -> Floats:
    """(decisions, choices): the logarithm of the probability of every choice."""
    return _forward(weights, batch)[-1]


def scores(weights: Floats, look: Look) -> Floats:
    """As `log_chances`, of one decision."""
    present = np.ones((1, len(look.features)), np.bool_)
    one: Floats = log_chances(weights, Batch(look.features[None], present, look.valid[None]))[0]
    return one


def gradient(
    weights: Floats,
    batch: Batch,
    chosen: NDArray[np.intp],
    worth: Floats,
    *,
    entropy: float = 0.0,
) -> tuple[float, Floats]:
    """Mean over decisions of worth x log chance of what was chosen + entropy x entropy, to be
    maximised; and its gradient."""
    hidden1, mean1, hidden2, logs = _forward(weights, batch)
    _, _, own, others, _, last, _ = _unpacked(weights)
    n, jobs = batch.present.shape
    rows = np.arange(n)
    chances = np.exp(logs)
    spread = -(chances * np.where(batch.valid, logs, 0.0)).sum(axis=1)
    value = float(np.mean(worth * logs[rows, chosen] + entropy * spread))

    # d value / d logits
    slope = -worth[:, None] * chances
    slope[rows, chosen] += worth
    if entropy:
        slope -= entropy * chances * (np.where(batch.valid, logs, 0.0) + spread[:, None])
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
    logits = np.where(batch.valid, logits, _NEVER)
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
    """The usual one, upwards."""

    def __init__(self, size: int = WEIGHTS) -> None:
        self.steps = 0
        self.mean, self.square = np.zeros(size), np.zeros(size)

    def step(self, weights: Floats, slope: Floats, rate: float) -> Floats:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * slope
        self.square = 0.999 * self.square + 0.001 * slope**2
        mean = self.mean / (1 - 0.9**self.steps)
        square = self.square / (1 - 0.999**self.steps)
        better: Floats = weights + rate * mean / (np.sqrt(square) + 1e-8)
        return better
