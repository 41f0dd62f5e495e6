"""Kinds of jobs with laws of another form than those that our policies assume.

* **Batch size**: three regimes, as Shallue et al. (JMLR 20, 2019) measured them. Up to a batch
  `perfect` a sample counts fully, then with the square root, and from a batch `limit` on a larger
  batch saves no step. Halfway through training `perfect` doubles at once.
* **Gradient noise**: a job measures `perfect` times a constant error of its own. McCandlish et al.
  (arXiv 1812.06162) found that the noise scale predicts the useful batch within an order of
  magnitude.
* **Synchronisation**: it is added to the computation, not hidden behind it, and grows with the
  logarithm of the GPUs in a node (a tree) and linearly with the nodes (a parameter server).
* **Users**: each job has a largest batch. An epoch takes from seconds to hours on one GPU.

The forms have these sources. The numbers of the kinds are our own choice, made before any policy
ran with them, to span what the forms allow; they must not be changed to suit a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

import numpy as np

from ones.core import Job, JobId
from ones.lab.bench.embed.simulator import TickJob

#: lognormal sigma of the error of a job's measured gradient noise: 90 % within 3 times
NOISE_ERROR = 0.67
#: shape of the gamma distribution of gaps: below 1, arrivals come in bursts
GAP_SHAPE = 0.4


@dataclass(frozen=True, slots=True)
class RegimeKind:
    base_batch: int
    fits: int
    max_batch: int
    size: int
    epochs: float
    fixed: float  # seconds of a pass, and more for each sample
    sample: float
    tree: float  # seconds of synchronisation for each doubling of the GPUs in a node
    node: float  # and for each further node
    perfect: int  # batch up to which samples count fully, in the first half of training
    limit: int  # batch from which on larger batches save no step

    def step_seconds(self, gpus: int, nodes: int, share: int, parts: int) -> float:
        compute = parts * self.fixed + self.sample * share
        within = -(-gpus // nodes)
        return compute + self.tree * log2(within) + self.node * (nodes - 1)

    def efficiency(self, batch: int, done: float) -> float:
        perfect = self._perfect(done)
        if batch <= perfect:
            return 1.0
        return sqrt(perfect / min(batch, self.limit)) * min(1.0, self.limit / batch)

    def noise(self, done: float) -> float:
        return float(self._perfect(done))

    def _perfect(self, done: float) -> int:
        return self.perfect if done < 0.5 else min(2 * self.perfect, self.limit)


#: on one GPU a job takes from 0.02 to 35 hours, an epoch from 1.4 s to 7.3 hours
KINDS = {
    "tabular": RegimeKind(
        base_batch=512, fits=65_536, max_batch=16_384, size=60_000, epochs=40,
        fixed=0.004, sample=1.5e-5, tree=0.001, node=0.02, perfect=2_048, limit=32_768,
    ),
    "digits": RegimeKind(
        base_batch=64, fits=4_096, max_batch=2_048, size=60_000, epochs=12,
        fixed=0.003, sample=6e-5, tree=0.002, node=0.01, perfect=256, limit=2_048,
    ),
    "vision-small": RegimeKind(
        base_batch=128, fits=512, max_batch=1_024, size=50_000, epochs=90,
        fixed=0.010, sample=4e-4, tree=0.004, node=0.04, perfect=512, limit=8_192,
    ),
    "vision-large": RegimeKind(
        base_batch=256, fits=128, max_batch=8_192, size=600_000, epochs=40,
        fixed=0.030, sample=5e-3, tree=0.010, node=0.08, perfect=4_096, limit=65_536,
    ),
    "detection": RegimeKind(
        base_batch=16, fits=8, max_batch=128, size=40_000, epochs=12,
        fixed=0.090, sample=6e-2, tree=0.020, node=0.12, perfect=64, limit=512,
    ),
    "segmentation": RegimeKind(
        base_batch=8, fits=4, max_batch=64, size=3_000, epochs=60,
        fixed=0.060, sample=9e-2, tree=0.030, node=0.05, perfect=16, limit=64,
    ),
    "speech": RegimeKind(
        base_batch=32, fits=24, max_batch=512, size=28_000, epochs=15,
        fixed=0.080, sample=4e-2, tree=0.015, node=0.30, perfect=128, limit=1_024,
    ),
    "translation": RegimeKind(
        base_batch=64, fits=96, max_batch=2_048, size=160_000, epochs=8,
        fixed=0.050, sample=3e-3, tree=0.040, node=0.40, perfect=512, limit=4_096,
    ),
    "fine-tune": RegimeKind(
        base_batch=16, fits=12, max_batch=64, size=9_000, epochs=3,
        fixed=0.060, sample=2.5e-2, tree=0.050, node=0.60, perfect=32, limit=128,
    ),
    "pretrain": RegimeKind(
        base_batch=32, fits=8, max_batch=4_096, size=500_000, epochs=1,
        fixed=0.100, sample=4e-2, tree=0.080, node=0.50, perfect=1_024, limit=16_384,
    ),
    "recommender": RegimeKind(
        base_batch=2_048, fits=16_384, max_batch=8_192, size=4_000_000, epochs=3,
        fixed=0.006, sample=2e-5, tree=0.060, node=0.90, perfect=4_096, limit=16_384,
    ),
    "graph": RegimeKind(
        base_batch=1, fits=1, max_batch=1, size=400, epochs=250,
        fixed=0.020, sample=0.0, tree=0.010, node=0.10, perfect=1, limit=1,
    ),
}  # fmt: skip

#: short experiments are most of the jobs, a few long ones most of the work
MIX = {
    "tabular": 0.16, "digits": 0.16, "vision-small": 0.14, "fine-tune": 0.14, "graph": 0.08,
    "segmentation": 0.08, "recommender": 0.06, "translation": 0.06, "speech": 0.04,
    "detection": 0.04, "vision-large": 0.02, "pretrain": 0.02,
}  # fmt: skip


def generated(seed: int, jobs: int, *, hours: float = 8.0, scatter: float = 0.5) -> list[TickJob]:
    """Jobs that arrive in bursts within `hours`; lengths scatter within a kind."""
    rng = np.random.default_rng([seed, 0x2E6])
    kinds = rng.choice(list(MIX), size=jobs, p=list(MIX.values()))
    gaps = rng.gamma(GAP_SHAPE, 1.0, jobs)
    times = 3600.0 * hours * np.cumsum(gaps) / gaps.sum()
    lengths = np.exp(scatter * rng.standard_normal(jobs))
    errors = np.exp(NOISE_ERROR * rng.standard_normal(jobs))
    return [
        TickJob(
            Job(
                id=JobId(f"{kind}-{i}"),
                submitted_at=float(times[i]),
                kind=str(kind),
                max_batch=KINDS[kind].max_batch,
            ),
            KINDS[kind],
            length=float(lengths[i]),
            noise_bias=float(errors[i]),
        )
        for i, kind in enumerate(kinds)
    ]
