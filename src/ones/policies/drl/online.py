"""Fine-tuning while deployed: one small policy-gradient step every 100 decisions.

What a decision was worth is judged by the number of unfinished jobs in the ten minutes
after it, against the mean of the last 500 decisions. If things get worse by more than a
tenth from one 500 to the next, learning ends and the shipped weights are taken up again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ones.policies.drl.network import FEATURES, Adam, Batch, Floats, Look, gradient

REMEMBERED = 500
EVERY = 100
RATE = 3e-4
#: seconds in which a decision shows what it was worth
HORIZON = 600.0
#: fewer judged decisions than these teach nothing
LEAST = 20
WORSE = 1.1


@dataclass(frozen=True, slots=True)
class Memory:
    """One decision: what it saw, what it chose, when, and how much waiting there had been."""

    at: float
    burden: float  # unfinished jobs, integrated over time up to then
    chosen: int
    look: Look
    text: str  # `look`, as it is saved: made once

    @classmethod
    def of(cls, at: float, burden: float, chosen: int, look: Look) -> Memory:
        features = b64encode(look.features.astype("<f8").tobytes()).decode()
        valid = b64encode(np.packbits(look.valid).tobytes()).decode()
        return cls(at, burden, chosen, look, f"{len(look.valid)} {features} {valid}")

    def save(self) -> list[Any]:
        return [self.at, self.burden, self.chosen, self.text]

    @classmethod
    def load(cls, saved: list[Any]) -> Memory:
        at, burden, chosen, text = saved
        count, features, valid = text.split(" ")
        rows = np.frombuffer(b64decode(features), "<f8").reshape(-1, FEATURES).astype(float)
        bits = np.unpackbits(np.frombuffer(b64decode(valid), np.uint8), count=int(count))
        look = Look(rows, bits.astype(np.bool_))
        return cls(float(at), float(burden), int(chosen), look, text)


class Tuner:
    """Holds the weights in force, and betters them."""

    def __init__(self, weights: Floats, *, learns: bool) -> None:
        self.weights = self._shipped = weights
        self._adam = Adam(len(weights))
        self.learns = learns
        self._memories: list[Memory] = []
        self._decisions = 0
        self._at = 0.0
        self._burden = 0.0
        self._unfinished = 0
        self._block = (0.0, 0.0)  # time and burden at its beginning
        self._last_rate: float | None = None  # mean unfinished jobs of the block before

    def passed(self, now: float, unfinished: int) -> None:
        """So many jobs are unfinished from now on."""
        self._burden += (now - self._at) * self._unfinished
        self._at, self._unfinished = now, unfinished

    def decided(self, look: Look, chosen: int) -> None:
        if not self.learns:
            return
        self._memories.append(Memory.of(self._at, self._burden, chosen, look))
        del self._memories[:-REMEMBERED]
        self._decisions += 1
        if self._decisions % REMEMBERED == 0:
            self._end_block()
        if self.learns and self._decisions % EVERY == 0:
            self._learn()

    def _end_block(self) -> None:
        began, before = self._block
        rate = (self._burden - before) / max(1e-9, self._at - began)
        if self._last_rate is not None and rate > WORSE * self._last_rate:
            self.weights, self.learns, self._memories = self._shipped, False, []
        self._last_rate, self._block = rate, (self._at, self._burden)

    def _learn(self) -> None:
        times = np.array([m.at for m in self._memories] + [self._at])
        burdens = np.array([m.burden for m in self._memories] + [self._burden])
        judged = int((times[:-1] + HORIZON <= self._at).sum())
        if judged < LEAST:
            return
        # between two decisions nobody comes or goes, so the integral is a line there
        after = np.interp(times[:judged] + HORIZON, times, burdens)
        reward = burdens[:judged] - after
        spread = float(reward.std())
        if spread == 0.0:
            return
        told = self._memories[:judged]
        looks = [m.look for m in told]
        batch = Batch.of(looks)
        chosen = batch.choices(looks, [m.chosen for m in told])
        _, slope = gradient(self.weights, batch, chosen, (reward - reward.mean()) / spread)
        self.weights = self._adam.step(self.weights, slope, RATE)

    def save(self) -> dict[str, Any]:
        changed = self.weights is not self._shipped
        return {
            "weights": _text(self.weights) if changed else None,
            "adam": [self._adam.steps, _text(self._adam.mean), _text(self._adam.square)]
            if self._adam.steps
            else None,
            "learns": self.learns,
            "memories": [m.save() for m in self._memories],
            "decisions": self._decisions,
            "at": self._at,
            "burden": self._burden,
            "unfinished": self._unfinished,
            "block": list(self._block),
            "last_rate": self._last_rate,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.weights = self._shipped if saved["weights"] is None else _numbers(saved["weights"])
        self._adam = Adam(len(self.weights))
        if saved["adam"] is not None:
            self._adam.steps = int(saved["adam"][0])
            self._adam.mean, self._adam.square = map(_numbers, saved["adam"][1:])
        self.learns = bool(saved["learns"])
        self._memories = [Memory.load(m) for m in saved["memories"]]
        self._decisions = int(saved["decisions"])
        self._at, self._burden = float(saved["at"]), float(saved["burden"])
        self._unfinished = int(saved["unfinished"])
        self._block = (float(saved["block"][0]), float(saved["block"][1]))
        self._last_rate = None if saved["last_rate"] is None else float(saved["last_rate"])


def _text(numbers: Floats) -> str:
    return b64encode(numbers.astype("<f8").tobytes()).decode()


def _numbers(text: str) -> Floats:
    return np.frombuffer(b64decode(text), "<f8").astype(np.float64)
