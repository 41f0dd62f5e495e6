"""What the policy has learned from what happened: of lengths, batches, speeds, and of each job.

Everything here follows from the events and the plans that were adopted; `policy` asks it
and never writes to it in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ones.core import events as ev
from ones.core.events import Event
from ones.core.job import Forecast, JobId
from ones.core.plan import PlanAdopted, Prepare, Rescale, Start
from ones.core.view import JobView, View
from ones.policies.ones.batch_changes import BatchChanges
from ones.policies.ones.choices import Knowledge, Standing
from ones.policies.ones.cold_start import ColdStart
from ones.policies.ones.history import MOST_EPOCHS, sure_epochs
from ones.policies.ones.limits import ArrivalRate
from ones.policies.ones.mistakes import mistakes
from ones.policies.ones.paces import Paces
from ones.policies.ones.progress import Features, ProgressModel, ProgressSettings, features_of
from ones.policies.ones.refusals import Refusals
from ones.policies.ones.settings import OnesSettings
from ones.policies.ones.stays import Stays

#: samples of an epoch of a job that has not joined, when no other job can tell
UNKNOWN_DATASET = 10_000
#: to go, in a forecast: 30 years
MOST_SECONDS = 1e9


class Learned:
    def __init__(self, settings: OnesSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._progress = ProgressModel(
            ProgressSettings(
                link=settings.link,
                kinds=settings.kinds,
                temper=settings.temper,
                cold_start_epochs=settings.cold_start_epochs,
                declared=settings.trust_declared,
            ),
            seed=seed,
        )
        self.known = known = Knowledge.none(settings)
        self._limits, self._speeds, self._effort = known.limits, known.speeds, known.effort
        self._visits, self._newcomers = known.visits, known.newcomers
        self._arrivals = ArrivalRate()
        self._refusals = Refusals()
        self.batch_changes = BatchChanges()
        self._stays = Stays()
        self._paces = Paces()
        self._cold_start = ColdStart(settings.cold_start_epochs)
        self._epoch_seconds: dict[JobId, float] = {}  # on one GPU, at the last epoch's end
        self._new: set[JobId] = set()  # never deployed
        self._least_batch: dict[JobId, int] = {}  # since its last epoch ended
        self._spoke: JobId | None = None  # whose epoch was the last event
        self.stirred: list[JobId] = []  # jobs of which it has changed what batch they may have

    # from what happens

    def learn(self, event: Event, view: View) -> None:
        self._spoke = None
        self.stirred = []
        match event:
            case ev.JobSubmitted():
                self._arrivals.saw(event.at)
                self._new.add(event.job.id)
            case ev.JobDescribed():
                self._limits.joined(view.job(event.job))
                self._effort.joined(view.job(event.job))
            case ev.ThroughputMeasured():
                self._limits.stepped(view.job(event.job), event.steps)
                self._speeds.learn(view.job(event.job))
                self.stirred.append(event.job)
            case ev.StepsDone():
                self._effort.learn(view.job(event.job))
            case ev.EpochFinished():
                self._effort.learn(view.job(event.job))
                self._learn_epoch(view.job(event.job), view)
            case ev.RescaleFailed() if event.job in view.jobs:
                held = view.job(event.job).wanted
                self._refusals.refused(event.job, held.n_gpus if held else 0, view.now)
            case ev.Rescaled():
                self._refusals.granted(event.job)
                self.batch_changes.made(event.job, event.pause_seconds)
                self._newcomers.came(event.job, event.at, event.pause_seconds)
            case ev.JobEnded():
                self._paces.ended(event.job, view.now, completed=event.reason.completed)
                self._visits.ended(event.job, view.now)
                self._forget(event.job, completed=event.reason.completed)
            case _:
                pass

    def _learn_epoch(self, job: JobView, view: View) -> None:
        self._spoke = job.id
        self.stirred.append(job.id)
        if job.description is None:
            return  # it reports without having joined
        features = self._features([job])[0]
        self._progress.saw_epoch(job.id, features)
        self._epoch_seconds[job.id] = self._speeds.epoch_seconds(job) or 0.0
        if self._is_sure(features) and (seconds := self._seconds_to_go(job)) is not None:
            self._paces.told(job.id, view.now, seconds[0])
        if job.held is not None:
            self._least_batch[job.id] = job.held.batch
        rate = self._arrivals.at(view.now)
        sigma = rate / max(1, view.cluster.n_gpus) if self._settings.sigma == "per-gpu" else rate
        self._limits.finished_epoch(
            job,
            pressure=sigma * job.run_seconds_at(view.now),
            gpus=view.cluster.n_gpus,
            crowded=view.n_waiting > 0,
        )

    def ripen(self, view: View) -> None:
        """Limits grow by the clock, in jobs that train."""
        for job in view.schedule:
            if self._limits.is_ripe(job, view.now):
                self._limits.ripen(view.job(job), view.now, gpus=view.cluster.n_gpus)
                self.stirred.append(job)

    def adopted(self, event: PlanAdopted) -> bool:
        """Only now is a job deployed. Was there any?"""
        self._spoke = None
        self.stirred = []
        moved = False
        for action in event.plan.actions:
            if isinstance(action, Start | Rescale | Prepare):
                moved = True
                self._new.discard(action.job)
                self._refusals.asked(action.job, action.allocation.n_gpus)
                if isinstance(action, Prepare):
                    self._stays.announced(action.job, event.at)
                    continue
                batch = action.allocation.batch
                least = min(self._least_batch.get(action.job, batch), batch)
                self._least_batch[action.job] = least
                self._visits.started(action.job, event.at)
                starts, gpus = isinstance(action, Start), action.allocation.gpus
                some = not starts and self._stays.comes_to(action.job, gpus)
                self._newcomers.ordered(action.job, event.at, some=some)
                note = self._stays.started if starts else self._stays.changed
                self.batch_changes.ordered(action.job, alone=note(action.job, gpus, event.at))
        return moved

    def updated(self, view: View) -> None:
        """An update was deployed, which left some jobs waiting (Resume)."""
        for job in view.waiting:
            if job.id not in self._new:
                self._limits.rejected(job)

    def _forget(self, job: JobId, *, completed: bool) -> None:
        epoch_seconds = self._epoch_seconds.pop(job, 0.0)
        whole = self._progress.finished(job, completed, self._effort.done_by(job))
        if whole is not None and epoch_seconds:
            self._cold_start.learn(whole * epoch_seconds)
        self._limits.forget(job)
        self._speeds.forget(job)
        self._effort.forget(job)
        self._refusals.forget(job)
        self.batch_changes.forget(job)
        self._newcomers.forget(job)
        self._new.discard(job)
        self._stays.forget(job)
        self._least_batch.pop(job, None)

    # what it means

    def standing(self, job: JobView, now: float) -> Standing:
        cost = job.switch_cost
        free = job.description is None
        epoch = 0.0
        if job.description and job.progress.step_seconds and job.wanted and job.wanted.batch:
            steps = job.description.dataset_size / job.wanted.batch
            epoch = steps * job.progress.step_seconds
        stay = min(self._settings.least_stay, epoch)
        return Standing(
            may_grow=free or self._stays.may_grow(job.id, cost, now),
            may_shrink=free or self._stays.may_shrink(job.id, cost, now, least=stay),
            may_stop=self._stays.may_stop(job.id, cost, now, least=self._settings.least_run),
            least_batch=self._least_batch.get(job.id, 0),
            most=self._refusals.most(job.id, now),
        )

    def work(self, jobs: list[JobView]) -> NDArray[np.float64]:
        """Remaining samples of each job, in each draw (Eq. 7): one bank for all candidates."""
        features = self._features(jobs)
        alpha, beta = self._predicted(jobs, features)
        rho = self._progress.quantiles(alpha, beta, self._settings.draws)
        left = self._progress.remaining(features, rho)
        error = self._settings.prediction_error
        if error > 1.0:
            left = left * mistakes(self._seed, (job.number for job in jobs), error)
        return left

    def _predicted(
        self, jobs: list[JobView], features: list[Features]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        alpha, beta = self._progress.predict(features)
        if self._settings.overruns:
            beta = beta * self._progress.outlived([job.id for job in jobs], features)
        return alpha, np.minimum(beta, MOST_EPOCHS)

    def _features(self, jobs: list[JobView]) -> list[Features]:
        known = [job.description.dataset_size for job in jobs if job.description]
        usual = sum(known) // len(known) if known else UNKNOWN_DATASET
        found: list[Features] = []
        for job in jobs:
            features = features_of(job, self._effort.done(job))
            if features is None:  # it has not joined: its kind may tell
                shape = self._effort.shape(job)
                features = Features(
                    dataset_size=shape.dataset_size if shape else usual,
                    samples=0,
                    kind=job.job.kind,
                    declared_epochs=job.job.epochs,
                    sure_epochs=sure_epochs(job.job),
                )
            found.append(features)
        seconds = [self._speeds.epoch_seconds(self._effort.like_its_kind(job)) for job in jobs]
        epochs = self._cold_start.usual_epochs(seconds)
        return [replace(f, usual_epochs=n) for f, n in zip(found, epochs, strict=True)]

    def forecasts(self, view: View) -> dict[JobId, Forecast]:
        """Of the job that has just finished an epoch: when it will end, and how sure that is."""
        if self._spoke is None or self._spoke not in view.jobs:
            return {}
        job = view.job(self._spoke)
        seconds = self._seconds_to_go(job)
        if seconds is None:
            return {}
        return {job.id: Forecast(*(round(view.now + s, 3) for s in seconds))}

    def _seconds_to_go(self, job: JobView) -> tuple[float, float, float] | None:
        """At the speed that it has: in the middle, and the ends of a 90 % interval."""
        step = job.progress.step_seconds
        if job.description is None or not step or job.held is None or not job.held.batch:
            return None
        features = self._features([job])[0]
        alpha, beta = self._predicted([job], [features])
        middle, low, high = self._progress.forecast(features, float(alpha[0]), float(beta[0]))
        second = job.held.batch / step * self._effort.worth(job)  # (effective) samples
        if self._is_sure(features):  # what is to come is known, but not at which speed
            least, most = self._paces.range()
            low, high = least * middle, most * middle
        most = MOST_SECONDS * second
        return min(middle, most) / second, min(low, most) / second, min(high, most) / second

    def _is_sure(self, features: Features) -> bool:
        return self._settings.trust_declared and features.sure_epochs is not None

    # memory

    def save(self) -> dict[str, Any]:
        return {
            "spoke": self._spoke,
            "stirred": list(self.stirred),
            "new": sorted(self._new),
            "stays": self._stays.save(),
            "visits": self._visits.save(),
            "least_batch": dict(self._least_batch),
            "progress": self._progress.save(),
            "limits": self._limits.save(),
            "speeds": self._speeds.save(),
            "effort": self._effort.save(),
            "arrivals": self._arrivals.save(),
            "refusals": self._refusals.save(),
            "batch_changes": self.batch_changes.save(),
            "newcomers": self._newcomers.save(),
            "paces": self._paces.save(),
            "cold_start": self._cold_start.save(),
            "epoch_seconds": dict(self._epoch_seconds),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._spoke = saved["spoke"]
        self.stirred = list(saved["stirred"])
        self._new = set(saved["new"])
        self._stays.load(saved["stays"])
        self._visits.load(saved["visits"])
        self._least_batch = {JobId(job): int(n) for job, n in saved["least_batch"].items()}
        self._progress.load(saved["progress"])
        self._limits.load(saved["limits"])
        self._speeds.load(saved["speeds"])
        self._effort.load(saved["effort"])
        self._arrivals.load(saved["arrivals"])
        self._refusals.load(saved["refusals"])
        self.batch_changes.load(saved["batch_changes"])
        self._newcomers.load(saved["newcomers"])
        self._paces.load(saved["paces"])
        self._cold_start.load(saved["cold_start"])
        self._epoch_seconds = {JobId(job): float(s) for job, s in saved["epoch_seconds"].items()}
