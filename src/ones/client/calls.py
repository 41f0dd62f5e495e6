"""The requests of the clients as values: what is sent, and the type of the answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from ones.client.snapshot import Uploaded
from ones.client.transport import given, of_job
from ones.control.api.past_models import CurvesShown, HistoryShown, ReplayShown, UsageShown
from ones.control.api.request_models import Again, Drained, JobChange, NewJob
from ones.control.api.response_models import (
    Changed,
    ClusterShown,
    Curves,
    JobDetails,
    JobShown,
    LaunchShown,
    StoryLine,
    Submitted,
)
from ones.errors import UserError, WorldError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    method: str
    path: str
    answer: TypeAdapter[T]
    query: Mapping[str, Any] | None = None
    body: Mapping[str, Any] | None = None

    def read(self, plain: object) -> T:
        try:
            return self.answer.validate_python(plain)
        except ValidationError as problem:
            why = problem.errors()[0]
            where = ".".join(map(str, why["loc"]))
            raise WorldError(
                f"{self.path}: unexpected answer: {where}: {why['msg']}; is the service of the same"
                " version?"
            ) from problem


_CHANGED, _SUBMITTED = TypeAdapter(Changed), TypeAdapter(Submitted)
_JOBS, _JOB = TypeAdapter(list[JobShown]), TypeAdapter(JobDetails)
_STORY, _LAUNCHES = TypeAdapter(list[StoryLine]), TypeAdapter(list[LaunchShown])
_CLUSTER, _CURVES = TypeAdapter(ClusterShown), TypeAdapter(Curves)
_SEVERAL_CURVES, _HISTORY = TypeAdapter(CurvesShown), TypeAdapter(HistoryShown)
_USAGE, _REPLAY = TypeAdapter(list[UsageShown]), TypeAdapter(ReplayShown)


def submit(
    command: Sequence[str],
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> Call[Submitted]:
    body = {
        **options,
        "command": [str(part) for part in command],
        "cwd": os.path.abspath(cwd or os.getcwd()),
        "env": dict(os.environ if env is None else env),
    }
    return Call("POST", "/api/jobs", _SUBMITTED, body=_checked(NewJob, body))


def submit_snapshot(uploaded: Uploaded, options: Mapping[str, Any]) -> Call[Submitted]:
    body = {**options, **uploaded.changes}
    return Call("POST", "/api/jobs", _SUBMITTED, body=_checked(NewJob, body))


def jobs(all: bool, limit: int, filters: Mapping[str, Any]) -> Call[list[JobShown]]:
    query = given({**filters, "limit": limit, "all": "true" if all else None})
    return Call("GET", "/api/jobs", _JOBS, query)


def job(id: str) -> Call[JobDetails]:
    return Call("GET", of_job(id), _JOB)


def change(id: str, changes: Mapping[str, Any]) -> Call[Changed]:
    return Call("PATCH", of_job(id), _CHANGED, body=_checked(JobChange, changes))


def act(id: str, action: str) -> Call[Changed]:
    return Call("POST", of_job(id, action), _CHANGED)


def rerun(id: str) -> Call[Submitted]:
    """The present environment is used if the service has removed that of the job."""
    body = _checked(Again, {"env": dict(os.environ)})
    return Call("POST", of_job(id, "rerun"), _SUBMITTED, body=body)


def story(id: str) -> Call[list[StoryLine]]:
    return Call("GET", of_job(id, "story"), _STORY)


def curves(id: str) -> Call[Curves]:
    return Call("GET", of_job(id, "curves"), _CURVES)


def launches(id: str) -> Call[list[LaunchShown]]:
    return Call("GET", of_job(id, "launches"), _LAUNCHES)


def cluster() -> Call[ClusterShown]:
    return Call("GET", "/api/cluster", _CLUSTER)


def drain(place: str, reason: str) -> Call[ClusterShown]:
    body = _checked(Drained, {"place": place, "reason": reason})
    return Call("POST", "/api/cluster/drain", _CLUSTER, body=body)


def undrain(place: str) -> Call[ClusterShown]:
    return Call("POST", "/api/cluster/undrain", _CLUSTER, body={"place": place})


def usage(
    by: Sequence[str], since: float | None, until: float | None, owner: str | None
) -> Call[list[UsageShown]]:
    query = given({"by": list(by), "since": since, "until": until, "owner": owner})
    return Call("GET", "/api/usage", _USAGE, query)


def history(since: float | None, points: int) -> Call[HistoryShown]:
    return Call("GET", "/api/history", _HISTORY, given({"since": since, "points": points}))


def curves_of_jobs(ids: Sequence[str], against: str) -> Call[CurvesShown]:
    query = {"job": list(ids), "against": against}
    return Call("GET", "/api/curves", _SEVERAL_CURVES, query)


def start_whatif(policy: str, hours: float) -> Call[ReplayShown]:
    body = {"policy": policy, "hours": hours}
    return Call("POST", "/api/whatif", _REPLAY, body=body)


def whatif() -> Call[ReplayShown]:
    return Call("GET", "/api/whatif", _REPLAY)


def cancel_whatif() -> Call[ReplayShown]:
    return Call("POST", "/api/whatif/cancel", _REPLAY)


def _checked(model: Any, values: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401
    """The values that are given, checked as the service checks them."""
    try:
        model.model_validate(dict(values))
    except ValidationError as problem:
        why = problem.errors()[0]
        where = ".".join(map(str, why["loc"]))
        raise UserError(f"{where}: {why['msg']}" if where else str(why["msg"])) from problem
    return dict(values)
