"""Training progress ρ_j ~ Be(α_j, β_j) (Eq. 6) and remaining workload Y_j (Eq. 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ones.core.job import JobId
from ones.policies.ones_paper.genome import Floats
from ones.policies.ones_paper.history import MOST_EPOCHS, Features, History
from ones.policies.ones_paper.predictors import PREDICTORS, Predictor

#: bounds of a drawn ρ: E[1/ρ] diverges for α = 1, so that one new job could outweigh all others
LEAST_RHO, MOST_RHO = 0.02, 0.999
PROTOTYPE_ALPHA = 1e-3
PROTOTYPE_RHO = 1e-12
#: completed jobs that weigh as much as the prior
PRIOR_JOBS = 5.0


class Prediction:
    """The online regression model: learns when a job completes, predicts for running jobs."""

    def __init__(
        self, name: str, seed: int, *, prior_epochs: float, prototype: bool = False
    ) -> None:
        self._history = History(seed)
        self._model: Predictor = PREDICTORS[name](seed)
        # the prototype has neither the threshold of α nor bounds of ρ
        self._least_alpha = PROTOTYPE_ALPHA if prototype else 1.0
        self._bounds = (PROTOTYPE_RHO, 1.0) if prototype else (LEAST_RHO, MOST_RHO)
        # the constant predictor stands for one that was trained before: no prior, no points
        self._prior_epochs = prior_epochs if name != "constant" else None

    def add_epoch(self, job: JobId, features: Features) -> None:
        if self._prior_epochs is not None:
            self._history.add_epoch(job, features)

    def end(self, job: JobId, *, completed: bool) -> None:
        """ "Each time when a job is completed, we train the model"."""
        learned = self._history.end(job, completed=completed)
        if learned or (completed and self._prior_epochs is None):
            self._model.fit(self._history.data)

    def parameters(self, features: Sequence[Features]) -> tuple[Floats, Floats]:
        """α and β of Eq. 6. With few completed jobs β is blended with a prior length."""
        alpha = np.array([max(f.epochs, self._least_alpha) for f in features])
        known = self._history.completed
        if self._prior_epochs is None:
            return alpha, self._model.beta(np.array([f.row for f in features]), alpha)
        declared = [f.declared_epochs or self._prior_epochs for f in features]
        beta = np.maximum(np.array(declared) - alpha, 1.0)
        if known:
            learned = self._model.beta(np.array([f.row for f in features]), alpha)
            beta += (learned - beta) * known / (known + PRIOR_JOBS)
        return alpha, np.minimum(beta, MOST_EPOCHS)

    def draw(self, features: Sequence[Features], n: int, rng: np.random.Generator) -> Floats:
        """Y_j [draw, job]: lines 1 and 2 of Algorithm 1, then Eq. 7."""
        alpha, beta = self.parameters(features)
        rho = np.clip(rng.beta(alpha, beta, (n, len(alpha))), *self._bounds)
        size = np.array([f.dataset_size for f in features])
        left: Floats = alpha * size * (1.0 / rho - 1.0)  # Eq. 7; Y_processed = α ‖D‖
        return left

    def interval(self, features: Features) -> tuple[float, float, float]:
        """Samples left: expected, and the ends of a 90 % interval (Fig. of the prediction)."""
        from scipy.special import betaincinv

        alpha, beta = self.parameters([features])
        rho = np.maximum(betaincinv(alpha[0], beta[0], [0.95, 0.05]), 1e-4)
        low, high = (features.processed * (1.0 / rho - 1.0)).tolist()
        middle = features.processed * float(beta[0] / alpha[0])
        return middle, min(low, middle), max(high, middle)

    def save(self) -> dict[str, Any]:
        return {"history": self._history.save(), "model": self._model.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._history.load(saved["history"])
        self._model.load(saved["model"])
