"""ONES as the authors' prototype ran it: an iteration of search, limits and update every second.

The variants are two versions of the prototype: `a16` has a population of 16, moves few GPUs and
caps limits; `a64` has a population of 64, packs by occurrence and has no caps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import Any, ClassVar

import numpy as np

from ones.core import events as ev
from ones.core.cluster import Gpu, NodeId
from ones.core.events import CAPACITY_EVENTS, Event
from ones.core.job import Forecast, JobId
from ones.core.plan import PlanAdopted, Stop
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.models.settings import check_settings, setting
from ones.policies.ones_paper.artifact_limits import GpuLimits, batch_of
from ones.policies.ones_paper.artifact_search import PrototypeSearch
from ones.policies.ones_paper.forecasts import forecast_of
from ones.policies.ones_paper.genome import Ints
from ones.policies.ones_paper.history import features_of
from ones.policies.ones_paper.notes import deploy
from ones.policies.ones_paper.placements import PLACEMENTS, Candidate, Places
from ones.policies.ones_paper.pool import Pool
from ones.policies.ones_paper.population import Population
from ones.policies.ones_paper.prediction import Prediction
from ones.policies.ones_paper.predictors import PREDICTORS
from ones.policies.ones_paper.problem import Problem
from ones.policies.ones_paper.search import best
from ones.policies.ones_paper.throughputs import THROUGHPUTS

#: seconds between two iterations
CLOCK = 1.0
#: K and the placement of each variant
VARIANTS = {"a16": (16, "least-moves"), "a64": (64, "occurrence")}
#: samples of an epoch of a job that has not joined
UNKNOWN_DATASET = 10_000


class OnesArtifact:
    """The policy `ones-artifact`."""

    decides_on: ClassVar[frozenset[type[Event]]] = CAPACITY_EVENTS
    native_mechanism: ClassVar[str] = "elastic"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Settings:
        """The version of the prototype, and what can be changed in it."""

        variant: str = setting(
            "a16", "version of the prototype: a16 (the last) or a64", options=tuple(VARIANTS)
        )
        mutation: float = setting(0.3, "probability that mutation preempts a job", least=0)
        blocking: float = setting(
            60.0, "maximum seconds for which an iteration waits for workers that start", least=0
        )
        predictor: str = setting(
            "constant", "epochs left: a constant, as in effect, or a working predictor",
            options=tuple(PREDICTORS),
        )  # fmt: skip
        throughput: str = setting(
            "interpolated", "rates of other numbers of GPUs", options=tuple(THROUGHPUTS)
        )

        def __post_init__(self) -> None:
            check_settings(self)
            if not self.mutation <= 1:
                raise ValueError(f"mutation {self.mutation} is above 1")

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        self._seed = seed
        population, self._placement = VARIANTS[self._settings.variant]
        self._search = PrototypeSearch(population, self._settings.mutation)
        self._prediction = Prediction(
            self._settings.predictor, seed, prior_epochs=30.0, prototype=True
        )
        self._throughput = THROUGHPUTS[self._settings.throughput]()
        self._limits = GpuLimits(capped=self._settings.variant == "a16")
        self._population = Population()
        self._iterations = 0
        self._next_at = -inf  # time of the next iteration
        self._ordered_at = -inf  # time of the last change of the schedule
        self._unsettled = False  # the schedule has changed, and its workers do not all run yet
        self._run_seconds: dict[JobId, float] = {}  # T_j at the last report
        self._reported: JobId | None = None  # the job of the last event, an epoch
        self._places: Places | None = None  # outcome of the iteration at the last event
        self._update = False  # whether the outcome may change running jobs

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._reported, self._places = None, None
        if isinstance(event, PlanAdopted):
            for action in event.plan.actions:
                if isinstance(action, Stop):
                    self._limits.stopped(action.job)
            self._ordered_at, self._unsettled = event.at, True
            return
        self._learn(event, view)
        if type(event) in self.decides_on and view.now >= self._next_at:
            self._iterate(view)

    def _learn(self, event: Event, view: View) -> None:
        match event:
            case ev.StepsDone() | ev.ThroughputMeasured():
                self._limits.reported(event.job)
                if isinstance(event, ev.ThroughputMeasured):
                    self._throughput.measured(view.job(event.job))
            case ev.EpochFinished():
                job = view.job(event.job)
                self._reported = job.id
                self._limits.finished_epoch(job, event.samples)
                self._throughput.finished_epoch(job)
                self._run_seconds[job.id] = job.run_seconds_at(view.now)
                if job.description is not None:
                    self._prediction.add_epoch(job.id, features_of(job, UNKNOWN_DATASET))
            case ev.JobEnded():
                self._prediction.end(event.job, completed=event.reason.completed)
                self._throughput.forget(event.job)
                self._limits.forget(event.job, self._run_seconds.pop(event.job, None))
            case _:
                pass

    # one iteration

    def _iterate(self, view: View) -> None:
        jobs = list(view.jobs.values())
        if not jobs:
            self._next_at = -inf  # the next job is deployed at once
            return
        self._next_at = view.now + CLOCK
        waits = [job for job in jobs if job.blocked and job.wanted is None]
        changing = any(job.pinned and job.job.elastic for job in jobs if job not in waits)
        if changing and view.now < self._ordered_at + self._settings.blocking:
            return  # deployment blocks
        running = [job for job in jobs if job.wanted is not None]
        if self._unsettled:
            self._limits.deployed(job.id for job in running)
            self._unsettled = False
        pool = Pool.of(view, jobs)
        if not pool.jobs or not pool.gpus:
            return
        self._iterations += 1
        rng = np.random.default_rng([self._seed, self._iterations])
        self._limits.offer(jobs, view.cluster.n_gpus, view.now)
        problem = self._problem(view, pool, rng)
        young = np.array([not self._limits.is_executed(job.id) for job in pool.jobs])
        self._population.evolve(pool, problem, self._search, rng, exempt=young, iterations=1)
        genomes = self._population.genomes
        self._choose(view, pool, self._placed(view, pool, genomes[best(genomes, problem)]))

    def _problem(self, view: View, pool: Pool, rng: np.random.Generator) -> Problem:
        """The young, with fewer than two counted epochs, cost nothing; idle GPUs neither."""
        jobs, gpus = pool.jobs, len(pool.gpus)
        least = np.array([job.job.min_gpus for job in jobs], np.int32)
        behind = _outranked(jobs, gpus)
        allowed = np.array(
            [0 if job.id in behind else self._allowed(view, job, gpus) for job in jobs], np.int32
        )
        executed = np.array([self._limits.is_executed(job.id) for job in jobs], np.bool_)
        limits = [self._limits.of(job.id).most for job in jobs]
        most = np.minimum([self._limits.now(job) for job in jobs], allowed).astype(np.int32)
        new = ~executed & np.array([job.wanted is None for job in jobs])
        # padding brings new jobs on their least; the young that run neither grow nor come back
        larger = np.where(executed, np.maximum(limits, most), np.where(new, least, 0))
        later = np.minimum(larger, allowed)
        later = np.where(later >= least, later, 0).astype(np.int32)
        cost = np.zeros((len(jobs), gpus + 1))
        sizes = np.arange(1, gpus + 1)
        width = max(1, view.cluster.width)
        for i in np.flatnonzero(executed).tolist():
            batches = np.array([batch_of(jobs[i], n) for n in sizes.tolist()], np.int64)
            cost[i, 1:] = sizes / self._throughput.rates(jobs[i], batches, width)
        work = np.zeros((1, len(jobs)))
        if executed.any():
            known = [jobs[i] for i in np.flatnonzero(executed).tolist()]
            features = [features_of(job, UNKNOWN_DATASET) for job in known]
            drawn = self._prediction.draw(features, 1, rng)
            work[0, executed] = drawn[0]
        processed = np.array([job.run_seconds_at(view.now) for job in jobs])
        first = np.zeros(0, np.int32)
        return Problem(gpus, least, most, later, first, new, processed, cost, work, 0.0)

    def _allowed(self, view: View, job: JobView, gpus: int) -> int:
        """GPUs that the user, the owner's limit and the cluster allow."""
        room = view.room(job.job.owner)
        most = min(gpus, job.max_gpus or gpus)
        if not job.job.elastic or job.description is None:
            most = min(most, job.job.min_gpus)
        if room is not None:
            most = min(most, (job.wanted.n_gpus if job.wanted else 0) + room)
        return max(most, 0)

    def _placed(self, view: View, pool: Pool, row: Ints) -> Places:
        """The GPUs of each job; running jobs in the order of their first GPU, then the others."""
        column = {gpu: i for i, gpu in enumerate(pool.gpus)}
        sizes = pool.sizes(view, row)
        first = {
            job: min((column[gpu] for gpu in pool.staying[job]), default=len(column))
            for job in sizes
        }
        order = sorted(sizes, key=lambda job: first[job])
        candidate = Candidate(pool.gpus, {job: sizes[job] for job in order}, pool.staying)
        return PLACEMENTS[self._placement](view, candidate)

    def _choose(self, view: View, pool: Pool, places: Places) -> None:
        """Update: starts on idle GPUs at once; the rest if all affected jobs owe no epoch."""
        affected = [
            job.id
            for job in pool.jobs
            if job.wanted is not None and places.get(job.id, ()) != job.wanted.gpus
        ]
        self._update = all(self._limits.may_change(job) for job in affected)
        if self._update:
            for job in pool.jobs:
                if job.wanted is None and job.started_at is not None and job.id not in places:
                    self._limits.rejected(job.id)
            self._places = places
            return
        free = set(view.free)
        self._places = {
            job.id: places[job.id]
            for job in pool.jobs
            if job.wanted is None and job.id in places and free.issuperset(places[job.id])
        }

    # deciding

    def decide(self, view: View) -> Decision:
        forecasts = self._forecasts(view)
        wake_at = max(self._next_at, view.now + 1e-3) if view.jobs else inf
        if self._places is None:
            return Decision(schedule=view.schedule, wake_at=wake_at, forecasts=forecasts)
        jobs = [job for job in view.jobs.values() if not job.pinned]
        allocations = {
            job.id: _allocation(job, self._places[job.id]) for job in jobs if job.id in self._places
        }
        limits = {job.id: batch_of(job, max(1, self._limits.of(job.id).most)) for job in jobs}
        schedule, notes = deploy(view, jobs, allocations, limits, update=self._update)
        return Decision(schedule=schedule, wake_at=wake_at, notes=notes, forecasts=forecasts)

    def _forecasts(self, view: View) -> dict[JobId, Forecast]:
        if self._reported is None or self._reported not in view.jobs:
            return {}
        return forecast_of(view.job(self._reported), view.now, self._prediction)

    # memory

    def save(self) -> dict[str, Any]:
        places = None
        if self._places is not None:
            places = {job: [list(gpu) for gpu in gpus] for job, gpus in self._places.items()}
        return {
            "prediction": self._prediction.save(),
            "throughput": self._throughput.save(),
            "limits": self._limits.save(),
            "population": self._population.save(),
            "iterations": self._iterations,
            "next_at": None if self._next_at == -inf else self._next_at,
            "ordered_at": None if self._ordered_at == -inf else self._ordered_at,
            "unsettled": self._unsettled,
            "run_seconds": dict(self._run_seconds),
            "reported": self._reported,
            "places": places,
            "update": self._update,
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._prediction.load(saved["prediction"])
        self._throughput.load(saved["throughput"])
        self._limits.load(saved["limits"])
        self._population.load(saved["population"])
        self._iterations = int(saved["iterations"])
        self._next_at = -inf if saved["next_at"] is None else float(saved["next_at"])
        self._ordered_at = -inf if saved["ordered_at"] is None else float(saved["ordered_at"])
        self._unsettled, self._update = bool(saved["unsettled"]), bool(saved["update"])
        self._run_seconds = {JobId(job): float(s) for job, s in saved["run_seconds"].items()}
        self._reported, self._places = saved["reported"], None
        if saved["places"] is not None:
            self._places = {
                JobId(job): tuple(Gpu(NodeId(node), int(index)) for node, index in gpus)
                for job, gpus in saved["places"].items()
            }


def _outranked(jobs: list[JobView], gpus: int) -> set[JobId]:
    """Waiting jobs that come after enough jobs of a higher priority for all GPUs.

    The prototype knows no priorities: jobs of equal priority are treated as it does.
    """
    behind: set[JobId] = set()
    needed = 0
    waiting = sorted((job for job in jobs if job.wanted is None), key=lambda job: -job.priority)
    for _, equal in groupby(waiting, key=lambda job: job.priority):
        group = list(equal)
        if needed >= gpus:
            behind.update(job.id for job in group)
        needed += sum(job.job.min_gpus for job in group)
    return behind


def _allocation(job: JobView, gpus: tuple[Gpu, ...]) -> Allocation:
    batch = batch_of(job, len(gpus))
    if not batch:
        return Allocation.as_scripted(gpus)
    return Allocation.even(gpus, batch, job.local_limit)
