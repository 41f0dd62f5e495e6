"""Bodies of HTTP responses, as OpenAPI shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from ones.control.accounts import User
from ones.wire.work import Unit


def _sendable(text: str) -> str:
    r"""The text without lone surrogates.

    >>> _sendable("died: \ud800")
    'died: ?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: rows of an older version may have lone surrogates, which cannot be sent
Sendable = Annotated[str, AfterValidator(_sendable)]


class Submitted(BaseModel):
    id: str = Field(examples=["train-7"], description="of the job, or of the array")
    tasks: list[str] = Field(
        default_factory=list, description="jobs of the array; empty: it is one job"
    )


class Changed(BaseModel):
    id: str
    state: str


class UserShown(BaseModel):
    name: str
    role: str
    max_gpus: int | None
    unix: str | None = Field(description="Unix user of this machine; null: none")

    @classmethod
    def of(cls, user: User) -> UserShown:
        return cls(name=user.name, role=user.role, max_gpus=user.max_gpus, unix=user.unix)


class NewToken(BaseModel):
    name: str
    token: str = Field(description="shown once")


class WorkerShown(BaseModel):
    gpu: str
    batch: int
    micro_steps: int
    leaving: bool
    coming: bool = Field(description="being started; the job does not train with this worker yet")


class WorkShown(BaseModel):
    unit: Unit = Field(description="what the script's loop counts")
    done: int
    total: int | None


class JobShown(BaseModel):
    id: str
    name: Sendable
    owner: str
    state: str
    elastic: bool
    kind: Sendable
    command: list[Sendable]
    tags: list[Sendable]
    priority: float
    penalty: float = Field(description="what past use of its owner takes from the priority")
    min_gpus: int
    max_gpus: int | None
    gpus: int
    workers: list[WorkerShown]
    batch: int | None
    epochs: int
    planned_epochs: int | None = Field(description="declared by the user or the script's loop")
    work: WorkShown | None = Field(description="progress in the unit of the job's loop")
    samples: int
    dataset_size: int | None
    loss: float | None
    accuracy: float | None
    diverged_epoch: int = Field(
        description="first epoch since which the loss is not a finite number; 0: it is one"
    )
    step_seconds: float | None
    deadline: float | None = Field(description="end that the user wishes, a time")
    eta: float | None = Field(
        description="expected end, a time; the 90 % interval is eta_low to eta_high"
    )
    eta_low: float | None
    eta_high: float | None
    note: Sendable = Field(description="reason of the job's current allocation")
    message: Sendable = Field(description="reason of the job's end")
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    queue_seconds: float
    run_seconds: float
    gpu_seconds: float
    rescales: int
    pause_seconds: float
    preemptions: int
    losses: int
    failures: int
    tracker: Sendable = Field(description="address of the job's run in a tracker; empty: none")
    on_hold: bool
    held_by: str = Field(description="name of the user that put the job on hold")
    after: list[str] = Field(description="unfinished jobs that the job waits for")
    array: str = Field(description="id of the array that the job is a task of; empty: none")
    utilisation: float | None = Field(
        default=None,
        description="part of their GPUs, or of their share of the CPUs, that the job's workers keep"
        " busy, their mean, 0 to 1; null: not known",
    )
    memory_mb: float | None = Field(
        default=None, description="memory in use on all its GPUs, or by all its workers on CPUs"
    )
    power_watts: float | None = Field(default=None, description="power of all its GPUs")
    idle_gpus: list[str] = Field(
        default_factory=list, description="its GPUs that are idle for idle_warn_minutes"
    )
    slow_gpus: list[str] = Field(
        default_factory=list,
        description="its GPUs with workers that have been slow for slow_worker_minutes",
    )


class JobDetails(JobShown):
    cwd: Sendable
    max_run_seconds: float | None = Field(description="the job is cancelled after this time")
    git: Sendable = Field(description="commit of cwd at submission, and whether files differed")
    snapshot: str = Field(
        description="SHA-256 of the archive of the job's code; empty: it uses the files of cwd as"
        " they are when it starts"
    )
    root: Sendable = Field(description="the directory that was packed; empty: none")
    env: dict[Sendable, Sendable]
    files: dict[Sendable, Sendable]


class LaunchShown(BaseModel):
    id: str
    slots: list[str]
    pid: int | None
    alive: bool
    exit_code: int | None
    ended: Sendable = Field(description="how the process ended; empty while it runs")
    ended_at: float | None


class StoryLine(BaseModel):
    number: int
    at: float
    kind: Sendable
    text: Sendable


class SlotShown(BaseModel):
    id: str
    node: str
    kind: str
    name: str
    memory_mb: int
    job: str | None
    owner: str | None
    batch: int | None
    leaving: bool
    coming: bool = Field(description="being started; the job does not train with this worker yet")
    used_by: list[str] = Field(description="other processes on the slot; it is not used then")
    state: str = Field(description="up, draining (no new workers) or down")
    aside: Sendable = Field(description="why the slot is cordoned; empty: it is not")
    group: int | None = Field(
        description="slots of a node with the same number are close to one another (NVLink, a"
        " socket); null: the node has no groups"
    )


class NodeShown(BaseModel):
    name: str
    gpus: int
    state: str = Field(description="up, draining (no new workers) or down")
    reason: Sendable = Field(description="why the node was drained, and by which user")


class SlurmAutoShown(BaseModel):
    """Allocations that the service asks Slurm for when jobs wait."""

    max_nodes: int
    nodes: int = Field(description="of allocations that run")
    time: str = Field(description="time limit of an allocation")
    pending: list[str] = Field(description="ids of allocations that wait in Slurm")
    running: list[str]
    problem: Sendable = Field(description="why the last attempt failed; empty: it did not")
    retry_seconds: float = Field(description="time until the next attempt; 0: at once")

    @classmethod
    def of(cls, shown: Mapping[str, object] | None) -> SlurmAutoShown | None:
        return None if shown is None else cls.model_validate(shown)


class ClusterShown(BaseModel):
    policy: str
    now: float
    nodes: list[NodeShown]
    slots: list[SlotShown]
    unfit: dict[str, Sendable] = Field(description="nodes that cannot be used, and why")
    waiting: int
    running: int
    isolation: str = Field(description="as which Unix users jobs run")
    slurm_auto: SlurmAutoShown | None = Field(
        None, description="allocations that the service asks Slurm for; null: none"
    )
    warnings: list[str] = Field(
        default_factory=list, description="the service works, but not as configured"
    )


class DecisionShown(BaseModel):
    number: int
    plan: int
    at: float
    actions: list[dict[str, Sendable]]
    notes: dict[str, Sendable]
    forecasts: dict[str, dict[str, float]]


class Curves(BaseModel):
    """Pairs of (time, value), or of (position, value) in `/api/curves`."""

    loss: list[list[float]]
    accuracy: list[list[float]]
    batch: list[list[float]]
    gpus: list[list[float]]
    throughput: list[list[float]]


class SlotCurves(BaseModel):
    """One value for each time in `at`; null: not known."""

    utilisation: list[float | None] = Field(description="part of the GPU, or of the CPUs, 0 to 1")
    memory_mb: list[float | None]
    power_watts: list[float | None]
    cpus: list[float | None] = Field(description="CPUs that the worker's processes keep busy")


class WorkerCurves(SlotCurves):
    gpu: str


class WorkerUseShown(BaseModel):
    """What a worker uses now."""

    gpu: str
    utilisation: float | None
    memory_mb: float | None
    power_watts: float | None
    cpus: float | None
    step_seconds: float | None = Field(
        description="median of its own steps, without waiting for other workers"
    )
    slowdown: float | None = Field(
        description="its own time for a sample relative to the median of the job's workers"
    )
    idle_seconds: float | None = Field(description="time since which it is idle; null: it is not")


class UtilisationShown(BaseModel):
    workers: list[WorkerUseShown]
    seconds: float = Field(description="time between two points; doubles as the job runs on")
    at: list[float]
    curves: list[WorkerCurves] = Field(description="of each GPU that the job had, up to 64")
    gpus: int = Field(description="number of GPUs of which there are curves")
    all: SlotCurves | None = Field(description="mean of all its GPUs; null: no sample")


class SegmentShown(BaseModel):
    gpu: str
    job: str | None = Field(description="null: a job of another user")
    owner: str | None
    batch: int | None = Field(description="samples of this GPU per optimizer step")
    begin: float
    end: float | None = Field(description="null: not ended")


class TimelineShown(BaseModel):
    now: float
    since: float
    gpus: list[str]
    segments: list[SegmentShown]


class HealthShown(BaseModel):
    ok: bool
    version: str
    problems: list[Sendable] = Field(description="why the service does not do its work")
    warnings: list[Sendable] = Field(
        default_factory=list, description="the service works, but not as configured"
    )


class QuarantinedShown(BaseModel):
    """An entry of the run log that made the scheduler raise and is skipped since then."""

    number: int = Field(description="number of the mark in the run log")
    at: float
    entry: int = Field(
        description="number of the entry in the run log; 0: refused before it was logged"
    )
    kind: str
    job: str | None
    reason: Sendable
    policy_only: bool = Field(
        description="the state keeps the entry; only the policy does not see it"
    )


class AuditShown(BaseModel):
    number: int
    at: float
    who: str = Field(description="user name; empty: unknown")
    action: str
    subject: str = Field(description="user, job, node or GPU that the action changed")
    detail: str
    address: str


class Link(BaseModel):
    url: str


class Problem(BaseModel):
    error: str = Field(description="one line that names the field and the value")


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the request is not JSON"},
    401: {"model": Problem, "description": "missing or invalid token"},
    413: {"model": Problem, "description": "the request is too large"},
    421: {"model": Problem, "description": "the request is for another host"},
    422: {"model": Problem, "description": "a value in the request is invalid"},
    429: {"model": Problem, "description": "a limit of the service is exceeded"},
    500: {"model": Problem, "description": "internal error of ONES; see the controller's log"},
    503: {
        "model": Problem,
        "description": "unavailable: the disk is full, or the service is stopping",
    },
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "unknown name"}
}
ADMINS: dict[int | str, dict[str, Any]] = {403: {"model": Problem, "description": "admins only"}}
