"""Settings of `ones-paper`: six numbers, and a name for each choice that the text leaves open.

The numbers in the help texts are those of the gaps in docs/paper.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ones.models.settings import check_settings, setting
from ones.policies.ones_paper.fills import FILLS
from ones.policies.ones_paper.placements import PLACEMENTS
from ones.policies.ones_paper.predictors import PREDICTORS
from ones.policies.ones_paper.scale_downs import SCALE_DOWNS, SIGMAS
from ones.policies.ones_paper.throughputs import THROUGHPUTS
from ones.policies.ones_paper.updates import RULES


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """Six numbers, and the readings by name."""

    population: int = setting(
        0, "26: K, the number of candidate schedules; 0: one per GPU", least=0
    )
    generations: int = setting(1, "26: iterations of the search after an event", least=1)
    mutation: float = setting(0.1, "25: θ, probability that mutation preempts a job", least=0)
    warmup_steps: int = setting(20, "34: steps on one GPU before a job may grow", least=0)
    most_base_batches: int = setting(
        32, "35: maximum batch size limit, in multiples of the base batch", least=1
    )
    prior_epochs: float = setting(
        30.0, "17: expected epochs of a job before others have completed", least=1
    )
    predictor: str = setting(
        "beta", "12, 13: β by linear regression, by a Gaussian process, or constant",
        options=tuple(PREDICTORS),
    )  # fmt: skip
    throughput: str = setting(
        "per-gpu", "8: rate per GPU x GPUs, a fitted step time, or interpolated between sizes",
        options=tuple(THROUGHPUTS),
    )  # fmt: skip
    batch: str = setting(
        "constant", "20: batch per GPU as at the start, or the largest that fits memory and limit",
        options=("constant", "largest"),
    )  # fmt: skip
    fill: str = setting(
        "waiting-first", "23: idle GPUs go to waiting jobs first, to the least gain, or by length",
        options=tuple(FILLS),
    )  # fmt: skip
    placement: str = setting(
        "occurrence", "27: order of occurrence, staying where possible, or least moves",
        options=tuple(PLACEMENTS),
    )  # fmt: skip
    update: str = setting(
        "all", "28: jobs that owe an epoch before an update: all, those not changing, the affected",
        options=RULES,
    )  # fmt: skip
    scale_down: str = setting(
        "repaired", "30: the rule for long jobs; repaired: as printed, once σT is above 1",
        options=tuple(SCALE_DOWNS),
    )  # fmt: skip
    sigma: str = setting(
        "per-gpu", "31: σ from the arrival rate per GPU, the arrival rate, or the median run time",
        options=tuple(SIGMAS),
    )  # fmt: skip
    limits: str = setting(
        "epoch", "36: the limit doubles after each epoch, or only once the job has reached it",
        options=("epoch", "held"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.mutation <= 1:
            raise ValueError(f"mutation {self.mutation} is above 1")
