"""HTTP routes of snapshots: the archives of the code of jobs."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from ones.control.api.access import TheService, TheUser, bearer
from ones.control.api.response_models import NOT_FOUND, PROBLEMS
from ones.core.job import JobId
from ones.exec.snapshot import PATH

router = APIRouter(tags=["jobs"], responses=PROBLEMS)

MOST_BYTES = 2**40


class SnapshotLimit(BaseModel):
    max_mb: float = Field(description="maximum size of the files of a snapshot")


class SnapshotShown(BaseModel):
    digest: str
    complete: bool = Field(description="a job can use it")


@router.get("/api/snapshots")
def limit(service: TheService, user: TheUser) -> SnapshotLimit:
    """The limit of `ones submit --snapshot`."""
    return SnapshotLimit(max_mb=service.snapshots.max_mb)


@router.get("/api/snapshots/{digest}", responses=NOT_FOUND)
def snapshot(digest: str, service: TheService, user: TheUser) -> SnapshotShown:
    """Whether the user has uploaded this archive. If so, it is kept for an hour."""
    return SnapshotShown(digest=digest, complete=service.snapshots.has(user.name, digest))


@router.put("/api/snapshots/{digest}", responses=NOT_FOUND)
async def upload(
    digest: str,
    request: Request,
    service: TheService,
    user: TheUser,
    offset: Annotated[int, Query(ge=0, le=MOST_BYTES, description="of this part")],
    total: Annotated[int, Query(ge=1, le=MOST_BYTES, description="bytes of the archive")],
) -> SnapshotShown:
    """Upload a part of an archive: a tar file, compressed by gzip, with the SHA-256 `digest`. The
    last part completes it. It may have files, and links that stay in the tree."""
    part = await request.body()
    complete = await asyncio.to_thread(
        service.snapshots.write, user.name, digest, part, offset, total
    )
    return SnapshotShown(digest=digest, complete=complete)


@router.get(PATH, include_in_schema=False)
def of_job(request: Request, service: TheService) -> FileResponse:
    """The archive of a job, for its workers: the request has the token of the job."""
    token = bearer(request)
    job = service.tokens.job_of(token) if token else None
    if job is None:
        raise HTTPException(401, "missing or invalid token of a job")
    live, card = service.engine.live.jobs.get(JobId(job)), service.board.cards.get(job)
    if live is None or card is None or not live.submission.snapshot:
        raise HTTPException(409, f"{job} has ended, or has no snapshot")
    path = service.snapshots.path(card.owner, live.submission.snapshot)
    if not path.is_file():
        raise HTTPException(404, f"the snapshot of {job} was removed")
    return FileResponse(path, media_type="application/gzip")
