"""What `ones-paper` learns from events: limits, speeds, lengths, arrivals, epochs since updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ones.core import events as ev
from ones.core.events import Event
from ones.core.job import Forecast, JobId
from ones.core.plan import PlanAdopted, Rescale, Start
from ones.core.view import JobView, View
from ones.policies.ones_paper.arrivals import ArrivalRate
from ones.policies.ones_paper.forecasts import forecast_of
from ones.policies.ones_paper.history import Features, features_of
from ones.policies.ones_paper.limits import BatchLimits
from ones.policies.ones_paper.prediction import Prediction
from ones.policies.ones_paper.scale_downs import SIGMAS
from ones.policies.ones_paper.settings import PaperSettings
from ones.policies.ones_paper.throughputs import THROUGHPUTS
from ones.policies.ones_paper.updates import UpdateGate

#: samples of an epoch of a job that has not joined, when no other job has
UNKNOWN_DATASET = 10_000
#: run times of ended jobs that are kept
ENDED_JOBS = 1000


class Learned:
    """What `ones-paper` knows about its jobs: predictions, rates, limits and the update gate."""

    def __init__(self, settings: PaperSettings, seed: int) -> None:
        self._settings = settings
        self.prediction = Prediction(settings.predictor, seed, prior_epochs=settings.prior_epochs)
        self.throughput = THROUGHPUTS[settings.throughput]()
        self.limits = BatchLimits(
            growth=settings.limits,
            batch=settings.batch,
            scale_down=settings.scale_down,
            warmup_steps=settings.warmup_steps,
            most_base_batches=settings.most_base_batches,
        )
        self.gate = UpdateGate(settings.update)
        self.new: set[JobId] = set()  # jobs that were never deployed
        self._arrivals = ArrivalRate()
        self._run_seconds: dict[JobId, float] = {}  # of started jobs; the last 1,000 that ended
        self._reported: JobId | None = None  # the job of the last event, an epoch

    def learn(self, event: Event, view: View) -> None:
        self._reported = None
        match event:
            case ev.JobSubmitted():
                self._arrivals.add(event.at)
                self.new.add(event.job.id)
            case ev.JobDescribed():
                self.limits.joined(view.job(event.job))
            case ev.ThroughputMeasured():
                self.limits.stepped(view.job(event.job), event.steps)
                self.throughput.measured(view.job(event.job))
            case ev.EpochFinished():
                self._finished_epoch(view.job(event.job), view)
            case ev.JobEnded():
                self._end(event)
            case _:
                pass

    def _finished_epoch(self, job: JobView, view: View) -> None:
        self._reported = job.id
        self.gate.finished_epoch(job.id)
        self.throughput.finished_epoch(job)
        self._run_seconds[job.id] = job.run_seconds_at(view.now)
        if job.description is None:
            return
        self.prediction.add_epoch(job.id, features_of(job, UNKNOWN_DATASET))
        gpus = view.cluster.n_gpus
        typical = median(self._run_seconds.values()) if self._settings.sigma == "median" else 0.0
        sigma = SIGMAS[self._settings.sigma](self._arrivals.at(view.now), gpus, typical)
        pressure = sigma * job.run_seconds_at(view.now)  # σ T_processed
        self.limits.finished_epoch(job, pressure=pressure, gpus=gpus)

    def _end(self, event: ev.JobEnded) -> None:
        self.prediction.end(event.job, completed=event.reason.completed)
        self.limits.forget(event.job)
        self.throughput.forget(event.job)
        self.gate.forget(event.job)
        self.new.discard(event.job)
        while len(self._run_seconds) > ENDED_JOBS:
            del self._run_seconds[next(iter(self._run_seconds))]

    def adopted(self, event: PlanAdopted, view: View) -> None:
        """Only an adopted plan deploys a job. After an update, waiting jobs were rejected."""
        self._reported = None
        actions = event.plan.actions
        for action in actions:
            if isinstance(action, Start | Rescale):
                self.new.discard(action.job)
                self.limits.ordered(action.job, action.allocation.batch)
        if self.gate.adopted(action.job for action in actions):
            for job in view.waiting:
                if job.id not in self.new:
                    self.limits.rejected(job)

    # predictions

    def features(self, jobs: Sequence[JobView]) -> list[Features]:
        sizes = [job.description.dataset_size for job in jobs if job.description]
        usual = sum(sizes) // len(sizes) if sizes else UNKNOWN_DATASET
        return [features_of(job, usual) for job in jobs]

    def forecasts(self, view: View) -> dict[JobId, Forecast]:
        """Expected end of the job that has just finished an epoch, at its present speed."""
        if self._reported is None or self._reported not in view.jobs:
            return {}
        return forecast_of(view.job(self._reported), view.now, self.prediction)

    # memory

    def save(self) -> dict[str, Any]:
        return {
            "prediction": self.prediction.save(),
            "throughput": self.throughput.save(),
            "limits": self.limits.save(),
            "gate": self.gate.save(),
            "arrivals": self._arrivals.save(),
            "new": sorted(self.new),
            "run_seconds": dict(self._run_seconds),
            "reported": self._reported,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.prediction.load(saved["prediction"])
        self.throughput.load(saved["throughput"])
        self.limits.load(saved["limits"])
        self.gate.load(saved["gate"])
        self._arrivals.load(saved["arrivals"])
        self.new = set(map(JobId, saved["new"]))
        self._run_seconds = {JobId(job): float(s) for job, s in saved["run_seconds"].items()}
        self._reported = saved["reported"]
