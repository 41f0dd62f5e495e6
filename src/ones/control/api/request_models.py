"""Bodies of HTTP requests, as OpenAPI shows them."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Text = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]+$")]
Count = Annotated[int, Field(ge=1, le=100_000)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


Priority = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
Tags = Annotated[list[Word], Field(max_length=100)]


Environment = Annotated[
    dict[Text, Annotated[str, StringConstraints(max_length=131_072, pattern=r"^[^\x00]*$")]],
    Field(max_length=10_000),
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SnapshotUsed(Strict):
    """An uploaded archive with the code of a job."""

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the archive"
    )
    root: Text = Field(description="the directory that was packed: cwd, or one above it")


class NewJob(Strict):
    """A job to be submitted."""

    command: Annotated[list[Text], Field(min_length=1, max_length=10_000)] = Field(
        description="program and arguments", examples=[["python", "train.py"]]
    )
    cwd: Text = Field(description="working directory: an absolute path", examples=["/home/ann"])
    env: Environment = Field(default_factory=dict, description="whole environment of the process")
    name: Word | None = Field(None, description="name for people; default: the script's name")
    kind: Word | None = Field(
        None, description="policies learn from jobs of one kind; default: the script"
    )
    priority: Priority = 0.0
    gpus: Count | None = Field(
        None, description="fixed-size job: one process with this number of GPUs"
    )
    min_gpus: Count = 1
    max_gpus: Count | None = None
    requested_gpus: Count = Field(1, description="for policies that do not choose a size")
    batch: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="global batch to begin with; default: the script's own"
    )
    fixed_batch: bool = Field(False, description="the batch never changes")
    min_batch: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="smallest global batch; default: the script's own"
    )
    max_batch: Annotated[int, Field(ge=1, le=10**9)] | None = Field(
        None, description="largest global batch"
    )
    epochs: Count | None = Field(None, description="declared by the user")
    max_epochs: Count | None = None
    max_steps: Count | None = Field(
        None, description="the job ends after these steps of the script's own batch size"
    )
    max_samples: Count | None = Field(None, description="the job ends after these samples")
    max_tokens: Count | None = Field(
        None, description="the job ends after these tokens, if it counts them"
    )
    target_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    target_epochs: Count = Field(1, description="epochs in a row above the target")
    patience: Count | None = Field(
        None, description="epochs without improvement before the job ends"
    )
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    max_run_seconds: Seconds | None = None
    deadline_seconds: Seconds | None = Field(
        None, description="wished end, in seconds from now; for policies that use deadlines"
    )
    elastic: bool | None = Field(
        None, description="whether the script calls ones.join; null: found out when it runs"
    )
    tags: Tags = Field(default_factory=list)
    after: Annotated[list[Word], Field(max_length=100)] = Field(
        default_factory=list,
        description="jobs or arrays that must end before: JOB or JOB:ok (it must converge or"
        " finish) or JOB:any",
    )
    array: Annotated[str, StringConstraints(max_length=1000)] | None = Field(
        None,
        description="indexes of tasks, as 0-15 or 1,3,5-7; %4: at most 4 run at a time; with sweep"
        " only such a limit",
    )
    sweep: Annotated[
        dict[Word, Annotated[list[Text], Field(max_length=1000)]], Field(max_length=20)
    ] = Field(
        default_factory=dict,
        description="parameter -> values; a task for each combination. A value replaces {name} in"
        " the command, or is appended as --name=value",
    )
    git: Text = Field("", description="commit of cwd, and whether files differ from it")
    snapshot: SnapshotUsed | None = Field(
        None, description="code of the job; null: the files of cwd as they are when it starts"
    )
    files: dict[Text, Text] = Field(
        default_factory=dict, description="path -> sha256 at submission", max_length=1000
    )

    @model_validator(mode="after")
    def _sizes(self) -> NewJob:
        if self.max_gpus is not None and self.max_gpus < self.min_gpus:
            raise ValueError(f"max_gpus: {self.max_gpus} is less than min_gpus {self.min_gpus}")
        if not self.cwd.startswith("/"):
            raise ValueError(f"cwd: {self.cwd!r} is not an absolute path")
        if self.snapshot and not PurePosixPath(self.cwd).is_relative_to(self.snapshot.root):
            raise ValueError(f"cwd: {self.cwd!r} is not below the root of the snapshot")
        if ".." in PurePosixPath(self.cwd).parts and self.snapshot:
            raise ValueError("cwd: with a snapshot it has no ..")
        self._check_batches()
        if self.gpus is not None and self.elastic:
            raise ValueError("gpus: a fixed-size job cannot be elastic; leave out gpus or elastic")
        if any("=" in name or not name for name in self.env):
            raise ValueError("env: a name is empty or has '='")
        return self

    def _check_batches(self) -> None:
        least, most = self.min_batch, self.max_batch
        if self.fixed_batch and (least or most):
            raise ValueError("fixed_batch: not together with min_batch or max_batch")
        if least is not None and most is not None and most < least:
            raise ValueError(f"max_batch: {most} is less than min_batch {least}")
        if self.batch is not None and not (least or 1) <= self.batch <= (most or self.batch):
            raise ValueError(f"batch: {self.batch} is not within min_batch and max_batch")


class Again(Strict):
    """What a rerun needs if the service has removed the environment of the ended job."""

    env: Environment = Field(default_factory=dict, description="used if the job's own was removed")


class JobChange(Strict):
    """Changes of a submitted job; null: that value stays."""

    priority: Priority | None = None
    min_gpus: Count | None = None
    max_gpus: Annotated[int, Field(ge=0, le=100_000)] | None = Field(
        None, description="0: no maximum"
    )
    max_run_seconds: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        None, description="0: no limit"
    )
    tags: Tags | None = Field(None, description="instead of the present ones")

    @model_validator(mode="after")
    def _some(self) -> JobChange:
        if all(value is None for value in self.model_dump().values()):
            raise ValueError(f"nothing to change; give one of {', '.join(type(self).model_fields)}")
        return self


class NewUser(Strict):
    name: Word = Field(description="characters: a-z, 0-9, _, - and .")
    role: Word = Field("user", description="admin or user")
    unix: Word | None = Field(
        None, description="Unix user: its processes need no token, and jobs run as it"
    )


class UnixUser(Strict):
    unix: Word | None = None


class Limit(Strict):
    max_gpus: Annotated[int, Field(ge=0, le=100_000)] | None = None


class Place(Strict):
    place: Annotated[
        str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f]+$")
    ] = Field(description="a node, or one GPU as node/index", examples=["local", "local/3"])


class Drained(Place):
    reason: Annotated[str, StringConstraints(max_length=300, pattern=r"^[^\x00-\x1f]*$")] | None = (
        Field(None, description="why, shown to all users")
    )
