"""HTTP routes of jobs: submit, list, change, cancel, read output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from msgspec.structs import replace

from ones.control.accounts import User
from ones.control.api.access import (
    TheJob,
    TheRecord,
    TheService,
    TheUser,
    address_of,
    committed,
    job_of,
    reader_of,
)
from ones.control.api.request_models import Again, JobChange, NewJob
from ones.control.api.response_models import (
    ADMINS,
    NOT_FOUND,
    PROBLEMS,
    Changed,
    Curves,
    JobDetails,
    JobShown,
    LaunchShown,
    StoryLine,
    Submitted,
    UtilisationShown,
)
from ones.control.arrays import Task, tasks_of
from ones.control.limits import LimitError
from ones.control.live.jobs import NOW
from ones.control.readmodels.entry_texts import changes_of
from ones.control.readmodels.history import curves, requested, story
from ones.control.readmodels.job_cards import JobCard
from ones.control.service import Service
from ones.control.submission import Submission, scrubbed
from ones.core import events as ev
from ones.core.job import Dependency, Job, JobId
from ones.core.user_units import duration
from ones.errors import InvalidJobError, InvalidSettingError, UnknownNameError
from ones.stopping import StopRule

router = APIRouter(prefix="/api/jobs", tags=["jobs"], responses=PROBLEMS)

LOG_BYTES = 1 << 20
POLL_SECONDS = 0.1
#: GPUs with curves in one response
MOST_CURVES = 64


@router.post("", status_code=201, responses=NOT_FOUND)
async def submit(new: NewJob, service: TheService, user: TheUser, request: Request) -> Submitted:
    """Submit a job. The response comes when the job is on disk: it will run, even if the controller
    crashes right after."""
    _check_limits(new, service, user, request)
    size = new.gpus or _own_size(new)
    least = size or new.min_gpus
    asked = f"{'gpus' if size else 'min_gpus'} {least}"
    _check_least(new.name or "new", asked, least, service, user.name, user.max_gpus)
    name = new.name or _name_of(new.command)
    tasks, limit = _tasks_of(new)
    _limited(service, user, request, lambda: _check_room(service, user.name, len(tasks)))
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
        deadline=new.deadline_seconds,
        epochs=new.epochs,
        stop=StopRule(
            target_accuracy=new.target_accuracy,
            target_epochs=new.target_epochs,
            patience=new.patience,
            max_epochs=new.max_epochs,
            max_steps=new.max_steps,
            max_samples=new.max_samples,
            max_tokens=new.max_tokens,
        ),
        retries=new.retries,
        elastic=new.gpus is None and new.elastic is not False,
        after=tuple(_dependencies(new.after, service, user)),
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
        snapshot=new.snapshot.digest if new.snapshot else "",
        root=new.snapshot.root if new.snapshot else "",
        files=new.files,
        unix=service.unix_of(user),
    )
    if new.snapshot:
        service.snapshots.use(user.name, new.snapshot.digest, job.id)
    if not tasks:
        await committed(lambda done: service.submit(job, submission, done), service)
        return Submitted(id=job.id)
    made = [_task_of(job, submission, task, limit) for task in tasks]
    await committed(lambda done: service.submit_all(made, done), service)
    return Submitted(id=job.id, tasks=[each.id for each, _ in made])


def _tasks_of(new: NewJob) -> tuple[list[Task], int | None]:
    return tasks_of(new.array, new.sweep) if new.array or new.sweep else ([], None)


def _task_of(
    job: Job, submission: Submission, task: Task, limit: int | None
) -> tuple[Job, Submission]:
    """A task of an array. `job`, `submission`: as if the array were one job."""
    command = tuple(task.command(job.command))
    env = {**submission.env, "ONES_ARRAY_ID": job.id, "ONES_ARRAY_INDEX": str(task.index)}
    return (
        replace(
            job,
            id=JobId(f"{job.id}_{task.index}"),
            command=command,
            array=job.id,
            array_limit=limit,
        ),
        replace(submission, argv=command, env=env, tags=(*submission.tags, *task.tags)),
    )


def _dependencies(after: list[str], service: Service, user: User) -> Iterator[Dependency]:
    """The jobs that must end before. An array stands for all its tasks."""
    for text in after:
        name, _, how = text.partition(":")
        if how not in ("", "ok", "any"):
            raise InvalidSettingError(f"after: {text!r}: {how!r} is neither ok nor any")
        cards = list(service.board.cards.values())
        tasks = [c for c in cards if c.array == name and service.may_see(user, c.owner)]
        for card in tasks or [job_of(name, service, user)]:
            yield Dependency(JobId(card.id), how == "any")


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Query parameters that choose jobs."""

    state: Annotated[
        list[str] | None, Query(description="only jobs in these states", max_length=20)
    ] = None
    owner: Annotated[str | None, Query(description="only jobs of this user")] = None
    tag: Annotated[str | None, Query(description="only jobs with this tag")] = None
    name: Annotated[
        str | None, Query(description="only jobs with this name; `*` and `?` match")
    ] = None
    array: Annotated[str | None, Query(description="only tasks of this array")] = None
    since: Annotated[
        float | None,
        Query(ge=0, le=1e11, description="also jobs that have ended, but none before this time"),
    ] = None

    def accepts(self, card: JobCard) -> bool:
        return (
            (not self.state or card.state in self.state)
            and (self.owner is None or card.owner == self.owner)
            and (self.tag is None or self.tag in card.tags)
            and (self.name is None or fnmatchcase(card.name, self.name))
            and (self.array is None or card.array == self.array)
            and (self.since is None or card.ended_at is None or card.ended_at >= self.since)
        )


@router.get("")
def jobs(
    service: TheService,
    user: TheUser,
    chosen: Annotated[JobFilter, Depends()],
    all: Annotated[bool, Query(description="also jobs that have ended")] = False,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> list[JobShown]:
    """The jobs that the user may see, the newest first."""
    cards = service.board.listed(
        owner=None if user.is_admin else user.name,
        accepts=chosen.accepts,
        limit=limit,
        over=all or bool(chosen.state) or chosen.since is not None,
    )
    now = service.clock.now()
    reader = reader_of(service, user)
    return [JobShown.model_validate(reader.card(card, now)) for card in cards]


@router.get("/{job}", responses=NOT_FOUND)
def job(card: TheJob, service: TheService, user: TheUser) -> JobDetails:
    """One job, with its environment and the files recorded at its submission."""
    submission = service.board.submission(card.id)
    more: dict[str, Any] = {
        **dict.fromkeys(("cwd", "git", "snapshot", "root"), ""),
        **{"env": {}, "files": {}, "max_run_seconds": None},
    }
    if submission is not None:
        more = {
            "cwd": submission.cwd,
            "git": submission.git,
            "snapshot": submission.snapshot,
            "root": submission.root,
            "env": dict(submission.env),
            "files": dict(submission.files),
            "max_run_seconds": submission.max_run_seconds,
        }
    shown = reader_of(service, user).card(card, service.clock.now())
    return JobDetails.model_validate({**shown, **more})


@router.patch("/{job}", responses=NOT_FOUND)
async def change(
    card: TheJob, new: JobChange, service: TheService, user: TheUser, record: TheRecord
) -> Changed:
    """Change a job that has not ended: also one that runs. Its GPUs follow at once."""
    _check_unfinished(card)
    if new.priority is not None and not user.is_admin:
        service.limits.check_priority(new.priority)
    if new.min_gpus is not None or new.max_gpus is not None:
        _check_sizes(card, new, service)
    changed: dict[str, Any] = {}
    if new.max_run_seconds is not None:
        changed["max_run_seconds"] = new.max_run_seconds or None
    if new.tags is not None:
        changed["tags"] = tuple(new.tags)
    known = service.board.submission(card.id)
    submission = replace(known, **changed) if known is not None and changed else None
    event = ev.JobChanged(
        at=NOW,
        job=JobId(card.id),
        by=user.name,
        priority=new.priority,
        min_gpus=new.min_gpus,
        max_gpus=new.max_gpus,
        other=tuple(_other_changes(new)),
    )
    await committed(lambda done: service.change(event, submission, done), service)
    before = f"priority {card.priority:g}, {card.min_gpus} to {card.max_gpus or 'all'} GPUs"
    record("job changed", card.id, f"{', '.join(changes_of(event))}; before: {before}")
    return _changed(card, service)


@router.post("/{job}/hold", responses=NOT_FOUND)
async def hold(card: TheJob, service: TheService, user: TheUser, record: TheRecord) -> Changed:
    """Put a job on hold: it does not start until it is released. A running elastic job saves its
    work, gives its GPUs back and waits. A running fixed-size job is refused: it would lose its
    work."""
    _check_unfinished(card)
    if card.workers and not card.elastic:
        raise InvalidJobError(card.id, "it runs with a fixed size, so a hold would lose its work")
    await committed(lambda done: service.hold(card.id, user.name, done), service)
    record("job held", card.id)
    return _changed(card, service)


@router.post("/{job}/release", responses={**ADMINS, **NOT_FOUND})
async def release(card: TheJob, service: TheService, user: TheUser, record: TheRecord) -> Changed:
    """Release a job that is on hold. If an admin has put another user's job on hold, only an admin
    can release it."""
    _check_unfinished(card)
    if card.held_by not in ("", card.owner, user.name) and not user.is_admin:
        raise HTTPException(403, f"{card.id} was put on hold by {card.held_by}: ask an admin")
    await committed(lambda done: service.release(card.id, user.name, done), service)
    record("job released", card.id)
    return _changed(card, service)


@router.post("/{job}/rerun", status_code=201, responses=NOT_FOUND)
async def rerun(
    card: TheJob,
    service: TheService,
    user: TheUser,
    record: TheRecord,
    request: Request,
    given: Again | None = None,
) -> Submitted:
    """Submit a job again, as a new job with the same owner, command, environment and options.

    Environments of ended jobs are removed (`service.keep_environments`); then the owner's `env` is
    used."""
    known = service.board.submission(card.id)
    job = await asyncio.to_thread(requested, service.store, card.id)
    if known is None or job is None:
        why = "its submission has been removed from the database (keep_output_days); submit it anew"
        raise InvalidJobError(card.id, why)
    if not known.env:
        if card.owner != user.name:
            why = f"its environment was removed when it ended; only {card.owner} can run it again"
            raise InvalidJobError(card.id, why)
        env = scrubbed(given.env) if given is not None else {}
        if not env:
            why = "its environment was removed when it ended (keep_environments); give env"
            raise InvalidJobError(card.id, why)
        _limited(service, user, request, lambda: service.limits.check_environment(env))
        known = replace(known, env=env)
    _limited(service, user, request, lambda: _check_room(service, card.owner, 1))
    again = replace(
        job, id=service.new_id(known.name), submitted_at=0.0, after=(), array="", array_limit=None
    )
    if known.snapshot:
        service.snapshots.use(card.owner, known.snapshot, again.id)
    await committed(lambda done: service.submit(again, known, done), service)
    record("job rerun", again.id, f"as {card.id} of {card.owner}")
    return Submitted(id=again.id)


@router.post("/{job}/cancel", responses=NOT_FOUND)
async def cancel(card: TheJob, service: TheService, user: TheUser, record: TheRecord) -> Changed:
    """Cancel a job. A job that has ended does not change."""
    if not card.over:
        await committed(lambda done: service.cancel(card.id, user.name, done), service)
        if card.owner != user.name:
            record("job cancelled", card.id, f"of {card.owner}")
    return _changed(card, service)


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


@router.get("/{job}/utilisation", responses=NOT_FOUND)
def utilisation(card: TheJob, service: TheService) -> UtilisationShown:
    """What the workers of a job use: now, and over time. In memory: empty after a restart of the
    controller, and for jobs that ended long ago."""
    board = service.utilisation
    shown = {"workers": board.workers(card.id), **board.curves(card.id, MOST_CURVES)}
    return UtilisationShown.model_validate(shown)


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


def _changed(card: JobCard, service: Service) -> Changed:
    return Changed(id=card.id, state=service.board.cards[card.id].state)


def _check_unfinished(card: JobCard) -> None:
    if card.over:
        raise InvalidJobError(card.id, f"it has ended ({card.state}); again: ones rerun {card.id}")


def _check_sizes(card: JobCard, new: JobChange, service: Service) -> None:
    if not card.elastic:
        raise InvalidJobError(card.id, "it has a fixed size; cancel it and submit it again")
    least = card.min_gpus if new.min_gpus is None else new.min_gpus
    most = card.max_gpus if new.max_gpus is None else new.max_gpus or None
    if most is not None and most < least:
        raise InvalidJobError(card.id, f"max_gpus {most} is less than min_gpus {least}")
    limit = service.scheduler.state.waiting.limits.get(card.owner)
    _check_least(card.id, f"min_gpus {least}", least, service, card.owner, limit)


def _check_least(
    job: str, asked: str, least: int, service: Service, owner: str, limit: int | None
) -> None:
    """Check the minimum number of GPUs of a job. `limit`: of its owner."""
    slots = service.most_slots()
    if least > slots:
        raise InvalidJobError(job, f"{asked} is more than the cluster has, {slots}")
    if limit is not None and least > limit:
        most = f"{limit} {'GPU' if limit == 1 else 'GPUs'}"
        raise InvalidJobError(job, f"{asked} is more than the limit of user {owner}, {most}")


def _other_changes(new: JobChange) -> Iterator[str]:
    """Changes that the scheduler does not need, as text."""
    if new.max_run_seconds is not None:
        limit = duration(new.max_run_seconds) if new.max_run_seconds else "no limit"
        yield f"run time {limit}"
    if new.tags is not None:
        yield f"tags {' '.join(new.tags)}" if new.tags else "no tags"


def _check_room(service: Service, owner: str, jobs: int) -> None:
    """Check the budget of a user, and the number of unfinished jobs with these new ones."""
    service.usage.check_budget(owner, service.board.live)
    service.limits.check_unfinished(owner, service.board.unfinished[owner] + max(0, jobs - 1))


def _check_limits(new: NewJob, service: Service, user: User, request: Request) -> None:
    limits = service.limits

    def check() -> None:
        limits.check_command(new.command)
        limits.check_environment(new.env)
        if not user.is_admin:
            limits.check_priority(new.priority)

    _limited(service, user, request, check)


def _limited(service: Service, user: User, request: Request, check: Callable[[], None]) -> None:
    """Call `check`; note it in the audit log if it raises LimitError."""
    try:
        check()
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
