"""State that the policy learns from events and adopted plans: lengths, batches, speeds of jobs.

`policy` only reads it while it decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.events import Event
from ones.core.job import Forecast, JobId
from ones.core.plan import PlanAdopted, Prepare, Rescale, Start
from ones.core.view import JobView, View
from ones.policies.ones.predict.batch_changes import BatchChanges
from ones.policies.ones.predict.cold_start import ColdStart
from ones.policies.ones.predict.error_factors import error_factors
from ones.policies.ones.predict.failed_rescales import FailedRescales
from ones.policies.ones.predict.fixed_jobs import FixedJobs
from ones.policies.ones.predict.forecast_errors import ForecastErrors
from ones.policies.ones.predict.history import known_epochs
from ones.policies.ones.predict.knowledge import JobStatus, Knowledge
from ones.policies.ones.predict.memory import Remembers
from ones.policies.ones.predict.progress import Features, ProgressModel, features_of
from ones.policies.ones.settings import OnesSettings

#: assumed data size of a job that has not joined, if no job has joined
UNKNOWN_DATASET = 10_000
#: largest remaining time in a forecast: 30 years
MOST_SECONDS = 1e9


class Learned(Remembers):
    memory: ClassVar[Mapping[str, Any]] = {
        "_epoch_job": JobId | None,
        "changed_jobs": list[JobId],
        "_gpus": dict[JobId, tuple[Gpu, ...]],
        "_residence_times": None,
        "_smallest_batch": dict[JobId, int],
        "_started_at": dict[JobId, float],
        "_progress": None,
        "_speeds": None,
        "_effective_work": None,
        "_failed_rescales": None,
        "batch_changes": None,
        "_join_times": None,
        "_forecast_errors": None,
        "_fixed_jobs": None,
        "_cold_start": None,
        "_epoch_seconds": dict[JobId, float],
    }

    def __init__(self, settings: OnesSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._progress = ProgressModel(seed=seed)
        self.known = known = Knowledge.none()
        self._speeds, self._effective_work = known.speeds, known.effective_work
        self._residence_times, self._join_times = known.residence_times, known.join_times
        self._failed_rescales = FailedRescales()
        self.batch_changes = BatchChanges()
        self._gpus: dict[JobId, tuple[Gpu, ...]] = {}  # of the last order
        self._forecast_errors = ForecastErrors()
        self._fixed_jobs = FixedJobs()
        self._cold_start = ColdStart()
        self._epoch_seconds: dict[JobId, float] = {}  # on one GPU, at the last epoch's end
        self._smallest_batch: dict[JobId, int] = {}  # since its last epoch ended
        self._started_at: dict[JobId, float] = {}  # time of the last start
        self._epoch_job: JobId | None = None  # job of the last event, if its forecast is due
        # jobs for which the last event changed the batch limit or the speed
        self.changed_jobs: list[JobId] = []

    # events

    def learn(self, event: Event, view: View) -> None:
        self._epoch_job = None
        self.changed_jobs = []
        match event:
            case ev.JobDescribed():
                self._effective_work.joined(view.job(event.job))
            case ev.ThroughputMeasured():
                self._speeds.learn(view.job(event.job))
                self.changed_jobs.append(event.job)
                if view.job(event.job).forecast is None:  # the first one, before an epoch ends
                    self._epoch_job = event.job
            case ev.StepsDone():
                self._fixed_jobs.reported(view.job(event.job), event.epoch - 1, view.now)
                self._effective_work.learn(view.job(event.job))
            case ev.EpochFinished():
                self._effective_work.learn(view.job(event.job))
                self._learn_epoch(view.job(event.job), view)
            case ev.TrainingRestarted():
                self._learn_restart(view.job(event.job))
            case ev.RescaleFailed() if event.job in view.jobs:
                held = view.job(event.job).wanted
                self._failed_rescales.failed(event.job, held.n_gpus if held else 0, view.now)
            case ev.Rescaled():
                self._failed_rescales.succeeded(event.job)
                self.batch_changes.rescale_done(event.job, event.pause_seconds)
                self._join_times.rescale_done(event.job, event.at, event.pause_seconds)
            case ev.JobEnded():
                completed = event.reason.completed
                self._forecast_errors.ended(event.job, view.now, completed=completed)
                self._fixed_jobs.ended(event.job, view.now, completed=completed)
                self._residence_times.ended(event.job, view.now)
                self._forget(event.job, completed=completed)
            case _:
                pass

    def _learn_restart(self, job: JobView) -> None:
        """Forgets the progress of a job that trains from the beginning again."""
        self._progress.finished(job.id, completed=False)
        self._effective_work.forget(job.id)
        self._effective_work.joined(job)
        self._epoch_seconds.pop(job.id, None)
        self._smallest_batch[job.id] = job.base_batch or 0
        self._fixed_jobs.started(job.id)
        self.changed_jobs.append(job.id)

    def _learn_epoch(self, job: JobView, view: View) -> None:
        self._epoch_job = job.id
        self.changed_jobs.append(job.id)
        if job.description is None:  # it has reported without joining
            self._fixed_jobs.epoch_ended(job, view.now)
            return
        features = self._features([job])[0]
        self._progress.record_epoch(job.id, features)
        self._epoch_seconds[job.id] = self._speeds.epoch_seconds(job) or 0.0
        if features.known_epochs is not None and (seconds := self._seconds_to_go(job)) is not None:
            self._forecast_errors.record(job.id, view.now, seconds[0])
        if job.held is not None:
            self._smallest_batch[job.id] = job.held.batch

    def adopted(self, event: PlanAdopted) -> bool:
        """Learns from an adopted plan; returns whether it starts or changes a job."""
        self._epoch_job = None
        self.changed_jobs = []
        deployed = False
        for action in event.plan.actions:
            if isinstance(action, Start | Rescale | Prepare):
                deployed = True
                self._failed_rescales.requested(action.job, action.allocation.n_gpus)
                if isinstance(action, Prepare):
                    continue  # the change follows when other jobs have left
                job, batch, gpus = action.job, action.allocation.batch, action.allocation.gpus
                self._smallest_batch[job] = min(self._smallest_batch.get(job, batch), batch)
                self._residence_times.started(job, event.at)
                if isinstance(action, Start):
                    self._started_at[job] = event.at
                    self._fixed_jobs.started(job)
                before = self._gpus.get(job)
                self._gpus[job] = gpus
                grows = isinstance(action, Rescale) and not set(gpus) <= set(before or ())
                self._join_times.rescale_ordered(job, event.at, grows=grows)
                self.batch_changes.rescale_ordered(job, keeps_gpus=before == gpus)
        return deployed

    def _forget(self, job: JobId, *, completed: bool) -> None:
        epoch_seconds = self._epoch_seconds.pop(job, 0.0)
        whole = self._progress.finished(job, completed, self._effective_work.done_by(job))
        if whole is not None:
            kind, epochs = whole
            self._effective_work.completed(job, kind)
            if epoch_seconds:
                self._cold_start.learn(epochs * epoch_seconds)
        self._speeds.forget(job)
        self._effective_work.forget(job)
        self._failed_rescales.forget(job)
        self.batch_changes.forget(job)
        self._join_times.forget(job)
        self._gpus.pop(job, None)
        self._smallest_batch.pop(job, None)
        self._started_at.pop(job, None)

    # queries

    def status(self, job: JobView, now: float) -> JobStatus:
        return JobStatus(
            self._smallest_batch.get(job.id, 0),
            self._failed_rescales.gpu_limit(job.id, now),
            now - self._started_at.get(job.id, -inf),
        )

    def work(self, jobs: list[JobView]) -> NDArray[np.float64]:
        """Returns the remaining samples [draw, job] (Eq. 7); all candidates use the same draws."""
        features = self._features(jobs)
        alpha, beta = self._progress.predict(features)
        rho = self._progress.quantiles(alpha, beta, self._settings.draws)
        left = self._progress.remaining(features, rho)
        error = self._settings.prediction_error
        if error > 1.0:
            left = left * error_factors(self._seed, (job.number for job in jobs), error)
        return left

    def _features(self, jobs: list[JobView]) -> list[Features]:
        known = [job.description.dataset_size for job in jobs if job.description]
        usual = sum(known) // len(known) if known else UNKNOWN_DATASET
        found: list[Features] = []
        for job in jobs:
            features = features_of(job, self._effective_work.done(job))
            if features is None:  # not joined: use the data size of its kind
                shape = self._effective_work.shape(job)
                features = Features(
                    dataset_size=shape.dataset_size if shape else usual,
                    samples=0,
                    kind=job.job.kind,
                    declared_epochs=job.job.epochs,
                    known_epochs=known_epochs(job.job),
                )
            found.append(features)
        seconds = [
            self._speeds.epoch_seconds(self._effective_work.as_if_joined(job)) for job in jobs
        ]
        epochs = self._cold_start.usual_epochs(seconds)
        return [replace(f, usual_epochs=n) for f, n in zip(found, epochs, strict=True)]

    def forecasts(self, view: View) -> dict[JobId, Forecast]:
        """Returns the forecast of the job that has just ended an epoch, or was first measured."""
        if self._epoch_job is None or self._epoch_job not in view.jobs:
            return {}
        job = view.job(self._epoch_job)
        seconds = self._seconds_to_go(job) or self._fixed_jobs.seconds_to_go(job, view.now)
        if seconds is None:
            return {}
        return {job.id: Forecast(*(round(view.now + s, 3) for s in seconds))}

    def _seconds_to_go(self, job: JobView) -> tuple[float, float, float] | None:
        """Returns the remaining seconds at the present speed: middle, low and high end (90 %)."""
        step = job.progress.step_seconds or _measured_step(job)
        if job.description is None or not step or job.held is None or not job.held.batch:
            return None
        features = self._features([job])[0]
        if features.known_epochs is None and not job.progress.epochs:
            return None  # nothing is known of its length yet
        alpha, beta = self._progress.predict([features])
        middle, low, high = self._progress.forecast(features, float(alpha[0]), float(beta[0]))
        second = (
            job.held.batch / step * self._effective_work.efficiency_of(job)
        )  # (effective) samples
        if features.known_epochs is not None:  # the work is known, only the speed varies
            least, most = self._forecast_errors.interval()
            low, high = least * middle, most * middle
        most = MOST_SECONDS * second
        return min(middle, most) / second, min(low, most) / second, min(high, most) / second


def _measured_step(job: JobView) -> float | None:
    """Returns the measured time of a step with the present GPUs and batch."""
    if job.held is None:
        return None
    size, batch = job.held.n_gpus, job.held.batch
    times = [t.seconds for c, t in job.profile.items() if (c.gpus, c.batch) == (size, batch)]
    return times[-1] if times else None
