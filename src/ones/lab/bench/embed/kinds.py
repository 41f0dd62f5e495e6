"""How jobs of the embedding simulator train: step times, and what a sample of a batch is worth.

`NoiseScaleKind` has the law that most schedulers assume: the efficiency of a batch is a hyperbola
in the gradient noise scale. `regime_kinds` has laws of another form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

_OVERLAP = 2.5


class TrainingKind(Protocol):
    """One kind of job. `done` is the finished fraction of a job's work, from 0 to 1."""

    @property
    def base_batch(self) -> int:
        """The batch of the script."""

    @property
    def fits(self) -> int:
        """Samples on one GPU at once."""

    @property
    def size(self) -> int:
        """Samples of an epoch."""

    @property
    def epochs(self) -> float:
        """Epochs of a job of the usual length, with the base batch."""

    @property
    def max_batch(self) -> int | None:
        """The largest batch that the user allows."""

    def step_seconds(self, gpus: int, nodes: int, share: int, parts: int) -> float:
        """Seconds of a step with `share` samples per GPU, in `parts` passes."""

    def efficiency(self, batch: int, done: float) -> float:
        """Progress of a sample in a batch of this size, relative to the base batch."""

    def noise(self, done: float) -> float:
        """The gradient noise scale that the job measures, in samples."""


@dataclass(frozen=True, slots=True)
class NoiseScaleKind:
    """Synthetic, after Pollux's evaluation: step times and gradient noise of that order."""

    base_batch: int
    fits: int
    size: int
    epochs: float
    fixed: float  # seconds of a pass, and more for each sample
    sample: float
    within: float  # seconds to exchange gradients inside a node, and between nodes
    between: float
    first_noise: float  # gradient noise scale in samples, at the start and at the end
    last_noise: float
    max_batch: int | None = None

    def step_seconds(self, gpus: int, nodes: int, share: int, parts: int) -> float:
        compute = parts * self.fixed + self.sample * share
        if gpus == 1:
            return compute
        network = (self.within if nodes == 1 else self.between) * (1 + 0.02 * gpus)
        return float((compute**_OVERLAP + network**_OVERLAP) ** (1 / _OVERLAP))

    def efficiency(self, batch: int, done: float) -> float:
        noise = self.noise(done)
        return min(1.0, (noise + self.base_batch) / (noise + batch))

    def noise(self, done: float) -> float:
        return float(self.first_noise * (self.last_noise / self.first_noise) ** done)


KINDS = {
    "cifar10": NoiseScaleKind(128, 1024, 50_000, 70, 0.015, 5e-4, 0.006, 0.03, 300, 4_000),
    "ncf": NoiseScaleKind(256, 32_768, 1_000_000, 25, 0.003, 8e-6, 0.002, 0.01, 2_000, 60_000),
    "bert": NoiseScaleKind(12, 9, 88_000, 2, 0.05, 0.04, 0.05, 0.25, 40, 120),
    "deepspeech2": NoiseScaleKind(20, 32, 14_000, 25, 0.1, 0.055, 0.03, 0.15, 50, 300),
    "yolov3": NoiseScaleKind(8, 8, 16_500, 25, 0.08, 0.11, 0.04, 0.2, 25, 200),
    "imagenet": NoiseScaleKind(200, 100, 1_280_000, 30, 0.04, 6e-3, 0.03, 0.15, 2_000, 20_000),
}
