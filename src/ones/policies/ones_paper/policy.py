"""ONES as the paper describes it: `observe` learns and evolves a population, `decide` deploys S_*.

Read beside the paper: genome and operators (`genome`, `operators`, `fills`), search (`search`),
prediction (`history`, `predictors`, `prediction`), limits (`limits`, `scale_downs`), update
(`updates`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.events import PROGRESS_EVENTS, Event
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Allocation
from ones.core.view import JobView, View
from ones.models.packing import GpuPool
from ones.models.sharing import OwnerQuota
from ones.policies.ones_paper.learning import Learned
from ones.policies.ones_paper.notes import deploy
from ones.policies.ones_paper.placements import PLACEMENTS, Candidate, Places
from ones.policies.ones_paper.pool import Pool
from ones.policies.ones_paper.population import Population
from ones.policies.ones_paper.problem import Problem, first_jobs, idle_charge
from ones.policies.ones_paper.search import FILL_DRAWS, PaperSearch, best
from ones.policies.ones_paper.settings import PaperSettings

_DRAWS, _SEARCH = 1, 2  # what a random generator is for


class OnesPaper:
    """The policy `ones-paper`."""

    decides_on: ClassVar[frozenset[type[Event]]] = PROGRESS_EVENTS - {ev.WorkerReady}
    native_mechanism: ClassVar[str] = "elastic"
    Settings: ClassVar[type[PaperSettings]] = PaperSettings

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = self.Settings(**settings)
        self._seed = seed
        self._learned = Learned(self._settings, seed)
        self._population = Population()
        self._seen = 0  # number of events; random numbers follow from it
        self._evolved = -1  # the event that the population was evolved for
        self._posed: tuple[int, tuple[Pool, Problem] | None] = (-1, None)  # by event; a cache

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1
        if isinstance(event, PlanAdopted):
            self._learned.adopted(event, view)
            return
        self._learned.learn(event, view)
        if type(event) not in self.decides_on:
            self._learned.gate.close()
            return
        jobs = list(view.jobs.values())
        self._learned.gate.look(jobs)
        posed = self._pose(view, jobs)
        if posed is not None:
            self._population.evolve(
                *posed,
                self._search(view),
                self._rng(_SEARCH),
                exempt=np.zeros(posed[1].jobs, np.bool_),
                iterations=self._settings.generations,
            )
            self._evolved = self._seen

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._seen, purpose])

    def _search(self, view: View) -> PaperSearch:
        chosen = self._settings
        population = max(2, chosen.population or view.cluster.n_gpus)  # K = ‖C‖ is suggested
        return PaperSearch(population, chosen.mutation, chosen.fill)

    # the search problem

    def _pose(self, view: View, jobs: list[JobView] | None = None) -> tuple[Pool, Problem] | None:
        """Made once for an event: evolution and decision are about the same problem."""
        if self._posed[0] != self._seen:
            pool = Pool.of(view, jobs or list(view.jobs.values()))
            posed = (pool, self._problem(view, pool)) if pool.jobs and pool.gpus else None
            self._posed = (self._seen, posed)
        return self._posed[1]

    def _problem(self, view: View, pool: Pool) -> Problem:
        jobs, gpus = pool.jobs, len(pool.gpus)
        limits, throughput = self._learned.limits, self._learned.throughput
        least = np.array([job.job.min_gpus for job in jobs], np.int32)
        most = np.array([self._most_gpus(view, job, gpus) for job in jobs], np.int32)
        cost = np.zeros((len(jobs), max(1, int(most.max())) + 1))
        for i, job in enumerate(jobs):
            sizes = np.arange(1, cost.shape[1])
            batches = limits.batches(job, len(sizes))
            cost[i, 1:] = sizes / throughput.rates(job, batches, max(1, view.cluster.width))
        features = self._learned.features(jobs)
        work = self._learned.prediction.draw(features, 1 + FILL_DRAWS, self._rng(_DRAWS))
        new = np.array([job.id in self._learned.new for job in jobs], np.bool_)
        return Problem(
            gpus=gpus,
            least=least,
            most=most,
            later=most,
            first=first_jobs(new, least, most, gpus),
            new=new,
            processed=np.array([job.run_seconds_at(view.now) for job in jobs]),
            cost=cost,
            work=work,
            idle_charge=idle_charge(cost, work),
        )

    def _most_gpus(self, view: View, job: JobView, gpus: int) -> int:
        """floor(R_j c_j / B_j), within the limits of job, owner and cluster; 0: it may not run."""
        least, room = job.job.min_gpus, view.room(job.job.owner)
        most = min(max(least, self._learned.limits.most_gpus(job)), gpus, job.max_gpus or gpus)
        if room is not None:
            most = min(most, (job.wanted.n_gpus if job.wanted else 0) + room)
        return most if most >= least else 0

    # deciding

    def decide(self, view: View) -> Decision:
        forecasts = self._learned.forecasts(view)
        posed = self._pose(view)
        if posed is None:
            return Decision(schedule=view.schedule, forecasts=forecasts)
        pool, problem = posed
        update = self._update(view, pool, problem) if self._learned.gate.may_open else None
        places = self._starts(view, pool, problem) if update is None else update
        allocations = {job: self._allocate(view.job(job), gpus) for job, gpus in places.items()}
        limits = {job.id: self._learned.limits.of(job) for job in pool.jobs}
        schedule, notes = deploy(view, pool.jobs, allocations, limits, update=update is not None)
        return Decision(schedule=schedule, notes=notes, forecasts=forecasts)

    def _update(self, view: View, pool: Pool, problem: Problem) -> Places | None:
        """Update: the GPUs of all jobs in S_*; None: jobs that it affects owe an epoch."""
        genomes = self._population.genomes if self._evolved == self._seen else None
        if genomes is None:
            genomes = self._population.refreshed(
                pool, problem, self._search(view), self._rng(_SEARCH)
            )
        sizes = pool.sizes(view, genomes[best(genomes, problem)])
        candidate = Candidate(pool.gpus, sizes, pool.staying)
        places = PLACEMENTS[self._settings.placement](view, candidate)
        affected = [
            job.id
            for job in pool.jobs
            if job.wanted is not None and self._allocate(job, places.get(job.id, ())) != job.wanted
        ]
        return places if self._learned.gate.allows(affected) else None

    def _starts(self, view: View, pool: Pool, problem: Problem) -> Places:
        """Between updates waiting jobs start on free GPUs, new ones first; no other job changes."""
        free, quota = GpuPool(view), OwnerQuota(view, ())
        waiting = [
            (not problem.new[i], -job.priority, job.number, job)
            for i, job in enumerate(pool.jobs)
            if job.wanted is None and problem.most[i]
        ]
        places: Places = {}
        for *_, job in sorted(waiting, key=lambda entry: entry[:3]):
            size = job.job.min_gpus
            if size <= len(free) and quota.take(job.job.owner, size):
                gpus = free.place(size)
                assert gpus is not None
                places[job.id] = gpus
        return places

    def _allocate(self, job: JobView, gpus: tuple[Gpu, ...]) -> Allocation | None:
        """The workers of a job with their local batches b_j^i (Eq. 1, Eq. 2)."""
        if not gpus:
            return None
        batch = int(self._learned.limits.batches(job, len(gpus))[-1])
        if not batch:
            return Allocation.as_scripted(gpus)
        return Allocation.even(gpus, batch, job.local_limit)

    # memory

    def save(self) -> dict[str, Any]:
        return {
            "seen": self._seen,
            "evolved": self._evolved,
            "learned": self._learned.save(),
            "population": self._population.save(),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self._seen, self._evolved = int(saved["seen"]), int(saved["evolved"])
        self._learned.load(saved["learned"])
        self._population.load(saved["population"])
        self._posed = (-1, None)
