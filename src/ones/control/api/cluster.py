"""HTTP routes of the cluster, decisions, users, health and metrics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sse_starlette import EventSourceResponse

from ones.control.accounts import User
from ones.control.api.access import (
    TheAdmin,
    TheRecord,
    TheService,
    TheUser,
    committed,
    reader_of,
)
from ones.control.api.metrics import exposition
from ones.control.api.request_models import Drained, Limit, NewUser, Place, UnixUser
from ones.control.api.response_models import (
    ADMINS,
    NOT_FOUND,
    PROBLEMS,
    AuditShown,
    ClusterShown,
    DecisionShown,
    HealthShown,
    Link,
    NewToken,
    NodeShown,
    QuarantinedShown,
    SlotShown,
    SlurmAutoShown,
    UserShown,
)
from ones.control.readmodels.history import decisions
from ones.control.readmodels.job_cards import WAITING_STATES, JobCard
from ones.control.service import Service
from ones.control.version import SOFTWARE
from ones.core.cluster import Gpu
from ones.launchers import SupportsUnfitNodes

router = APIRouter(tags=["service"], responses=PROBLEMS)
#: maximum number of events that wait for a slow reader; beyond it the stream ends, and the client
#: connects again
BACKLOG = 1000


@router.get("/api/cluster")
def cluster(service: TheService, user: TheUser) -> ClusterShown:
    """Nodes and slots, and the job on each slot."""
    board, live = service.board, service.board.live()
    states = {node.name: node.state for node in board.nodes}
    groups = {node.name: node.groups for node in board.nodes if node.groups}
    cordons = {str(gpu): "; ".join(causes.values()) for gpu, causes in _cordons(service)}
    where = {worker.gpu: (card, worker) for card in live for worker in card.workers}
    drained = {str(node): why for node, why in list(service.engine.cordons.drained.items())}
    slots = []
    for slot in service.launcher.slots():
        card, worker = where.get(slot.id, (None, None))
        group_of = groups.get(slot.node, ())
        visible = card is not None and service.may_see(user, card.owner)
        slots.append(
            SlotShown(
                id=slot.id,
                node=slot.node,
                kind=slot.kind,
                name=slot.name,
                memory_mb=slot.memory_mb,
                job=card.id if card is not None and visible else None,
                owner=card.owner if card is not None else None,
                batch=worker.batch if worker is not None else None,
                leaving=worker.leaving if worker is not None else False,
                coming=worker.coming if worker is not None else False,
                used_by=list(slot.used_by),
                state="draining" if slot.id in cordons else states.get(slot.node, "down"),
                aside=cordons.get(slot.id, ""),
                group=group_of[slot.index] if slot.index < len(group_of) else None,
            )
        )
    return ClusterShown(
        policy=service.policy,
        now=service.clock.now(),
        nodes=[
            NodeShown(name=n.name, gpus=n.gpus, state=n.state, reason=drained.get(n.name, ""))
            for n in board.nodes
        ],
        slots=slots,
        unfit=dict(launcher.unfit)
        if isinstance(launcher := service.launcher, SupportsUnfitNodes)
        else {},
        waiting=sum(card.state in WAITING_STATES for card in live),
        running=sum(bool(card.workers) for card in live),
        isolation=service.isolation(),
        slurm_auto=SlurmAutoShown.of(service.slurm_auto.shown()) if service.slurm_auto else None,
        warnings=service.warnings(),
    )


def _cordons(service: Service) -> list[tuple[Gpu, dict[str, str]]]:
    """A copy of the cordoned GPUs, which the scheduler's thread changes."""
    return [(gpu, dict(causes)) for gpu, causes in list(service.engine.cordons.gpus.items())]


@router.post("/api/cluster/drain", responses={**ADMINS, **NOT_FOUND})
async def drain(
    where: Drained, service: TheService, admin: TheAdmin, record: TheRecord
) -> ClusterShown:
    """Drain a node or cordon a GPU: no new worker is placed there. Present workers may stay, and
    elastic jobs move away as soon as the policy finds other GPUs."""
    reason = where.reason or ""
    await committed(lambda done: service.drain(where.place, admin.name, done, reason), service)
    record("drained", where.place, reason)
    return cluster(service, admin)


@router.post("/api/cluster/undrain", responses={**ADMINS, **NOT_FOUND})
async def undrain(
    where: Place, service: TheService, admin: TheAdmin, record: TheRecord
) -> ClusterShown:
    """Use a drained node, or a GPU that an operator or its failures cordoned, again."""
    await committed(lambda done: service.undrain(where.place, done), service)
    record("undrained", where.place)
    return cluster(service, admin)


@router.get("/api/decisions")
def all_decisions(
    service: TheService,
    user: TheUser,
    after: Annotated[int, Query(ge=0, le=2**53)] = 0,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    telling: Annotated[bool, Query(description="only decisions with actions or reasons")] = False,
) -> list[DecisionShown]:
    """Plans with their reasons, the newest first, without the parts about jobs of other users."""

    reader = reader_of(service, user)
    found: list[DecisionShown] = []
    for plan in decisions(
        service.store, reader.text, after=after, before=before, limit=limit, some=telling
    ):
        plan["actions"] = [a for a in plan["actions"] if reader.sees(a["job"])]
        for part in ("notes", "forecasts"):
            plan[part] = {job: value for job, value in plan[part].items() if reader.sees(job)}
        if not telling or plan["actions"] or plan["notes"]:
            found.append(DecisionShown.model_validate(plan))
        if len(found) == limit:
            break
    return found


@router.get("/api/events", response_class=EventSourceResponse)
async def events(service: TheService, user: TheUser) -> EventSourceResponse:
    """Server-sent events: `job` with the job's new state whenever a job changes. Read the list of
    jobs after connecting, so that no change is missed."""
    return EventSourceResponse(_changes(service, user), ping=15)


async def _changes(service: Service, user: User) -> AsyncIterator[dict[str, str]]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[JobCard | None] = asyncio.Queue(BACKLOG)

    def put(card: JobCard) -> None:
        if queue.full():
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)
        else:
            queue.put_nowait(card)

    def follower(card: JobCard) -> None:
        if service.may_see(user, card.owner):
            loop.call_soon_threadsafe(put, card)

    reader = reader_of(service, user)
    unfollow = service.board.follow(follower)
    try:
        yield {"event": "hello", "data": json.dumps({"now": service.clock.now()})}
        while not service.closing and service.accounts.is_current(user):
            try:
                card = await asyncio.wait_for(queue.get(), 1.0)
            except TimeoutError:
                continue
            if card is None or not service.accounts.is_current(user):
                return
            yield {"event": "job", "data": json.dumps(reader.card(card, service.clock.now()))}
    finally:
        unfollow()


@router.get("/api/users", responses=ADMINS)
def users(service: TheService, admin: TheAdmin) -> list[UserShown]:
    """All users, with their limits."""
    return [UserShown.of(user) for user in service.accounts.all()]


@router.get("/api/me")
def me(user: TheUser) -> UserShown:
    """The user of the token."""
    return UserShown.of(user)


@router.post("/api/users", status_code=201, responses=ADMINS)
def add_user(new: NewUser, service: TheService, admin: TheAdmin, record: TheRecord) -> NewToken:
    """Add a user. The token is shown once: only its hash is kept."""
    service.check_new_user(new.name, new.unix)
    user, token = service.accounts.add(new.name, new.role, new.unix)
    unix = f", Unix user {user.unix}" if user.unix else ""
    record("user added", user.name, f"role {user.role}{unix}")
    return NewToken(name=user.name, token=token)


@router.delete("/api/users/{name}", responses={**ADMINS, **NOT_FOUND})
def remove_user(name: str, service: TheService, admin: TheAdmin, record: TheRecord) -> UserShown:
    """Remove a user. The token and all sessions end at once; the user's jobs continue, and an admin
    may cancel them."""
    user = service.accounts.remove(name, by=admin.name)
    record("user removed", user.name)
    return UserShown.of(user)


@router.post("/api/users/{name}/token", responses={**ADMINS, **NOT_FOUND})
def renew_token(name: str, service: TheService, admin: TheAdmin, record: TheRecord) -> NewToken:
    """Renew a user's token. The old token, all sessions and open event streams end at once."""
    token = service.renew_token(name)
    record("token renewed", name)
    return NewToken(name=name, token=token)


@router.put("/api/users/{name}/unix", responses={**ADMINS, **NOT_FOUND})
def set_unix(
    name: str, new: UnixUser, service: TheService, admin: TheAdmin, record: TheRecord
) -> UserShown:
    """Set a user's Unix user; null: none. Jobs that were submitted before keep theirs."""
    service.check_unix(new.unix)
    user = service.accounts.set_unix(name, new.unix)
    record("Unix user set", name, new.unix or "none")
    return UserShown.of(user)


@router.put("/api/users/{name}/limit", responses={**ADMINS, **NOT_FOUND})
async def set_limit(
    name: str, new: Limit, service: TheService, admin: TheAdmin, record: TheRecord
) -> UserShown:
    """Set the maximum number of GPUs for all jobs of a user together; null: no limit."""
    service.accounts.get(name)
    await committed(lambda done: service.set_limit(name, new.max_gpus, done), service)
    record("limit set", name, "no limit" if new.max_gpus is None else f"{new.max_gpus} GPUs")
    user = service.accounts.get(name)
    return UserShown.of(user)


@router.get("/api/audit", responses=ADMINS)
def audit(
    service: TheService,
    admin: TheAdmin,
    user: Annotated[
        str | None, Query(max_length=100, description="rows by or about this user")
    ] = None,
    since: Annotated[
        float | None,
        Query(ge=0, le=1e12, allow_inf_nan=False, description="rows from this time on"),
    ] = None,
    before: Annotated[
        int | None, Query(ge=1, le=2**53, description="rows with a smaller number")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[AuditShown]:
    """The audit log, the newest row first. For older rows ask again with `before` = the smallest
    `number`."""
    rows = service.audit.rows(limit, user=user, since=since, before=before)
    return [AuditShown.model_validate(asdict(row)) for row in rows]


@router.post("/api/link")
def link(service: TheService, user: TheUser, request: Request) -> Link:
    """A link that logs in one browser, once, within ten minutes."""
    code = service.accounts.new_link(user)
    return Link(url=f"{str(request.base_url).rstrip('/')}/login?code={code}")


@router.post("/api/shutdown", status_code=202, responses=ADMINS)
def shutdown(service: TheService, admin: TheAdmin, record: TheRecord) -> HealthShown:
    """Stop the service: all workers save their work and exit first. Jobs continue after the next
    start."""
    record("shutdown")
    service.wind_down()
    return HealthShown(ok=True, version=SOFTWARE, problems=[])


@router.get("/health", responses={503: {"model": HealthShown}})
def health(service: TheService, response: Response) -> HealthShown:
    """Health of the service. Needs no token and names no jobs."""
    problems = service.problems()
    if problems:
        response.status_code = 503
    return HealthShown(
        ok=not problems, version=SOFTWARE, problems=problems, warnings=service.warnings()
    )


@router.get("/api/quarantine")
def quarantine(service: TheService, user: TheUser) -> list[QuarantinedShown]:
    """Entries of the run log that made the scheduler raise, the oldest first. An admin sees all, a
    user only those of own jobs."""

    def may_see(job: str | None) -> bool:
        card = service.board.cards.get(job) if job is not None else None
        return user.is_admin or (card is not None and card.owner == user.name)

    return [
        QuarantinedShown.model_validate(asdict(entry))
        for entry in service.quarantine.entries()
        if may_see(entry.job)
    ]


@router.get("/metrics", response_class=Response)
def metrics(service: TheService) -> Response:
    """Metrics for Prometheus: counts and durations, no names of jobs."""
    return Response(exposition(service), media_type="text/plain; version=0.0.4")
