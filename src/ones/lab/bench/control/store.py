"""Part of `ones bench control`: events through scheduler and store, and a restart with a long log.

The log is made as the service makes it: a simulated run of the policy starts the jobs, and the
service's own recorder writes events, decisions and snapshots. Then the jobs report for weeks,
steps every half second and an epoch now and then. Finally all jobs end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ones.core import events as ev
from ones.core.cluster import Cluster
from ones.core.job import EndReason, Generation, SwitchCost
from ones.core.plan import Plan
from ones.core.scheduler import Scheduler
from ones.lab.bench.live_service import live_service
from ones.lab.service_client import Connect
from ones.policies import create
from ones.runlog import VERSION, Header
from ones.sim.engine import SimEngine
from ones.sim.lengths import physics_of
from ones.workload import generate

SLOTS = 64
EPOCH_STEPS = 20  # reports of steps in an epoch
MEASURED = 1000  # events at the end that are timed
REAL_TAIL = 4500  # events at the end with realistic times: more than snapshots leave


def bench_store(
    connect: Connect, home: Path, *, events: int, jobs: int, policy: str
) -> list[dict[str, Any]]:
    """Fill a state directory, then start a service on it."""
    from ones.control.statedir import StateDir

    directory = StateDir(home)
    directory.make()
    filled = _fill(directory.database, events, jobs, policy)
    size = sum(path.stat().st_size for path in home.glob("ones.db*"))
    began = time.monotonic()
    with live_service(connect, home, policy=policy, slots=SLOTS) as (client, _):
        client.get("/api/cluster")
        restart = time.monotonic() - began
    return [
        filled,
        {"case": f"restart after {events:,} events", "policy": policy, "n": 1, "events": events,
         "jobs": jobs, "restart_seconds": round(restart, 2), "database_mb": round(size / 1e6, 1)},
    ]  # fmt: skip


def _fill(database: str, events: int, jobs: int, policy: str) -> dict[str, Any]:
    from ones.control.readmodels.job_board import JobBoard
    from ones.control.recorder import begin, recover
    from ones.control.schema import submissions
    from ones.control.store import Store, insert
    from ones.control.submission import Submission
    from ones.control.version import SOFTWARE

    header = Header(
        version=VERSION, software=SOFTWARE, policy=policy, seed=0, settings={}, nodes=(),
        switch_cost=SwitchCost(), mechanism="elastic",
    )  # fmt: skip
    store = Store(database)
    begin(store, header)
    scheduler, recorder = recover(store, header, create(policy, seed=0))
    board = JobBoard(store, lambda job: True)

    def record(entry: ev.Event | Plan) -> None:
        if not isinstance(entry, ev.JobSubmitted):
            recorder(entry)
            return
        job = entry.job
        body = Submission(name=job.id, argv=("true",), cwd="/", env=_ENV).encoded()
        row = {"job": job.id, "owner": job.owner, "submitted_at": entry.at, "body": body}
        recorder(entry, [insert(submissions, row)])

    def shown() -> None:
        touched, recorder.touched = recorder.touched, set()
        board.update(scheduler.state, touched)

    _begin(scheduler, jobs, record)
    shown()
    dense, began, measured = events - REAL_TAIL, 0.0, 0
    for event in _reports(scheduler, lambda: recorder.number < dense):
        if recorder.number >= events:
            break
        recorder(event)
        if recorder.number < events - MEASURED:  # applied as after a restart
            scheduler.recall(event)
            continue
        if not measured:
            store.flush()
            began = time.perf_counter()
        measured += 1
        plan = scheduler.handle(event)  # with decisions and read models
        if not plan.says_nothing:
            recorder(plan)  # not carried out: those jobs keep their allocations
        shown()
    store.flush()
    seconds = time.perf_counter() - began
    for event in _ends(scheduler):
        recorder(event)
        scheduler.recall(event)
    shown()
    store.close()
    return {
        "case": "events through scheduler and store", "policy": policy, "n": measured,
        "events_per_second": round(measured / seconds, 0),
    }  # fmt: skip


_ENV = {f"VARIABLE_{n}": "x" * 60 for n in range(40)}  # as large as a user's


def _begin(scheduler: Scheduler, jobs: int, record: Callable[[ev.Event | Plan], None]) -> None:
    """Simulates the policy until all jobs are submitted; their allocations then stay."""
    cluster = Cluster.of(SLOTS, SLOTS)
    trace = generate(jobs=jobs, seed=1, gap=2.0)
    engine = SimEngine(trace, cluster, physics_of, seed=1)
    for node in cluster.nodes.values():
        event = ev.NodeUp(0.0, node.id, node.gpus)
        record(event)
        scheduler.handle(event)
    while scheduler.state.submitted < jobs:
        event_or_none = engine.next_event(scheduler.wake_at)
        assert event_or_none is not None
        record(event_or_none)
        plan = scheduler.handle(event_or_none)
        if not plan.says_nothing:
            record(plan)
            engine.carry_out(plan)


def _reports(scheduler: Scheduler, dense: Callable[[], bool]) -> Iterator[ev.Event]:
    """Endless reports of the running jobs: 32 jobs that report twice a second, an epoch every ten
    seconds. While `dense`, steps only and without pauses: a policy that searches follows epochs."""
    done: dict[str, tuple[int, int]] = {}  # job -> epochs, reports of steps in this one
    while True:
        running = [r for r in scheduler.state.records.values() if r.held is not None]
        for record in running:
            epochs, reports = done.get(record.id, (record.epochs, 0))
            is_dense = dense()
            at = scheduler.state.now + (1e-4 if is_dense else 1 / 64)
            size = record.description.dataset_size if record.description else 1000
            if reports < EPOCH_STEPS or is_dense:
                done[record.id] = (epochs, reports + 1)
                samples = size * min(reports, EPOCH_STEPS) // EPOCH_STEPS
                yield ev.StepsDone(
                    at=at, job=record.id, generation=record.generation, epoch=epochs + 1,
                    steps=reports, samples=samples,
                )  # fmt: skip
            else:
                done[record.id] = (epochs + 1, 0)
                yield ev.EpochFinished(
                    at=at, job=record.id, generation=record.generation, epoch=epochs + 1,
                    samples=size, steps=100, loss=1.0, accuracy=0.1, step_seconds=0.1,
                )  # fmt: skip


def _ends(scheduler: Scheduler) -> Iterator[ev.Event]:
    for record in list(scheduler.state.records.values()):
        yield ev.JobEnded(scheduler.state.now, record.id, EndReason.CANCELLED, "the end")
    for gpu, occupant in list(scheduler.state.occupants.items()):
        yield ev.WorkerLeft(scheduler.state.now, occupant.job, Generation(sys.maxsize), gpu)
