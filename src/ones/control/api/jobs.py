"""HTTP routes of jobs: submit, list, change, cancel, read output."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from ones.control.accounts import User
from ones.control.api.access import (
    TheJob,
    TheRecord,
    TheService,
    TheUser,
    address_of,
    committed,
    reader_of,
)
from ones.control.api.request_models import JobChange, NewJob
from ones.control.api.response_models import (
    NOT_FOUND,
    PROBLEMS,
    Changed,
    Curves,
    JobDetails,
    JobShown,
    LaunchShown,
    StoryLine,
    Submitted,
)
from ones.control.limits import LimitError
from ones.control.readmodels.history import curves, story
from ones.control.service import Service
from ones.control.submission import Submission, scrubbed
from ones.core.job import Job
from ones.errors import InvalidJobError, UnknownNameError
from ones.stopping import StopRule

router = APIRouter(prefix="/api/jobs", tags=["jobs"], responses=PROBLEMS)

LOG_BYTES = 1 << 20
POLL_SECONDS = 0.1


@router.post("", status_code=201)
async def submit(new: NewJob, service: TheService, user: TheUser, request: Request) -> Submitted:
    """Submit a job. The response comes when the job is on disk: it will run, even if the controller
    crashes right after."""
    _check_limits(new, service, user, request)
    slots = len(service.launcher.slots())
    size = new.gpus or _own_size(new)
    least = size or new.min_gpus
    asked = f"{'gpus' if size else 'min_gpus'} {least}"
    if least > slots:
        raise InvalidJobError(new.name or "new", f"{asked} is more than the cluster has, {slots}")
    if user.max_gpus is not None and least > user.max_gpus:
        limit = f"{user.max_gpus} {'GPU' if user.max_gpus == 1 else 'GPUs'}"
        problem = f"{asked} is more than the limit of user {user.name}, {limit}"
        raise InvalidJobError(new.name or "new", problem)
    name = new.name or _name_of(new.command)
    job = Job(
        id=service.new_id(name),
        submitted_at=0.0,  # set by the scheduler's thread
        kind=new.kind or _script_of(new.command),
        owner=user.name,
        command=tuple(new.command),
        priority=new.priority,
        min_gpus=least,
        max_gpus=size or new.max_gpus,
        requested_gpus=size or max(new.requested_gpus, new.min_gpus),
        requested_batch=new.batch,
        min_batch=new.min_batch,
        max_batch=new.max_batch,
        epochs=new.epochs,
        stop=StopRule(
            target_accuracy=new.target_accuracy,
            target_epochs=new.target_epochs,
            patience=new.patience,
            max_epochs=new.max_epochs,
        ),
        retries=new.retries,
        elastic=new.gpus is None and new.elastic is not False,
    )
    submission = Submission(
        name=name,
        argv=tuple(new.command),
        cwd=new.cwd,
        env=scrubbed(new.env),
        elastic=False if new.gpus else new.elastic,
        max_run_seconds=new.max_run_seconds,
        fixed_batch=new.fixed_batch,
        tags=tuple(new.tags),
        git=new.git,
        files=new.files,
    )
    await committed(lambda done: service.submit(job, submission, done), service)
    return Submitted(id=job.id)


@router.get("")
def jobs(
    service: TheService,
    user: TheUser,
    state: Annotated[
        list[str] | None, Query(description="only jobs in these states", max_length=20)
    ] = None,
    all: Annotated[bool, Query(description="also jobs that have ended")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[JobShown]:
    """The jobs that the user may see, the newest first."""
    owner = None if user.is_admin else user.name
    cards = service.board.listed(
        owner=owner,
        states=set(state) if state else None,
        limit=limit,
        over=all or bool(state),
    )
    now = service.clock.now()
    reader = reader_of(service, user)
    return [JobShown.model_validate(reader.card(card, now)) for card in cards]


@router.get("/{job}", responses=NOT_FOUND)
def job(card: TheJob, service: TheService, user: TheUser) -> JobDetails:
    """One job, with its environment and the files recorded at its submission."""
    submission = service.board.submission(card.id)
    more: dict[str, Any] = {"cwd": "", "git": "", "env": {}, "files": {}}
    if submission is not None:
        more = {
            "cwd": submission.cwd,
            "git": submission.git,
            "env": dict(submission.env),
            "files": dict(submission.files),
        }
    shown = reader_of(service, user).card(card, service.clock.now())
    return JobDetails.model_validate({**shown, **more})


@router.patch("/{job}", responses=NOT_FOUND)
async def change(
    card: TheJob, new: JobChange, service: TheService, user: TheUser, record: TheRecord
) -> Changed:
    """Change the priority of a job."""
    if not user.is_admin:
        service.limits.check_priority(new.priority)
    await committed(lambda done: service.set_priority(card.id, new.priority, done), service)
    record("priority changed", card.id, f"{card.priority:g} to {new.priority:g}")
    return Changed(id=card.id, state=service.board.cards[card.id].state)


@router.post("/{job}/cancel", responses=NOT_FOUND)
async def cancel(card: TheJob, service: TheService, user: TheUser, record: TheRecord) -> Changed:
    """Cancel a job. A job that has ended does not change."""
    if not card.over:
        await committed(lambda done: service.cancel(card.id, user.name, done), service)
        if card.owner != user.name:
            record("job cancelled", card.id, f"of {card.owner}")
    return Changed(id=card.id, state=service.board.cards[card.id].state)


@router.get("/{job}/story", responses=NOT_FOUND)
def why(
    card: TheJob,
    service: TheService,
    user: TheUser,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[StoryLine]:
    """The history of a job with reasons, the oldest entry first."""
    lines = story(service.store, card.id, limit, reader_of(service, user).text)
    return [StoryLine.model_validate(asdict(line)) for line in lines]


@router.get("/{job}/curves", responses=NOT_FOUND)
def job_curves(card: TheJob, service: TheService) -> Curves:
    """Loss, accuracy, batch, GPUs and samples per second over time."""
    return Curves.model_validate(curves(service.store, card.id))


@router.get("/{job}/launches", responses=NOT_FOUND)
def launches(card: TheJob, service: TheService) -> list[LaunchShown]:
    """The processes of a job, in the order of their start."""
    return [
        LaunchShown(
            id=process.id,
            slots=list(process.slots),
            pid=process.pid,
            alive=process.alive,
            exit_code=process.exit.code if process.exit else None,
            ended=process.exit.describe() if process.exit else "",
            ended_at=process.exit.at if process.exit else None,
        )
        for process in service.launcher.history(card.id)
    ]


@router.get(
    "/{job}/launches/{launch}/log",
    responses={**NOT_FOUND, 200: {"content": {"application/octet-stream": {}}}},
    response_class=Response,
)
async def log(
    card: TheJob,
    launch: str,
    service: TheService,
    offset: Annotated[
        int, Query(ge=-(2**53), le=2**53, description="in bytes; below 0: from the end")
    ] = 0,
    limit: Annotated[int, Query(ge=1, le=LOG_BYTES)] = LOG_BYTES,
    wait: Annotated[float, Query(ge=0, le=30, description="seconds to wait for more output")] = 0.0,
) -> Response:
    """Output of a process from an offset on. `X-Offset` is where the returned part begins (older
    output may have been dropped), `X-Next` the offset for the next request, `X-Over` whether the
    output is complete."""
    known = {p.id: p for p in await asyncio.to_thread(service.launcher.history, card.id)}
    if launch not in known:
        raise UnknownNameError("launch", launch, known)
    deadline = asyncio.get_running_loop().time() + wait
    while True:
        over = not await asyncio.to_thread(_alive, service, card.id, launch)
        chunk = await asyncio.to_thread(service.launcher.logs, card.id, launch, offset, limit)
        if chunk.data or over or asyncio.get_running_loop().time() >= deadline:
            break
        await asyncio.sleep(POLL_SECONDS)
    headers = {
        "X-Offset": str(chunk.offset),
        "X-Next": str(chunk.next),
        "X-Over": str(over and chunk.next >= chunk.end).lower(),
    }
    return Response(chunk.data, media_type="application/octet-stream", headers=headers)


def _check_limits(new: NewJob, service: Service, user: User, request: Request) -> None:
    """Raise LimitError, and note it in the audit log, if the job exceeds a limit."""
    limits = service.limits
    try:
        limits.check_command(new.command)
        limits.check_environment(new.env)
        if not user.is_admin:
            limits.check_priority(new.priority)
        limits.check_unfinished(user.name, service.board.unfinished[user.name])
    except LimitError as problem:
        address = address_of(request.scope)
        service.audit.refused(user.name, "submission refused", str(problem), address)
        raise


def _own_size(new: NewJob) -> int | None:
    """The fixed number of GPUs of a script that is known not to join; None for other scripts."""
    if new.elastic is not False:
        return None
    return min(max(new.requested_gpus, new.min_gpus), new.max_gpus or new.requested_gpus)


def _alive(service: Service, job: str, launch: str) -> bool:
    process = service.launcher.running().get(launch)
    return process is not None and process.alive


def _script_of(command: list[str]) -> str:
    """The script of a command, as a path: the default of a job's kind."""
    for argument in command[1:]:
        if argument.endswith(".py"):
            return argument
    return command[0]


def _name_of(command: list[str]) -> str:
    return PurePath(_script_of(command)).stem[:100] or "job"
