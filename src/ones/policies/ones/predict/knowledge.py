"""What the scoring reads: facts about one job, and statistics of all jobs."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from ones.policies.ones.predict.effective_work import EffectiveWork
from ones.policies.ones.predict.join_times import JoinTimes
from ones.policies.ones.predict.residence_times import ResidenceTimes
from ones.policies.ones.predict.speeds import Speeds


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Facts about a job that its view does not contain."""

    smallest_batch: int  # since the last epoch ended; 0: not trained since
    most_gpus: int | None = None  # limit after a failed rescale; None: no limit
    since_start: float = inf  # seconds since its last start


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Statistics of all jobs."""

    speeds: Speeds
    effective_work: EffectiveWork
    residence_times: ResidenceTimes
    join_times: JoinTimes

    @classmethod
    def none(cls) -> Knowledge:
        """Returns empty statistics."""
        return cls(Speeds(), EffectiveWork(), ResidenceTimes(), JoinTimes())
