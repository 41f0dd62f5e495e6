"""A trace: arrivals of jobs, how they really train, and incidents.

`Job` is visible to the scheduler. `Training` is how the job really trains; only the simulator reads
it. Incidents (a node fails, a user cancels) are part of the trace, so that they are the same for
every policy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from ones.core.cluster import Cluster, NodeState
from ones.core.events import CancelRequested, NodeDown, NodeDraining, NodeUp
from ones.core.job import Configuration, EndReason, Job, JobId
from ones.errors import InvalidFileError, UserError

Incident = CancelRequested | NodeUp | NodeDown | NodeDraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a job really trains: a kind of the data file, with an amount of data."""

    kind: str
    dataset_size: int
    classes: int = 10
    base_batch: int
    length: float = 1.0  # multiplies the epochs that its kind needs
    rate_follows: bool = True  # the learning rate follows the batch
    dies_after: float | None = None  # epochs after which it fails, or is killed
    killed: bool = False  # by its user; else it fails
    numbers: str = "paper"  # set of numbers with its kind
    run: int = 0  # which recorded run of its kind and size, where there are several

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
        if self.dies_after is not None and not self.dies_after >= 0:
            raise ValueError(f"dies_after {self.dies_after} is negative")


@dataclass(frozen=True, slots=True)
class Milestone:
    """Values at the end of an epoch."""

    progress: float  # effective epochs
    accuracy: float | None
    loss: float | None
    noise: float | None  # gradient noise scale


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceDelays:
    """Seconds that processes and service took in a recorded run, mean over its jobs."""

    notice: float = 0.0  # from order to switch, without joining workers
    leave: float = 0.0  # from a switch until a leaving worker has left
    stop: float = 0.0  # from the last step of a stopped job until all workers have left
    finish: float = 0.0  # from the last epoch until the end is reported
    clear: float = 0.0  # from the end until its processes have ended
    warms_early: bool = True  # joining workers of a second step start with the first


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTraining:
    """How a job trained when it was recorded."""

    dataset_size: int
    base_batch: int
    optimizer: str
    parameter_bytes: int
    max_local_batch: int | None
    step_seconds: tuple[tuple[Configuration, float], ...]
    milestones: tuple[Milestone, ...]
    first_loss: float | None
    end: EndReason
    end_message: str
    rescale_seconds: float | None  # mean of its pauses; None: it had none
    restart_seconds: float | None  # likewise, through a checkpoint
    start_seconds: float | None = None  # until its first worker trained
    join_seconds: float | None = None  # until a joining worker was ready
    service: ServiceDelays = ServiceDelays()

    @property
    def total(self) -> float:
        """Effective epochs of the whole training."""
        return self.milestones[-1].progress


@dataclass(frozen=True, slots=True)
class TraceJob:
    job: Job
    training: Training | RecordedTraining
    line: int | None = field(default=None, compare=False)  # of the file it was read from


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs and incidents, each in order of time."""

    name: str
    jobs: tuple[TraceJob, ...]
    incidents: tuple[Incident, ...] = ()
    incident_lines: tuple[int, ...] = field(default=(), compare=False)  # of the file, if any

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], incidents: Iterable[Incident] = ()) -> Trace:
        return cls(
            name,
            tuple(sorted(jobs, key=lambda j: j.job.submitted_at)),
            tuple(sorted(incidents, key=lambda i: i.at)),
        )


def check_fits(trace: Trace, cluster: Cluster) -> None:
    """Raises an error that names job or node if this cluster can never serve the trace."""
    names: set[JobId] = set()
    for entry in trace.jobs:
        if entry.job.id in names:
            raise UserError(f"{trace.name}: job {entry.job.id} appears twice")
        names.add(entry.job.id)
    _check_incidents(trace, cluster)
    times, most = _max_gpus_from(trace, cluster)
    for entry in trace.jobs:
        job = entry.job
        there = most[bisect_left(times, job.submitted_at)]
        for name in ("requested_gpus", "min_gpus"):
            if min(getattr(job, name), job.max_gpus or inf) > there:
                problem = f"job {job.id}: {name} {getattr(job, name)} is more than the {there} GPUs"
                whole = there == cluster.n_gpus
                problem += " of the cluster" if whole else " of the cluster after its arrival"
                column = name.removeprefix("requested_") if entry.line else None
                raise InvalidFileError(trace.name, problem, line=entry.line, field=column)


def _max_gpus_from(trace: Trace, cluster: Cluster) -> tuple[list[float], list[int]]:
    """Times of incidents, and the maximum of GPUs from before each one on."""
    nodes = {n.id: n.gpus for n in cluster.nodes.values() if n.state is NodeState.UP}
    times, there = [], [sum(nodes.values())]
    for incident in trace.incidents:
        if isinstance(incident, CancelRequested):
            continue
        nodes[incident.node] = incident.gpus if isinstance(incident, NodeUp) else 0
        times.append(incident.at)
        there.append(sum(nodes.values()))
    return times, list(accumulate(reversed(there), max))[::-1]


def _check_incidents(trace: Trace, cluster: Cluster) -> None:
    arrivals: dict[JobId, float] = {entry.job.id: entry.job.submitted_at for entry in trace.jobs}
    nodes = {node.id: node.gpus for node in cluster.nodes.values()}  # 0: down
    for number, incident in enumerate(trace.incidents):
        if isinstance(incident, CancelRequested):
            arrives = arrivals.get(incident.job)
            if arrives is None:
                problem = f"cancel of job {incident.job}, which never arrives"
                raise _incident_error(trace, number, "id", problem)
            if incident.at < arrives:
                problem = (
                    f"cancel of job {incident.job} at {incident.at:g} s,"
                    f" before it arrives at {arrives:g} s"
                )
                raise _incident_error(trace, number, "at", problem)
        elif isinstance(incident, NodeUp):
            there = nodes.get(incident.node, 0)
            if there not in (0, incident.gpus):
                problem = (
                    f"node {incident.node} has {there} GPUs and would come up again"
                    f" with {incident.gpus}"
                )
                raise _incident_error(trace, number, "gpus", problem)
            nodes[incident.node] = incident.gpus
        elif incident.node not in nodes:
            known = ", ".join(list(cluster.nodes)[:3])
            problem = f"node {incident.node} is not in the cluster ({known}, ...)"
            raise _incident_error(trace, number, "node", problem)
        elif isinstance(incident, NodeDown):
            nodes[incident.node] = 0


def _incident_error(trace: Trace, number: int, column: str, problem: str) -> InvalidFileError:
    """An error with line and field, if the incident was read from a file."""
    if not trace.incident_lines:
        return InvalidFileError(trace.name, problem)
    return InvalidFileError(trace.name, problem, line=trace.incident_lines[number], field=column)
