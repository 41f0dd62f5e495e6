"""ONES: learn from what happens, evolve schedules all the while, deploy the best one.

`observe` feeds the progress model, the batch limits and the speeds, and lets the
population evolve; `decide` picks the best schedule, if the update rule allows one, and
turns it into GPUs. It learns nothing, so asking twice gives one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ones.core import events as ev
from ones.core.events import PROGRESS_EVENTS, Event
from ones.core.job import Forecast, JobId
from ones.core.plan import PlanAdopted, Prepare, Rescale, Start
from ones.core.policy import Decision
from ones.core.schedule import Schedule
from ones.core.view import JobView, View
from ones.policies.ones.cold_start import ColdStart
from ones.policies.ones.deploy import allocate, deploy
from ones.policies.ones.effort import Effort
from ones.policies.ones.limits import ArrivalRate, BatchLimits
from ones.policies.ones.problem import optimum
from ones.policies.ones.progress import Features, ProgressModel, ProgressSettings, features_of
from ones.policies.ones.question import (
    UNKNOWN_DATASET,
    Knowledge,
    Question,
    Standing,
    ask,
    choices_of,
    movable,
)
from ones.policies.ones.refusals import Refusals
from ones.policies.ones.search import PAPER, Search, SearchOptions
from ones.policies.ones.settings import OnesSettings, PaperSettings
from ones.policies.ones.speeds import Speeds

#: between two generations, when nothing else happens: of the paper's update rule, and of ours
IDLE_SECONDS = {"epochs": 1.0, "events": 2.0}
#: a job must stay so many times what a change costs it
STAY_FACTOR = 10.0
_DRAWS = 1  # what a random number is for


class Ones:
    # the workers of a start come one by one: what they bring is known with the job's first report
    decides_on: ClassVar[frozenset[type[Event]]] = (PROGRESS_EVENTS | {ev.ThroughputMeasured}) - {
        ev.WorkerReady
    }
    native_mechanism: ClassVar[str] = "elastic"
    Settings: ClassVar[type[OnesSettings]] = OnesSettings

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._seed = seed
        self._progress = ProgressModel(
            ProgressSettings(
                link=chosen.link,
                kinds=chosen.kinds,
                temper=chosen.temper,
                cold_start_epochs=chosen.cold_start_epochs,
            ),
            seed=seed,
        )
        self._limits = BatchLimits(chosen)
        self._speeds = Speeds(chosen.throughput)
        self._effort = Effort(raw=not chosen.effective)
        self._known = Knowledge(self._limits, self._speeds, self._effort)
        self._arrivals = ArrivalRate()
        self._refusals = Refusals()
        self._cold_start = ColdStart(chosen.cold_start_epochs)
        self._epoch_seconds: dict[JobId, float] = {}  # on one GPU, at the last epoch's end
        self._search: Search | None = None
        self._seen = 0  # events; draws depend on it
        self._evolved, self._evolved_at = 0, -inf  # the event that the population answers, and when
        self._thinks, self._thought_at = True, -inf  # were all jobs looked at, and when last
        self._deployed_at = -inf
        self._new: set[JobId] = set()  # never deployed
        self._trained: set[JobId] = set()  # finished an epoch since the last update
        self._changed_at: dict[JobId, float] = {}
        self._started_at: dict[JobId, float] = {}  # the last time
        self._last_batch: dict[JobId, int] = {}  # at the end of its last epoch, or its first
        self._spoke: JobId | None = None  # whose epoch was the last event
        self._stirred: list[JobId] = []  # jobs of which it has changed what batch they may have
        self._asked: tuple[int, Question | None] = (-1, None)  # of that event; only a cache

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1
        self._spoke = None
        self._stirred = []
        if isinstance(event, PlanAdopted):
            self._learn_plan(event, view)
            return
        self._learn(event, view)
        if type(event) not in self.decides_on:
            return
        if self._settings.ripening:
            self._ripen(view)
        woke = isinstance(event, ev.Woke)
        self._thinks = woke or view.now == self._thought_at or view.now >= self._next_thought(view)
        if not self._thinks:
            return
        self._thought_at = view.now
        chosen = self._settings
        if woke or view.now > self._evolved_at:  # of many reports at one instant, once
            self._evolve(view, chosen.idle_generations if woke else chosen.generations)

    def _next_thought(self, view: View) -> float:
        """To look at all jobs takes time for each of them: a thousand submissions in a burst must
        not bring a thousand looks at a thousand jobs."""
        return self._thought_at + self._settings.thinking * len(view.jobs)

    def _learn(self, event: Event, view: View) -> None:
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
                self._stirred.append(event.job)
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
            case ev.JobEnded():
                self._forget(event.job, completed=event.reason.completed)
            case _:
                pass

    def _learn_epoch(self, job: JobView, view: View) -> None:
        self._spoke = job.id
        self._stirred.append(job.id)
        self._trained.add(job.id)
        if job.description is None:
            return  # it reports without having joined
        self._progress.saw_epoch(job.id, self._features([job])[0])
        self._epoch_seconds[job.id] = self._speeds.epoch_seconds(job) or 0.0
        if job.held is not None:
            self._last_batch[job.id] = job.held.batch
        rate = self._arrivals.at(view.now)
        sigma = rate / max(1, view.cluster.n_gpus) if self._settings.sigma == "per-gpu" else rate
        self._limits.finished_epoch(
            job,
            pressure=sigma * job.run_seconds_at(view.now),
            gpus=view.cluster.n_gpus,
            crowded=view.n_waiting > 0,
        )

    def _ripen(self, view: View) -> None:
        """Limits grow by the clock, in jobs that train."""
        for job in view.schedule:
            if self._limits.is_ripe(job, view.now):
                self._limits.ripen(view.job(job), view.now, gpus=view.cluster.n_gpus)
                self._stirred.append(job)

    def _learn_plan(self, event: PlanAdopted, view: View) -> None:
        """Only now is a job deployed, or left waiting by an update (Resume)."""
        moved = False
        for action in event.plan.actions:
            if isinstance(action, Start | Rescale | Prepare):
                moved = True
                self._new.discard(action.job)
                self._changed_at[action.job] = event.at
                self._refusals.asked(action.job, action.allocation.n_gpus)
                if isinstance(action, Start):
                    self._started_at[action.job] = event.at
                self._last_batch.setdefault(action.job, action.allocation.batch)
        if not moved or not self._may_update(view):
            return  # nothing, or second strokes and starts between two updates
        self._deployed_at = event.at
        self._trained.clear()
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
        self._new.discard(job)
        self._trained.discard(job)
        self._changed_at.pop(job, None)
        self._started_at.pop(job, None)
        self._last_batch.pop(job, None)

    def _evolve(self, view: View, generations: int) -> None:
        if not self._may_update(view):
            return  # nothing is deployed before the next update: it starts from there
        question = self._question(view)
        if question is None:
            return
        search = self._search_for(view)
        self._pose(search, question)
        search.evolve(question.problem, generations)
        self._evolved, self._evolved_at = self._seen, view.now

    def _pose(self, search: Search, question: Question) -> None:
        search.refresh(question.problem)
        if self._settings.seeds:
            search.add(optimum(question.problem), question.problem)

    def _search_for(self, view: View) -> Search:
        if self._search is None:
            chosen = self._settings
            size = chosen.population or view.cluster.n_gpus
            self._search = Search(
                max(2, min(size, max(2, view.cluster.n_gpus))),
                self._seed,
                options=self._options(),
            )
        return self._search

    def _twin(self, search: Search) -> Search:
        twin = Search(2, self._seed, options=self._options())
        twin.load(search.save())
        return twin

    def _options(self) -> SearchOptions:
        plain = SearchOptions() if self._settings.select_by_mean else PAPER
        return replace(plain, fill_waiting_first=self._settings.fill_waiting_first)

    # asking

    def _question(self, view: View) -> Question | None:
        """Made once for an event: to learn from it and to decide on it are one question."""
        if self._asked[0] != self._seen:
            self._asked = (self._seen, self._make_question(view))
        return self._asked[1]

    def _make_question(self, view: View) -> Question | None:
        jobs = movable(view)
        if not jobs:
            return None
        standings = {job.id: self._standing(job, view.now) for job in jobs}
        return ask(view, jobs, standings, self._work(jobs), self._known, self._settings)

    def _standing(self, job: JobView, now: float) -> Standing:
        stay = 0.0
        if self._settings.update == "events" and job.description is not None:
            epoch = 0.0
            if job.progress.step_seconds and job.wanted and job.wanted.batch:
                steps = job.description.dataset_size / job.wanted.batch
                epoch = steps * job.progress.step_seconds
            least = max(epoch, STAY_FACTOR * job.switch_cost.rescale_seconds)
            stay = min(self._settings.least_stay, least)
        return Standing(
            new=job.id in self._new,
            may_shrink=now - self._changed_at.get(job.id, -inf) >= stay,
            may_stop=now - self._started_at.get(job.id, -inf)
            >= self._settings.least_run * job.switch_cost.restart_seconds,
            last_batch=self._last_batch.get(job.id, 0),
            most=self._refusals.most(job.id, now),
        )

    def _work(self, jobs: list[JobView]) -> NDArray[np.float64]:
        """Remaining samples of each job, in each draw (Eq. 7): one bank for all candidates."""
        features = self._features(jobs)
        alpha, beta = self._progress.predict(features)
        if self._settings.score == "flow":
            rho = self._progress.quantiles(alpha, beta, self._settings.draws)
        else:
            rng = np.random.default_rng([self._seed, self._seen, _DRAWS])
            rho = self._progress.draws(alpha, beta, self._settings.draws, rng)
        return self._progress.remaining(features, rho)

    def _features_of(self, job: JobView) -> Features | None:
        return features_of(job, self._effort.done(job))

    def _features(self, jobs: list[JobView]) -> list[Features]:
        known = [job.description.dataset_size for job in jobs if job.description]
        usual = sum(known) // len(known) if known else UNKNOWN_DATASET
        found: list[Features] = []
        for job in jobs:
            features = self._features_of(job)
            if features is None:  # it has not joined: its kind may tell
                shape = self._effort.shape(job)
                features = Features(
                    dataset_size=shape.dataset_size if shape else usual,
                    samples=0,
                    kind=job.job.kind,
                    declared_epochs=job.job.epochs,
                )
            found.append(features)
        if self._settings.score != "flow":
            return found
        seconds = [self._speeds.epoch_seconds(self._effort.like_its_kind(job)) for job in jobs]
        epochs = self._cold_start.usual_epochs(seconds)
        return [replace(f, usual_epochs=n) for f, n in zip(found, epochs, strict=True)]

    # deciding

    def decide(self, view: View) -> Decision:
        forecasts = self._forecasts(view)
        startable = view.n_waiting > 0 and len(view.free) > 0
        may_act = startable or self._may_update(view)
        if not may_act or not self._thinks:
            # between two updates batches follow the limits, and free GPUs are given away
            wake = -inf if may_act else self._deployed_at + self._settings.spacing
            wake = max(wake, self._next_thought(view)) if len(view.jobs) else inf
            schedule, notes = self._rebatch(view)
            return Decision(schedule=schedule, wake_at=wake, notes=notes, forecasts=forecasts)
        question = self._question(view)
        if question is None:
            return Decision(schedule=view.schedule, forecasts=forecasts)
        may_update, wait_until = self._update_rule(view, question)
        if may_update and self._search is not None:
            search = self._search
            if self._evolved != self._seen:  # deciding must not change what was learned
                search = self._twin(search)
                self._pose(search, question)
            counts = question.rounded(search.best(question.problem))
        else:
            counts = _only_starts(question)
        schedule, notes = deploy(
            view,
            question,
            counts,
            packed=may_update and self._settings.placement == "occurrence",
            choosy=self._settings.switching_cost,
            stay=self._settings.stay_seconds,
        )
        return Decision(
            schedule=schedule,
            wake_at=self._wake_at(view, wait_until),
            notes=notes,
            forecasts=forecasts,
        )

    def _rebatch(self, view: View) -> tuple[Schedule, dict[JobId, str]]:
        """Jobs whose limit or speed has changed may take another batch on the GPUs they have."""
        edit = view.schedule.edit()
        notes = {}
        for job in (view.job(job) for job in self._stirred if job in view.jobs):
            if job.pinned or job.wanted is None or job.description is None:
                continue
            size = job.wanted.n_gpus
            standing = self._standing(job, view.now)
            choices = choices_of(view, job, size, size, self._known, standing, self._settings)
            left = float(self._work([job]).mean())
            stay = self._settings.stay_seconds
            chosen = allocate(job, choices, left, job.wanted.gpus, choosy=True, stay=stay)
            if chosen != job.wanted:
                edit.put(job.id, chosen)
                limit = self._limits.of(job)
                notes[job.id] = f"batch {job.wanted.batch} to {chosen.batch}, limit {limit}"
        return (edit.done(), notes) if notes else (view.schedule, {})

    def _update_rule(self, view: View, question: Question) -> tuple[bool, float]:
        """May the schedule be changed now; if not, when is it worth asking again?"""
        if self._settings.update == "epochs":
            running = [job.id for job in question.jobs if job.wanted is not None]
            return all(job in self._trained for job in running), inf
        return self._may_update(view), self._deployed_at + self._settings.spacing

    def _may_update(self, view: View) -> bool:
        chosen = self._settings
        return chosen.update == "epochs" or view.now >= self._deployed_at + chosen.spacing

    def _wake_at(self, view: View, wait_until: float) -> float:
        """Evolution goes on between events, until it has stopped finding anything better."""
        wake = inf
        search = self._search
        if self._settings.idle_generations and search and search.stalled < self._settings.patience:
            wake = view.now + IDLE_SECONDS[self._settings.update]
        if wait_until > view.now:
            wake = min(wake, wait_until)
        return wake

    def _forecasts(self, view: View) -> dict[JobId, Forecast]:
        """Of the job that has just finished an epoch: when it will end, and how sure that is."""
        if self._spoke is None or self._spoke not in view.jobs:
            return {}
        job = view.job(self._spoke)
        step = job.progress.step_seconds
        if job.description is None or not step or job.held is None or not job.held.batch:
            return {}
        features = self._features([job])[0]
        alpha, beta = self._progress.predict([features])
        middle, low, high = self._progress.forecast(features, float(alpha[0]), float(beta[0]))
        second = job.held.batch / step * self._effort.worth(job)  # (effective) samples
        return {
            job.id: Forecast(
                *(round(view.now + samples / second, 3) for samples in (middle, low, high))
            )
        }

    # memory

    def save(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "evolved": self._evolved,
            "evolved_at": None if self._evolved_at == -inf else self._evolved_at,
            "thinks": self._thinks,
            "thought_at": None if self._thought_at == -inf else self._thought_at,
            "spoke": self._spoke,
            "stirred": list(self._stirred),
            "deployed_at": None if self._deployed_at == -inf else self._deployed_at,
            "new": sorted(self._new),
            "trained": sorted(self._trained),
            "changed_at": dict(self._changed_at),
            "started_at": dict(self._started_at),
            "last_batch": dict(self._last_batch),
            "progress": self._progress.save(),
            "limits": self._limits.save(),
            "speeds": self._speeds.save(),
            "effort": self._effort.save(),
            "arrivals": self._arrivals.save(),
            "refusals": self._refusals.save(),
            "cold_start": self._cold_start.save(),
            "epoch_seconds": dict(self._epoch_seconds),
            "search": None if self._search is None else self._search.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seen, self._evolved = int(saved["seen"]), int(saved["evolved"])
        self._evolved_at = -inf if saved["evolved_at"] is None else float(saved["evolved_at"])
        self._thinks = bool(saved["thinks"])
        self._thought_at = -inf if saved["thought_at"] is None else float(saved["thought_at"])
        self._spoke = saved["spoke"]
        self._stirred = list(saved["stirred"])
        self._deployed_at = -inf if saved["deployed_at"] is None else float(saved["deployed_at"])
        self._new = set(saved["new"])
        self._trained = set(saved["trained"])
        self._changed_at = {JobId(job): float(at) for job, at in saved["changed_at"].items()}
        self._started_at = {JobId(job): float(at) for job, at in saved["started_at"].items()}
        self._last_batch = {JobId(job): int(n) for job, n in saved["last_batch"].items()}
        self._progress.load(saved["progress"])
        self._limits.load(saved["limits"])
        self._speeds.load(saved["speeds"])
        self._effort.load(saved["effort"])
        self._arrivals.load(saved["arrivals"])
        self._refusals.load(saved["refusals"])
        self._cold_start.load(saved["cold_start"])
        self._epoch_seconds = {JobId(job): float(s) for job, s in saved["epoch_seconds"].items()}
        if saved["search"] is not None:
            self._search = Search(2, self._seed, options=self._options())
            self._search.load(saved["search"])
        self._asked = (-1, None)


class OnesPaper(Ones):
    """The closest reading of the text that can run."""

    Settings: ClassVar[type[OnesSettings]] = PaperSettings


def _only_starts(question: Question) -> NDArray[np.int32]:
    """Between two updates nobody is touched, but waiting jobs take GPUs that are free."""
    problem = question.problem
    kept: NDArray[np.int32] = problem.held.copy()
    left = problem.gpus - int(kept.sum())
    # new ones first, then as they came
    order = sorted(range(len(kept)), key=lambda i: (not problem.new[i], i))
    for i in order:
        if kept[i] == 0 and problem.most[i] and problem.least[i] <= left:
            kept[i] = problem.least[i]
            left -= int(problem.least[i])
    return kept
