"""Candidates for a division of GPUs: limits, remaining steps and step times of each job.

The batch is the user's and does not change. Knowledge is estimated from reports, or an oracle's.
"""

from __future__ import annotations

from math import ceil

from ones.core.view import JobView, View
from ones.models.loss_estimates import LossEstimates
from ones.models.marginal_gain import GainCandidate
from ones.models.oracle import Oracle
from ones.models.rigid_jobs import batch_of, size_of
from ones.models.strong_scaling import KindMeasurements, StepSeconds, fit_step_seconds


class CandidateMaker:
    def __init__(
        self,
        estimates: LossEstimates,
        oracle: Oracle | None = None,
        *,
        min_local_batch: int = 1,
        kinds_first: bool = False,
    ) -> None:
        """`kinds_first`: completed jobs of the kind predict better than the job's own losses."""
        self.estimates = estimates
        self.oracle = oracle
        self._min_local_batch, self._kinds_first = min_local_batch, kinds_first

    def is_measured(self, job: JobView) -> bool:
        """Whether the speed of the job's kind is known."""
        return self.oracle is not None or bool(self.estimates.measurements(job).steps)

    def of(self, view: View, job: JobView) -> GainCandidate:
        least = job.job.min_gpus
        batch = batch_of(job, least)
        kind = self.estimates.measurements(job)
        most = min(max(least, batch // self._min_local_batch), view.cluster.n_gpus)
        if not self.is_measured(job):
            most = min(most, size_of(job))  # as requested
        if job.max_gpus is not None:
            most = min(most, job.max_gpus)
        dataset = job.description.dataset_size if job.description else kind.dataset_size
        epochs, worth = self._epochs_left(job, batch)
        return GainCandidate(
            job.id,
            job.job.owner,
            job.number,
            least,
            max(least, min(most, dataset)),
            epochs * ceil(dataset / max(batch, 1)),
            self._step_seconds(job, kind, batch, dataset, view.cluster.width),
            worth,
        )

    def _step_seconds(
        self, job: JobView, kind: KindMeasurements, batch: int, dataset: int, width: int
    ) -> StepSeconds:
        oracle = self.oracle
        if oracle is None:
            return fit_step_seconds(kind, max(batch, 1), width)
        steps = ceil(dataset / max(batch, 1))
        return lambda gpus: oracle(job, gpus, batch).epoch_seconds / steps

    def _epochs_left(self, job: JobView, batch: int) -> tuple[float, float]:
        """Remaining epochs, and the weight of this estimate."""
        if self.oracle is not None:
            return self.oracle(job, job.job.min_gpus, batch).epochs, 1.0
        if self._kinds_first:
            if job.job.epochs is not None:
                return max(1.0, job.job.epochs - job.epochs), 1.0
            known = self.estimates.epochs_left_of_kind(job)
            if known is not None:
                return known, 1.0
        return self.estimates.epochs_left(job)
