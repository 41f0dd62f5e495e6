"""A small fully connected network that chooses a seat, or to stop: for `dl2` and `deeprm`.

One layer of ReLU units; the choice is a softmax over all seats and "stop". Weights are one flat
vector, kept in a JSON file with the record of their training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FORMAT = 1
_INVALID = -1e9  # logit of an invalid choice


@dataclass(frozen=True, slots=True)
class SeatObservation:
    """Features of all seats, and the valid choices; the last choice is to stop."""

    features: Floats  # (inputs,)
    valid: Flags  # (seats + 1,)

    @property
    def nothing(self) -> int:
        return len(self.valid) - 1


@dataclass(frozen=True, slots=True)
class SeatNetwork:
    inputs: int
    hidden: int
    seats: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        outputs = self.seats + 1
        return ((self.inputs, self.hidden), (self.hidden,), (self.hidden, outputs), (outputs,))

    @property
    def size(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def initial(self, rng: np.random.Generator) -> Floats:
        """Random weights; small in the last layer, so that choices are about equally likely."""
        scales = (np.sqrt(2.0 / self.inputs), 0.0, 0.1 / np.sqrt(self.hidden), 0.0)
        parts = [
            rng.normal(0.0, 1.0, shape).ravel() * scale
            for shape, scale in zip(self.shapes, scales, strict=True)
        ]
        return np.concatenate(parts)

    def scores(self, weights: Floats, observation: SeatObservation) -> Floats:
        """Logarithms of the probability of every choice."""
        logs: Floats = self._forward(weights, observation.features[None], observation.valid[None])[
            1
        ][0]
        return logs

    def gradient(
        self,
        weights: Floats,
        looks: Sequence[SeatObservation],
        chosen: Sequence[int],
        worth: Floats,
        *,
        entropy: float = 0.0,
    ) -> tuple[float, Floats]:
        """Mean of worth x log probability + entropy x entropy over decisions, and its gradient."""
        features = np.array([look.features for look in looks])
        valid = np.array([look.valid for look in looks])
        hidden, logs = self._forward(weights, features, valid)
        n, rows, picked = len(looks), np.arange(len(looks)), np.asarray(chosen, np.intp)
        probabilities = np.exp(logs)
        spread = -(probabilities * np.where(valid, logs, 0.0)).sum(axis=1)
        value = float(np.mean(worth * logs[rows, picked] + entropy * spread))
        slope = -worth[:, None] * probabilities
        slope[rows, picked] += worth
        if entropy:
            slope -= entropy * probabilities * (np.where(valid, logs, 0.0) + spread[:, None])
        slope = np.where(valid, slope, 0.0) / n
        last = self._unpacked(weights)[2]
        back = (slope @ last.T) * (hidden > 0)
        parts = (features.T @ back, back.sum(axis=0), hidden.T @ slope, slope.sum(axis=0))
        return value, np.concatenate([part.ravel() for part in parts])

    def _forward(self, weights: Floats, features: Floats, valid: Flags) -> tuple[Floats, Floats]:
        first, bias, last, offset = self._unpacked(weights)
        hidden = np.maximum(features @ first + bias, 0.0)
        logits = np.where(valid, hidden @ last + offset, _INVALID)
        logits -= logits.max(axis=1, keepdims=True)
        return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def _unpacked(self, weights: Floats) -> list[Floats]:
        parts, start = [], 0
        for shape in self.shapes:
            end = start + int(np.prod(shape))
            parts.append(weights[start:end].reshape(shape))
            start = end
        return parts

    def text(self, weights: Floats, training: Mapping[str, Any]) -> str:
        """The file of these weights, one part per line."""
        values = [float(f"{w:.5g}") for w in weights]
        shape = [self.inputs, self.hidden, self.seats]
        return (
            f'{{\n  "format": {FORMAT},\n  "shape": {json.dumps(shape)},\n'
            f'  "training": {json.dumps(dict(training))},\n  "weights": {json.dumps(values)}\n}}\n'
        )

    def parse(self, text: str, name: str) -> TrainedSeats:
        """The content of such a file. Raises ValueError, with its name, if it is not valid."""
        try:
            values = json.loads(text)
            weights = np.array(values["weights"], np.float64)
            shape = tuple(values["shape"])
            fits = values["format"] == FORMAT and shape == (self.inputs, self.hidden, self.seats)
            training = dict(values.get("training", {}))
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{name}: not the weights of this policy ({problem})") from None
        if not fits or weights.shape != (self.size,) or not np.isfinite(weights).all():
            raise ValueError(f"{name}: weights of another network than this one")
        return TrainedSeats(weights, training)

    def read(self, path: str) -> TrainedSeats:
        """Reads a file of the user."""
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else "is not text"
            raise ValueError(f"{path}: cannot be read: {reason}") from None
        return self.parse(text, path)


@dataclass(frozen=True, slots=True)
class TrainedSeats:
    weights: Floats
    training: Mapping[str, Any] = field(default_factory=dict)


class SeatChooser:
    """Chooses with given weights: the most probable choice, or a random one by probability."""

    def __init__(self, network: SeatNetwork, weights: Floats, *, seed: int, sampled: bool) -> None:
        self.network, self.weights = network, weights
        self._seed, self._sampled = seed, sampled
        self.seen = 0  # events; random draws depend on it

    def choose(self, observation: SeatObservation, turn: int) -> int:
        """`turn`: number of the choice within its event."""
        logs = self.network.scores(self.weights, observation)
        if self._sampled:  # the maximum after adding Gumbel noise is a random draw
            logs = logs + np.random.default_rng([self._seed, self.seen, turn]).gumbel(
                size=len(logs)
            )
        return int(np.argmax(logs))
