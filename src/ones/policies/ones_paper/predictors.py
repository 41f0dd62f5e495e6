"""Parts `predictor`: β of Eq. 6, the epochs that a job has left.

`beta` is the printed model, `gaussian-process` the "GPR predictor" of the footnote, `constant` what
the authors' prototype computes in effect. All are fitted anew when a job completes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ones.policies.ones_paper.genome import Floats
from ones.policies.ones_paper.history import N_FEATURES, DataSet, Standardiser

#: epochs left before anything is known
START = 10.0


class Predictor(Protocol):
    def fit(self, data: DataSet) -> None: ...
    def beta(self, rows: Floats, alpha: Floats) -> Floats:
        """β of jobs with these features, at least 1."""
        ...

    def save(self) -> Mapping[str, Any]: ...
    def load(self, saved: Mapping[str, Any]) -> None: ...


class BetaRegression:
    """β = max(A x + b, 1); A and b by maximum likelihood (Eq. 6), with a weak penalty on A."""

    PENALTY = 1e-3
    FIRST_STEPS, STEPS = 200, 30  # of the optimiser; later fits start from the one before

    def __init__(self, seed: int) -> None:
        self._scale = Standardiser()
        self._theta = np.append(np.zeros(N_FEATURES), START)  # A, b
        self._fitted = False

    def fit(self, data: DataSet) -> None:
        from scipy.optimize import minimize

        self._scale.fit(data.rows)
        found = minimize(
            self.loss,
            self._theta,
            args=(self._scale.apply(data.rows), data.alpha, data.rho),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.STEPS if self._fitted else self.FIRST_STEPS},
        )
        self._theta, self._fitted = found.x, True

    def loss(self, theta: Floats, x: Floats, alpha: Floats, rho: Floats) -> tuple[float, Floats]:
        """-mean log likelihood of Be(α, β), and its gradient in A and b."""
        from scipy.special import betaln, psi

        linear = x @ theta[:-1] + theta[-1]
        beta = np.maximum(linear, 1.0)
        rest = np.log1p(-rho)
        likelihood = (alpha - 1) * np.log(rho) + (beta - 1) * rest - betaln(alpha, beta)
        slope = (linear > 1.0) * -(rest - psi(beta) + psi(alpha + beta)) / len(beta)
        a = theta[:-1]
        gradient = np.append(slope @ x + 2 * self.PENALTY * a, slope.sum())
        return float(self.PENALTY * (a @ a) - likelihood.mean()), gradient

    def beta(self, rows: Floats, alpha: Floats) -> Floats:
        linear = self._scale.apply(rows) @ self._theta[:-1] + self._theta[-1]
        beta: Floats = np.maximum(linear, 1.0)
        return beta

    def save(self) -> dict[str, Any]:
        return {
            "mean": self._scale.mean.tolist(),
            "sd": self._scale.sd.tolist(),
            "theta": self._theta.tolist(),
            "fitted": self._fitted,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._scale.mean, self._scale.sd = np.array(saved["mean"]), np.array(saved["sd"])
        self._theta, self._fitted = np.array(saved["theta"]), bool(saved["fitted"])


class GaussianProcess:
    """A Gaussian process of the logarithm of the epochs left; its mean gives β.

    Squared exponential kernel plus noise. Length scale, signal and noise maximise the log marginal
    likelihood, as the text says of the regression.
    """

    POINTS = 200  # of the data set: the fit costs their cube
    STEPS = 20

    def __init__(self, seed: int) -> None:
        self._scale = Standardiser()
        self._x: Floats = np.zeros((0, N_FEATURES))
        self._weights: Floats = np.zeros(0)
        self._mean = float(np.log(START))
        self._logs = np.array([0.5, 0.0, -1.0])  # ln of length scale, signal, noise

    def fit(self, data: DataSet) -> None:
        from scipy.optimize import minimize

        n = len(data.rho)
        some = np.unique(np.linspace(0, n - 1, min(n, self.POINTS)).astype(int))
        data = data.chosen(some)
        self._scale.fit(data.rows)
        self._x = self._scale.apply(data.rows)
        y = np.log(np.maximum(data.alpha * (1 / data.rho - 1), 1.0))  # β of Eq. 6
        self._mean = float(y.mean())
        found = minimize(
            lambda logs: self.marginal_loss(logs, self._x, y - self._mean),
            self._logs,
            method="L-BFGS-B",
            bounds=[(-2.0, 3.0), (-3.0, 3.0), (-4.0, 1.0)],
            options={"maxiter": self.STEPS},
        )
        self._logs = found.x
        self._weights = _solve(self._covariance(self._logs, self._x), y - self._mean)

    def marginal_loss(self, logs: Floats, x: Floats, y: Floats) -> float:
        """-log marginal likelihood, up to a constant."""
        lower = np.linalg.cholesky(self._covariance(logs, x)).astype(np.float64)
        half = _solve(lower, y)
        return float(half @ half / 2 + np.log(np.diag(lower)).sum())

    def _covariance(self, logs: Floats, x: Floats) -> Floats:
        noise: Floats = np.exp(2 * logs[2]) * np.eye(len(x))
        return _kernel(logs, x, x) + noise

    def beta(self, rows: Floats, alpha: Floats) -> Floats:
        mean = self._mean + _kernel(self._logs, self._scale.apply(rows), self._x) @ self._weights
        beta: Floats = np.exp(np.clip(mean, 0.0, 20.0))
        return beta

    def save(self) -> dict[str, Any]:
        return {
            "mean": self._scale.mean.tolist(),
            "sd": self._scale.sd.tolist(),
            "x": self._x.tolist(),
            "weights": self._weights.tolist(),
            "level": self._mean,
            "logs": self._logs.tolist(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._scale.mean, self._scale.sd = np.array(saved["mean"]), np.array(saved["sd"])
        self._x = np.array(saved["x"], float).reshape(-1, N_FEATURES)
        self._weights, self._logs = np.array(saved["weights"]), np.array(saved["logs"])
        self._mean = float(saved["level"])


def _solve(matrix: Floats, y: Floats) -> Floats:
    found: Floats = np.linalg.solve(matrix, y).astype(np.float64)
    return found


def _kernel(logs: Floats, left: Floats, right: Floats) -> Floats:
    """Squared exponential covariance of two sets of points."""
    square = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
    kernel: Floats = np.exp(2 * logs[1] - square / (2 * np.exp(2 * logs[0])))
    return kernel


class Constant:
    """One β for all jobs, drawn anew at each fit.

    In the prototype the net gets ‖D‖ where it was trained with ln ‖D‖, so its output does not
    depend on the job. The quantiles are those of 40 fits to the authors' history (docs/paper.md).
    """

    SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    QUANTILES = (1.0, 1.5, 8.0, 15.0, 18.0, 21.0, 23.0)

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0xC0])
        self._beta = 0.0
        self._draw()

    def _draw(self) -> None:
        self._beta = float(np.interp(self._rng.random(), self.SHARES, self.QUANTILES))

    def fit(self, data: DataSet) -> None:
        self._draw()

    def beta(self, rows: Floats, alpha: Floats) -> Floats:
        return np.full(len(alpha), self._beta)

    def save(self) -> dict[str, Any]:
        return {"beta": self._beta, "generator": self._rng.bit_generator.state}

    def load(self, saved: Mapping[str, Any]) -> None:
        self._beta = float(saved["beta"])
        self._rng.bit_generator.state = saved["generator"]


PREDICTORS: dict[str, Callable[[int], Predictor]] = {
    "beta": BetaRegression,
    "gaussian-process": GaussianProcess,
    "constant": Constant,
}
