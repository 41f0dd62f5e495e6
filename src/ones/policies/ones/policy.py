"""The ONES policy: learns from events, evolves candidate schedules, deploys the best one.

`observe` learns and evolves the population. `decide` chooses the best schedule, if the update rule
allows a change, and assigns GPUs; it changes no state, so repeated calls return the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ones.core import events as ev
from ones.core.events import PROGRESS_EVENTS, Event
from ones.core.job import JobId
from ones.core.plan import PlanAdopted
from ones.core.policy import Decision
from ones.core.schedule import Schedule
from ones.core.view import JobView, View
from ones.policies.ones.place.deploy import allocate, deploy
from ones.policies.ones.place.reasons import rebatched
from ones.policies.ones.place.search import Search
from ones.policies.ones.predict.learning import Learned
from ones.policies.ones.predict.memory import Remembers
from ones.policies.ones.score.choices import choices_of
from ones.policies.ones.score.limits import largest_batch
from ones.policies.ones.score.problem import optimum
from ones.policies.ones.score.problem_builder import PosedProblem, build_problem, changeable_jobs
from ones.policies.ones.settings import OnesSettings

#: members of the population that are placed on nodes and compared
CANDIDATES = 16
#: least seconds between two searches, for each job
SECONDS_PER_JOB = 0.0005


#: time of something that never happened; JSON has no infinity
NEVER = -1e18


class Ones(Remembers):
    # workers of a start become ready one by one; the job's first report follows
    decides_on: ClassVar[frozenset[type[Event]]] = (PROGRESS_EVENTS | {ev.ThroughputMeasured}) - {
        ev.WorkerReady
    }
    native_mechanism: ClassVar[str] = "elastic"
    Settings: ClassVar[type[OnesSettings]] = OnesSettings
    memory: ClassVar[Mapping[str, Any]] = {
        "_seen": int,
        "_evolved": int,
        "_evolved_at": float,
        "_searched_at": float,
        "_has_reports": bool,
        "_has_urgent_events": bool,
        "_deployed_at": float,
        "_learned": None,
    }

    def __init__(self, *, seed: int = 0, **settings: Any) -> None:
        self._settings = chosen = self.Settings(**settings)
        self._seed = seed
        self._learned = Learned(chosen, seed)
        self._search: Search | None = None
        self._seen = 0  # number of events
        self._evolved, self._evolved_at = 0, NEVER  # event and time of the last search
        self._searched_at = NEVER  # time of the last search, also without generations
        self._has_reports = False  # routine reports since then
        self._has_urgent_events = False  # other events since then
        self._deployed_at = NEVER
        self._posed: tuple[int, PosedProblem | None] = (-1, None)  # cache: event and its problem

    # learning

    def observe(self, event: Event | PlanAdopted, view: View) -> None:
        self._seen += 1
        if isinstance(event, PlanAdopted):
            deployed = self._learned.adopted(event)
            if deployed and self._may_update(view):  # not second steps or starts between updates
                self._deployed_at = event.at
            return
        self._learned.learn(event, view)
        if type(event) not in self.decides_on:
            return
        woke = isinstance(event, ev.Woke)
        if not woke:
            report = self._is_routine_report(event, view)
            self._has_reports, self._has_urgent_events = (
                self._has_reports or report,
                self._has_urgent_events or not report,
            )
        # nothing is deployed before the next update: the event waits until then
        if not self._may_update(view) or not (woke or self._may_search(view)):
            return
        idle = not (self._has_reports or self._has_urgent_events)
        self._searched_at, self._has_reports, self._has_urgent_events = view.now, False, False
        if woke or view.now > self._evolved_at:  # once for all events of one instant
            self._evolve(view, 0 if idle else self._settings.generations)

    def _may_search(self, view: View) -> bool:
        return view.now == self._searched_at or view.now >= self._next_search(view)

    def _next_search(self, view: View) -> float:
        """Returns the earliest time of the next search.

        The time of a search grows with the jobs, so a burst of submissions must not cause a search
        for each. Routine reports wait for the next update.
        """
        rest = SECONDS_PER_JOB * len(view.jobs)
        if not self._has_urgent_events:
            rest = max(rest, self._settings.spacing)
        return self._searched_at + rest

    def _is_routine_report(self, event: Event, view: View) -> bool:
        """Returns whether a running job reports in a known configuration: no reason to search."""
        if isinstance(event, ev.ThroughputMeasured):
            known = view.job(event.job).profile.get(event.configuration)
            return known is not None and known.steps > event.steps
        return isinstance(event, ev.EpochFinished)

    def _evolve(self, view: View, generations: int) -> None:
        posed = self._posed_problem(view)
        if posed is None:
            return
        search = self._search_for(view)
        self._seed_search(search, posed)
        search.evolve(posed.problem, generations)
        self._evolved, self._evolved_at = self._seen, view.now

    def _seed_search(self, search: Search, posed: PosedProblem) -> None:
        search.refresh(posed.problem)
        search.add(optimum(posed.problem), posed.problem)

    def _search_for(self, view: View) -> Search:
        if self._search is None:
            size = max(2, min(self._settings.population, view.cluster.n_gpus))
            self._search = Search(size, self._seed)
        return self._search

    def _copy_of(self, search: Search) -> Search:
        twin = Search(2, self._seed)
        twin.load(search.save())
        return twin

    # problem

    def _posed_problem(self, view: View) -> PosedProblem | None:
        """Returns the problem of the last event, which `observe` and `decide` share."""
        if self._posed[0] != self._seen:
            self._posed = (self._seen, self._build_problem(view))
        return self._posed[1]

    def _build_problem(self, view: View) -> PosedProblem | None:
        jobs = changeable_jobs(view)
        if not jobs:
            return None
        learned = self._learned
        statuses = {job.id: learned.status(job, view.now) for job in jobs}
        work = learned.work(jobs)
        return build_problem(view, jobs, statuses, work, learned.known, self._settings)

    # deciding

    def decide(self, view: View) -> Decision:
        forecasts = self._learned.forecasts(view)
        may_act = self._may_update(view) or _can_start_fixed_size(view)
        if not may_act or not self._may_search(view):
            # Between two updates only batches follow the limits. A new job waits, too,
            # GPUs free or not: on what happens to be free it would start with the wrong number.
            wake = -inf if may_act else self._deployed_at + self._settings.spacing
            wake = max(wake, self._next_search(view)) if len(view.jobs) else inf
            schedule, notes = self._change_batches(view)
            return Decision(schedule=schedule, wake_at=wake, notes=notes, forecasts=forecasts)
        posed = self._posed_problem(view)
        if posed is None:
            return Decision(schedule=view.schedule, forecasts=forecasts)
        may_change = self._may_update(view)
        if may_change and self._search is not None:
            search = self._search
            if self._evolved != self._seen:  # deciding must not change what was learned
                search = self._copy_of(search)
                self._seed_search(search, posed)
            ranked = search.ranked(posed.problem, CANDIDATES)
            candidates = [posed.round_counts(counts) for counts in ranked]
        else:
            candidates = [_fixed_size_starts(posed)]
        schedule, notes = deploy(
            view,
            posed,
            candidates,
            may_change=may_change,
            batch_seconds=self._learned.batch_changes.seconds,
            speeds=self._learned.known.speeds,
        )
        return Decision(
            schedule=schedule,
            wake_at=self._wake_at(view, may_change=may_change),
            notes=notes,
            forecasts=forecasts,
        )

    def _change_batches(self, view: View) -> tuple[Schedule, dict[JobId, str]]:
        """Changes batches on unchanged GPUs, of jobs with a changed limit or speed."""
        learned = self._learned
        horizon = self._settings.stay_share * learned.known.residence_times.mean_seconds(view.now)
        edit = view.schedule.edit()
        notes = {}
        for job in (view.job(job) for job in learned.changed_jobs if job in view.jobs):
            if job.pinned or job.wanted is None or job.description is None:
                continue
            size = job.wanted.n_gpus
            status = learned.status(job, view.now)
            choices = choices_of(view, job, size, size, learned.known, status, self._settings)
            if choices.batches[choices.at(size)] == job.wanted.batch:
                continue
            left = float(learned.work([job]).mean())
            chosen = allocate(
                job,
                choices,
                left,
                job.wanted.gpus,
                horizon=horizon,
                cost=learned.batch_changes.seconds,
            )
            if chosen != job.wanted:
                edit.put(job.id, chosen)
                limit = largest_batch(job, self._settings)
                notes[job.id] = rebatched(job.wanted, chosen, choices, limit)
        return (edit.done(), notes) if notes else (view.schedule, {})

    def _may_update(self, view: View) -> bool:
        return view.now >= self._deployed_at + self._settings.spacing

    def _wake_at(self, view: View, *, may_change: bool) -> float:
        return inf if may_change else self._deployed_at + self._settings.spacing

    # memory

    def save(self) -> dict[str, Any]:
        return super().save() | {"search": self._search and self._search.save()}

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        if saved["search"] is not None:
            self._search = Search(2, self._seed)
            self._search.load(saved["search"])
        self._posed = (-1, None)


def _can_start_fixed_size(view: View) -> bool:
    """Returns whether a waiting job of a fixed size fits the free GPUs."""
    free = len(view.free)
    return free > 0 and any(_has_fixed_size(j) and j.job.min_gpus <= free for j in view.waiting)


def _has_fixed_size(job: JobView) -> bool:
    return not job.job.elastic or job.max_gpus == job.job.min_gpus


def _fixed_size_starts(posed: PosedProblem) -> NDArray[np.int32]:
    """Returns sizes that only start waiting jobs of a fixed size on free GPUs.

    GPUs that are the minimum of an elastic job that waits longer stay free.
    """
    problem = posed.problem
    kept: NDArray[np.int32] = problem.held.copy()
    left = problem.gpus - int(kept.sum())
    for i in range(len(kept)):
        if kept[i] or not problem.most[i] or problem.least[i] > left:
            continue
        left -= int(problem.least[i])
        if _has_fixed_size(posed.jobs[i]):
            kept[i] = problem.least[i]
    return kept
