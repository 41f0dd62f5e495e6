"""Fine-tuning while deployed: one small policy-gradient step every 100 decisions.

The reward of a decision is the number of unfinished jobs in the ten minutes after it, relative to
the mean of the last 500 decisions. If that number rises by more than 10 % from one block of 500
decisions to the next, learning ends and the shipped weights are restored.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ones.policies.drl.network import FEATURES, Adam, Batch, Floats, Observation, gradient

MAX_RECORDS = 500
STEP_INTERVAL = 100  # decisions
LEARNING_RATE = 3e-4
#: seconds after a decision that determine its reward
HORIZON = 600.0
#: minimum number of decisions with a reward for a step
MIN_REWARDS = 20
MAX_WORSENING = 1.1


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision: its observation, its choice, its time, and the waiting so far."""

    at: float
    burden: float  # unfinished jobs, integrated over time
    chosen: int
    observation: Observation
    text: str  # the observation, as it is saved

    @classmethod
    def of(cls, at: float, burden: float, chosen: int, observation: Observation) -> DecisionRecord:
        features = b64encode(observation.features.astype("<f8").tobytes()).decode()
        valid = b64encode(np.packbits(observation.valid).tobytes()).decode()
        return cls(at, burden, chosen, observation, f"{len(observation.valid)} {features} {valid}")

    def save(self) -> list[Any]:
        return [self.at, self.burden, self.chosen, self.text]

    @classmethod
    def load(cls, saved: list[Any]) -> DecisionRecord:
        at, burden, chosen, text = saved
        count, features, valid = text.split(" ")
        rows = np.frombuffer(b64decode(features), "<f8").reshape(-1, FEATURES).astype(float)
        bits = np.unpackbits(np.frombuffer(b64decode(valid), np.uint8), count=int(count))
        observation = Observation(rows, bits.astype(np.bool_))
        return cls(float(at), float(burden), int(chosen), observation, text)


class OnlineLearner:
    """Holds the current weights and improves them."""

    def __init__(self, weights: Floats, *, learns: bool) -> None:
        self.weights = self._shipped = weights
        self._adam = Adam(len(weights))
        self.learns = learns
        self._records: list[DecisionRecord] = []
        self._decisions = 0
        self._at = 0.0
        self._burden = 0.0
        self._unfinished = 0
        self._block = (0.0, 0.0)  # its time and burden at the start
        self._last_rate: float | None = None  # mean unfinished jobs of the previous block

    def set_unfinished(self, now: float, unfinished: int) -> None:
        """Sets the number of unfinished jobs from now on."""
        self._burden += (now - self._at) * self._unfinished
        self._at, self._unfinished = now, unfinished

    def record(self, observation: Observation, chosen: int) -> None:
        if not self.learns:
            return
        self._records.append(DecisionRecord.of(self._at, self._burden, chosen, observation))
        del self._records[:-MAX_RECORDS]
        self._decisions += 1
        if self._decisions % MAX_RECORDS == 0:
            self._end_block()
        if self.learns and self._decisions % STEP_INTERVAL == 0:
            self._learn()

    def _end_block(self) -> None:
        began, before = self._block
        rate = (self._burden - before) / max(1e-9, self._at - began)
        if self._last_rate is not None and rate > MAX_WORSENING * self._last_rate:
            self.weights, self.learns, self._records = self._shipped, False, []
        self._last_rate, self._block = rate, (self._at, self._burden)

    def _learn(self) -> None:
        times = np.array([m.at for m in self._records] + [self._at])
        burdens = np.array([m.burden for m in self._records] + [self._burden])
        rewarded = int((times[:-1] + HORIZON <= self._at).sum())
        if rewarded < MIN_REWARDS:
            return
        # between two decisions the number of jobs is constant: the integral is linear
        after = np.interp(times[:rewarded] + HORIZON, times, burdens)
        reward = burdens[:rewarded] - after
        spread = float(reward.std())
        if spread == 0.0:
            return
        records = self._records[:rewarded]
        observations = [r.observation for r in records]
        batch = Batch.of(observations)
        chosen = batch.choices(observations, [r.chosen for r in records])
        _, slope = gradient(self.weights, batch, chosen, (reward - reward.mean()) / spread)
        self.weights = self._adam.step(self.weights, slope, LEARNING_RATE)

    def save(self) -> dict[str, Any]:
        changed = self.weights is not self._shipped
        return {
            "weights": _text(self.weights) if changed else None,
            "adam": [self._adam.steps, _text(self._adam.mean), _text(self._adam.square)]
            if self._adam.steps
            else None,
            "learns": self.learns,
            "memories": [m.save() for m in self._records],
            "decisions": self._decisions,
            "at": self._at,
            "burden": self._burden,
            "unfinished": self._unfinished,
            "block": list(self._block),
            "last_rate": self._last_rate,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.weights = (
            self._shipped if saved["weights"] is None else _parse_floats(saved["weights"])
        )
        self._adam = Adam(len(self.weights))
        if saved["adam"] is not None:
            self._adam.steps = int(saved["adam"][0])
            self._adam.mean, self._adam.square = map(_parse_floats, saved["adam"][1:])
        self.learns = bool(saved["learns"])
        self._records = [DecisionRecord.load(m) for m in saved["memories"]]
        self._decisions = int(saved["decisions"])
        self._at, self._burden = float(saved["at"]), float(saved["burden"])
        self._unfinished = int(saved["unfinished"])
        self._block = (float(saved["block"][0]), float(saved["block"][1]))
        self._last_rate = None if saved["last_rate"] is None else float(saved["last_rate"])


def _text(numbers: Floats) -> str:
    return b64encode(numbers.astype("<f8").tobytes()).decode()


def _parse_floats(text: str) -> Floats:
    return np.frombuffer(b64decode(text), "<f8").astype(np.float64)
