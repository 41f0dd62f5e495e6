"""Builds the problem of the search from a view: speed-ups, restart factors, limits."""

from __future__ import annotations

from math import ceil

import numpy as np

from ones.core.cluster import NodeId
from ones.core.view import JobView, View
from ones.models.adaptive_batch import GoodputModels, gpu_limit
from ones.models.goodput_rounds import GoodputRounds
from ones.models.node_counts import gpus_by_node
from ones.policies.pollux.problem import AllocationProblem, Counts, Flags, Floats, Ints, power_terms
from ones.policies.pollux.search import NO_LIMIT
from ones.policies.pollux.settings import PolluxSettings


def fair_share(view: View) -> int:
    """GPUs of each job, if all had the same number."""
    return ceil(view.cluster.n_gpus / max(1, len(view.jobs)))


def speed_ups(job: JobView, models: GoodputModels, most: int, fair: int) -> Floats:
    """Goodput relative to that of the fair share on one node, by nodes (one, several) and GPUs."""
    if job.description is None or not job.profile:
        return np.tile(np.arange(most + 1) / fair, (2, 1))
    model = models.of(job)
    _, _, base = model.best(fair, 1)
    found = model.table(most).goodput / base
    found[:, 0] = 0.0
    return found


def build_problem(
    view: View,
    jobs: list[JobView],
    capacity: dict[NodeId, int],
    rounds: GoodputRounds,
    settings: PolluxSettings,
) -> AllocationProblem:
    """`jobs` in the order in which they keep their GPUs; `capacity` of nodes without them."""
    gpus = sum(capacity.values())
    models = rounds.models
    most = [min(gpu_limit(job, models.rules, gpus), gpus) for job in jobs]
    width = max(most) + 1
    fair = fair_share(view)
    scale = len(view.cluster.nodes) / view.cluster.n_gpus
    values = np.zeros((len(jobs), 2, width))
    factors = np.ones(len(jobs))
    for i, job in enumerate(jobs):
        values[i, :, : most[i] + 1] = scale * speed_ups(job, models, most[i], fair)
        if job.started_at is not None:  # a first start is no restart
            factors[i] = rounds.restart_factor(job, view.now)
    terms = power_terms(values * factors[:, None, None], settings.power)
    unmoved = power_terms(values, settings.power)
    _prefer(terms, unmoved, [job.priority for job in jobs])
    current = _current(view, jobs, list(capacity))
    owner, owner_limit = _owners(view, jobs)
    return AllocationProblem(
        terms=terms,
        stay=_stay(jobs, current, terms, unmoved),
        least=np.array([job.job.min_gpus for job in jobs], np.int32),
        most=np.array(most, np.int32),
        current=current,
        capacity=np.array(list(capacity.values()), np.int32),
        closed=_closed(view, list(capacity)),
        owner=owner,
        room=owner_limit,
        most_nodes=settings.most_nodes,
    )


def _prefer(terms: Floats, unmoved: Floats, priorities: list[float]) -> None:
    """Raises the cost of waiting for jobs of a higher priority."""
    levels = {priority: i for i, priority in enumerate(sorted(set(priorities)))}
    for i, priority in enumerate(priorities):
        wait = levels[priority] * abs(terms[i, 0, 0])
        terms[i, :, 0] += wait
        unmoved[i, :, 0] += wait


def _current(view: View, jobs: list[JobView], nodes: list[NodeId]) -> Counts:
    columns = {node: i for i, node in enumerate(nodes)}
    current = np.zeros((len(jobs), len(nodes)), np.int16)
    for i, job in enumerate(jobs):
        for node, count in gpus_by_node(view, job).items():
            current[i, columns[node]] = count
    return current


def _stay(jobs: list[JobView], current: Counts, terms: Floats, unmoved: Floats) -> Floats:
    """Cost of an unchanged row. A job that must leave a draining node is moved in any case."""
    stay = np.zeros(len(jobs))
    for i, job in enumerate(jobs):
        count, several = int(current[i].sum()), int(np.count_nonzero(current[i]) > 1)
        whole = job.wanted is None or job.wanted.n_gpus == count
        # a row above the limit is reduced by every repair
        count = min(count, terms.shape[2] - 1)
        stay[i] = (unmoved if whole else terms)[i, several, count]
    return stay


def _closed(view: View, nodes: list[NodeId]) -> Flags:
    """Nodes where a pinned job runs that uses several nodes."""
    busy: set[NodeId] = set()
    for job in view.jobs.values():
        if job.pinned and job.wanted is not None and job.wanted.n_nodes > 1:
            busy.update(gpu.node for gpu in job.wanted.gpus)
    return np.array([node in busy for node in nodes], np.bool_)


def _owners(view: View, jobs: list[JobView]) -> tuple[Ints, Ints]:
    """The owner of each job as a number, and the GPUs that each may have for these jobs."""
    numbers: dict[str, int] = {}
    limits: list[int] = []
    for job in jobs:
        owner = job.job.owner
        if owner not in numbers:
            numbers[owner] = len(limits)
            room = view.room(owner)
            limits.append(NO_LIMIT if room is None else room)
        if job.wanted is not None and limits[numbers[owner]] != NO_LIMIT:
            limits[numbers[owner]] += job.wanted.n_gpus
    owners = np.array([numbers[job.job.owner] for job in jobs], np.int32)
    return owners, np.array(limits, np.int32)
