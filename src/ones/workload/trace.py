"""A trace: which jobs arrive when, what they will turn out to be, and what befalls the cluster.

`Job` is what a scheduler is told; `Training` is the truth behind it, which only the
simulator reads. Incidents (a node fails, a user cancels) come with the trace, so that
every policy meets the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ones.core.cluster import Cluster
from ones.core.events import CancelRequested, NodeDown, NodeDraining, NodeUp
from ones.core.job import Job, JobId
from ones.errors import UserError

Incident = CancelRequested | NodeUp | NodeDown | NodeDraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a job will really train: a kind of the data file, on so much data."""

    kind: str
    dataset_size: int
    classes: int = 10
    base_batch: int
    length: float = 1.0  # multiplies the epochs that its kind needs

    def __post_init__(self) -> None:
        for name in ("dataset_size", "classes", "base_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is not at least 1")
        if self.base_batch > self.dataset_size:
            raise ValueError(
                f"base_batch {self.base_batch} is more than dataset_size {self.dataset_size}"
            )
        if not self.length > 0:
            raise ValueError(f"length {self.length} is not above 0")


@dataclass(frozen=True, slots=True)
class TraceJob:
    job: Job
    training: Training


@dataclass(frozen=True, slots=True)
class Trace:
    """In order of time."""

    name: str
    jobs: tuple[TraceJob, ...]
    incidents: tuple[Incident, ...] = ()

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], incidents: Iterable[Incident] = ()) -> Trace:
        return cls(
            name,
            tuple(sorted(jobs, key=lambda j: j.job.submitted_at)),
            tuple(sorted(incidents, key=lambda i: i.at)),
        )


def check_fits(trace: Trace, cluster: Cluster) -> None:
    """Refuse a trace that this cluster can never serve, naming the job or the node."""
    for entry in trace.jobs:
        job = entry.job
        for name in ("requested_gpus", "min_gpus"):
            if getattr(job, name) > cluster.n_gpus:
                raise UserError(
                    f"{trace.name}: job {job.id}: {name} {getattr(job, name)}"
                    f" is more than the {cluster.n_gpus} GPUs of the cluster"
                )
    known: set[JobId] = {entry.job.id for entry in trace.jobs}
    nodes = set(cluster.nodes)
    for incident in trace.incidents:
        if isinstance(incident, CancelRequested):
            if incident.job not in known:
                raise UserError(f"{trace.name}: cancel of job {incident.job}, which never arrives")
        elif isinstance(incident, NodeUp):
            nodes.add(incident.node)
        elif incident.node not in nodes:
            raise UserError(
                f"{trace.name}: node {incident.node} is not in the cluster"
                f" ({', '.join(list(cluster.nodes)[:3])}, ...)"
            )
