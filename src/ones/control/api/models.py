"""What comes in and what goes out, as OpenAPI shows it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

Text = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]
Count = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


def _sendable(text: str) -> str:
    r"""
    >>> _sendable("died: \ud800")
    'died: ?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


#: text of an answer: rows of an older version may hold lone surrogates, which no answer can
Told = Annotated[str, AfterValidator(_sendable)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewJob(Strict):
    """A job to be queued."""

    command: Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(
        description="program and arguments", examples=[["python", "train.py"]]
    )
    cwd: Text = Field(description="working directory: an absolute path", examples=["/home/ann"])
    env: dict[
        Text, Annotated[str, StringConstraints(max_length=131_072, pattern=r"^[^\x00]*$")]
    ] = Field(default_factory=dict, description="its whole environment", max_length=10_000)
    name: Word | None = Field(None, description="for people; default: the script's name")
    kind: Word | None = Field(None, description="jobs of a kind teach about one another")
    priority: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)] = 0.0
    gpus: Count | None = Field(None, description="fixed-size job: one process sees so many GPUs")
    min_gpus: Count = 1
    max_gpus: Count | None = None
    requested_gpus: Count = Field(1, description="for policies that do not choose a size")
    batch: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="global batch to begin with; default: the script's own"
    )
    epochs: Count | None = Field(None, description="declared by the user")
    max_epochs: Count | None = None
    target_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    target_epochs: Count = Field(1, description="so many epochs above the target in a row")
    patience: Count | None = Field(None, description="epochs without improvement before it ends")
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    max_run_seconds: Seconds | None = None
    elastic: bool | None = Field(
        None, description="does the script call ones.join? null: it is found out"
    )
    tags: Annotated[list[Word], Field(max_length=100)] = Field(default_factory=list)
    git: Text = ""
    files: dict[Text, Text] = Field(
        default_factory=dict, description="path to sha256 at submission", max_length=1000
    )

    @model_validator(mode="after")
    def _sizes(self) -> NewJob:
        if self.max_gpus is not None and self.max_gpus < self.min_gpus:
            raise ValueError(f"max_gpus: {self.max_gpus} is less than min_gpus {self.min_gpus}")
        if not self.cwd.startswith("/"):
            raise ValueError(f"cwd: {self.cwd!r} is not an absolute path")
        if self.gpus is not None and self.elastic:
            raise ValueError("gpus: a fixed-size job is not elastic")
        if any("=" in name or not name for name in self.env):
            raise ValueError("env: a name holds '=' or is empty")
        return self


class Submitted(BaseModel):
    id: str = Field(examples=["train-7"])


class Changed(BaseModel):
    id: str
    state: str


class JobChange(Strict):
    priority: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class NewUser(Strict):
    name: Word = Field(description="of a-z, 0-9, _, - and .")
    role: Word = Field("user", description="admin or user")


class Limit(Strict):
    max_gpus: Annotated[int, Field(ge=0, le=100_000)] | None = None


class UserShown(BaseModel):
    name: str
    role: str
    max_gpus: int | None


class NewToken(BaseModel):
    name: str
    token: str = Field(description="shown once")


class WorkerShown(BaseModel):
    gpu: str
    batch: int
    micro_steps: int
    leaving: bool
    coming: bool = Field(description="being started: the job does not train with it yet")


class JobShown(BaseModel):
    id: str
    name: Told
    owner: str
    state: str
    elastic: bool
    kind: Told
    command: list[Told]
    tags: list[Told]
    priority: float
    min_gpus: int
    max_gpus: int | None
    gpus: int
    workers: list[WorkerShown]
    batch: int | None
    epochs: int
    planned_epochs: int | None = Field(description="said by the user, or by the script's loop")
    samples: int
    dataset_size: int | None
    loss: float | None
    accuracy: float | None
    step_seconds: float | None
    eta: float | None = Field(description="as a time; the 90 % interval is eta_low to eta_high")
    eta_low: float | None
    eta_high: float | None
    note: Told = Field(description="why it is as it is")
    message: Told = Field(description="why it ended")
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


class JobDetails(JobShown):
    cwd: Told
    git: Told
    env: dict[Told, Told]
    files: dict[Told, Told]


class LaunchShown(BaseModel):
    id: str
    slots: list[str]
    pid: int | None
    alive: bool
    exit_code: int | None
    ended: Told = Field(description="in words; empty while it lives")
    ended_at: float | None


class StoryLine(BaseModel):
    number: int
    at: float
    kind: Told
    text: Told


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
    coming: bool = Field(description="being started: the job does not train with it yet")
    used_by: list[str] = Field(description="strangers on it: such a slot is not used")
    state: str = Field(description="up, draining (nobody new comes) or down")
    aside: Told = Field(description="why this one is not used while its node is; empty: it is")
    group: int | None = Field(
        description="slots of a node with the same number are close to one another (NVLink, a"
        " socket); null: all of it are alike"
    )


class NodeShown(BaseModel):
    name: str
    gpus: int
    state: str = Field(description="up, draining (nobody new comes) or down")


class Place(Strict):
    place: Annotated[
        str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f]+$")
    ] = Field(description="a node, or one GPU as node/index", examples=["local", "local/3"])


class ClusterShown(BaseModel):
    policy: str
    now: float
    nodes: list[NodeShown]
    slots: list[SlotShown]
    unfit: dict[str, Told] = Field(description="nodes that cannot be used, and why")
    waiting: int
    running: int
    warnings: list[str] = Field(
        default_factory=list, description="the service works, but not as it was told to"
    )


class DecisionShown(BaseModel):
    number: int
    plan: int
    at: float
    actions: list[dict[str, Told]]
    notes: dict[str, Told]
    forecasts: dict[str, dict[str, float]]


class Curves(BaseModel):
    """Pairs of (time, value)."""

    loss: list[list[float]]
    accuracy: list[list[float]]
    batch: list[list[float]]
    gpus: list[list[float]]
    throughput: list[list[float]]


class SegmentShown(BaseModel):
    gpu: str
    job: str | None = Field(description="null: somebody else's")
    owner: str | None
    batch: int | None = Field(description="of this GPU, per optimizer step")
    begin: float
    end: float | None = Field(description="null: it is still there")


class TimelineShown(BaseModel):
    now: float
    since: float
    gpus: list[str]
    segments: list[SegmentShown]


class HealthShown(BaseModel):
    ok: bool
    version: str
    problems: list[Told] = Field(description="why the service does not do its work")
    warnings: list[Told] = Field(
        default_factory=list, description="it works, but not as it was told to"
    )


class QuarantinedShown(BaseModel):
    """An entry of the run log that made the scheduler raise, and is skipped since then."""

    number: int = Field(description="of the mark in the run log")
    at: float
    entry: int = Field(description="its number in the run log; 0: refused before it was logged")
    kind: str
    job: str | None
    reason: Told
    policy_only: bool = Field(description="the state keeps it; only the policy does not see it")


class AuditShown(BaseModel):
    number: int
    at: float
    who: str = Field(description="a user; empty: not known")
    action: str
    subject: str = Field(description="the user, job, node or GPU that it was done to")
    detail: str
    address: str


class Link(BaseModel):
    url: str


class Problem(BaseModel):
    error: str = Field(description="one line that names the thing and the value")


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "the request is not JSON"},
    401: {"model": Problem, "description": "no token, or a wrong one"},
    413: {"model": Problem, "description": "the request is too large"},
    421: {"model": Problem, "description": "the request is for another host"},
    422: {"model": Problem, "description": "the request names something impossible"},
    429: {"model": Problem, "description": "more than a limit of the service allows"},
    500: {"model": Problem, "description": "a bug of ONES; the controller's log has more"},
    503: {"model": Problem, "description": "not now: the disk is full, or the service stops"},
}
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "not known"}}
ADMINS: dict[int | str, dict[str, Any]] = {403: {"model": Problem, "description": "admins only"}}
