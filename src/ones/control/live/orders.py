"""From what a plan says to launches and to orders for workers.

A start or a re-scale gathers its workers first: who is missing is launched, and once all have
joined they get their `Switch`, all the same one.
"""

from __future__ import annotations

from math import inf

import sqlalchemy as sa

from ones.control.live.floor import Floor
from ones.control.live.jobs import NOW, Kind, LiveJob, LiveWorker, Pending, launch_id
from ones.control.schema import heard
from ones.core import events as ev
from ones.core.cluster import Gpu
from ones.core.job import EndReason, Generation
from ones.core.plan import Action, Finish, Prepare, Rescale, Start, Stop, Withdraw
from ones.core.schedule import Allocation
from ones.launchers import Launch, SupportsPrepare
from ones.wire import messages as wire
from ones.wire.environment import WorkerEnvironment


def begin(floor: Floor, action: Action, plan: int) -> None:
    job = floor.jobs.get(action.job)
    if job is None or job.ended:  # meanwhile, and its `JobEnded` is on its way
        if isinstance(action, Start | Rescale):
            _never_came(floor, job, action, plan)
        return
    match action:
        case Start():
            job.generation = Generation(plan)
            _gather(floor, job, Kind.START, plan, action.allocation)
        case Rescale():
            if job.elastic:
                _gather(floor, job, Kind.RESCALE, plan, action.allocation)
            else:
                why = "it cannot be re-scaled: its script has not called ones.join"
                floor.say(ev.RescaleFailed(NOW, job.id, Generation(plan), why))
        case Stop():
            _stop(floor, job, plan)
        case Finish():
            _finish(floor, job, plan, action.reason, action.message)
        case Prepare():
            _warm_up(floor, job, plan, action.allocation)
        case Withdraw():
            pass  # who waits in vain for a worker ends by itself


def _never_came(floor: Floor, job: LiveJob | None, action: Start | Rescale, plan: int) -> None:
    """Slots that were counted as taken, for a job that is over: nobody will leave them."""
    present = job.present() if job is not None else set()
    for gpu in action.allocation.gpus:
        if gpu not in present:
            floor.say(ev.WorkerLeft(NOW, action.job, Generation(plan), gpu))


def _gather(floor: Floor, job: LiveJob, kind: Kind, plan: int, allocation: Allocation) -> None:
    """Start who is missing; once all have joined, they get their `Switch`."""
    # who took long once will again
    patience = max(floor.patience.join_seconds, 3 * job.join_seconds)
    deadline = floor.clock.now() + patience
    job.pending = Pending(kind, plan, allocation, deadline=deadline)
    # where a worker ended as if the job were done, that is settled first (`quiet_seconds`)
    present = job.present() | {gpu for worker in job.quiet for gpu in worker.gpus}
    missing = [gpu for gpu in allocation.gpus if gpu not in present]
    if job.elastic:
        for gpu in missing:
            _launch(floor, job, plan, (gpu,))
        publish_if_all_joined(floor, job)
    elif missing:
        job.pending.deadline = inf
        _launch(floor, job, plan, tuple(missing))


def _launch(floor: Floor, job: LiveJob, plan: int, gpus: tuple[Gpu, ...]) -> None:
    if floor.winding_down:
        return  # the order stands in the log: it is begun again when the service is
    launch = launch_for(floor, job, plan, gpus)
    floor.launcher.launch(launch)  # first: what raises here has started nothing
    job.workers[launch.id] = LiveWorker(launch.id, gpus, plan, since=floor.clock.now())


def _warm_up(floor: Floor, job: LiveJob, plan: int, allocation: Allocation) -> None:
    """While others still leave the GPUs: torch is loaded where the newcomers will be. Their script
    itself begins when the GPUs are free, for it may touch them before it joins."""
    launcher = floor.launcher
    if floor.winding_down or not isinstance(launcher, SupportsPrepare):
        return
    there = {gpu.node for gpu in job.present()}
    for node in {gpu.node: gpu for gpu in allocation.gpus if gpu.node not in there}.values():
        launch = launch_for(floor, job, plan, (node,))
        if launch.zygote:
            launcher.prepare(launch)


def launch_for(floor: Floor, job: LiveJob, plan: int, gpus: tuple[Gpu, ...]) -> Launch:
    submission = job.submission
    env = dict(submission.env)
    if job.elastic:
        env |= WorkerEnvironment(
            controller=floor.url,
            token=floor.tokens.of(job.id),
            job=job.id,
            worker=str(gpus[0]),
            plan=plan,
            run_dir="",  # these two are the launcher's to say
            job_dir="",
            checkpoints=f"{floor.checkpoints}/{job.id}",
            authority=floor.authority,
        ).to_env()
    return Launch(
        id=launch_id(job.id, plan, gpus),
        job=job.id,
        slots=tuple(map(str, gpus)),
        argv=submission.argv,
        cwd=submission.cwd,
        env=env,
        grace_seconds=floor.patience.grace_seconds,
        zygote=job.elastic and submission.elastic is True,
    )


def publish_if_all_joined(floor: Floor, job: LiveJob) -> None:
    """The go-ahead of a start or a re-scale, once nobody is missing."""
    order = job.pending
    if order is None or order.published or order.allocation is None:
        return
    there = {gpu for w in job.workers.values() if w.alive and w.joined for gpu in w.gpus}
    if not there.issuperset(order.allocation.gpus):
        return
    allocation = job.spelled_out(order.allocation)
    switch = wire.Switch(
        plan=order.plan,
        members=tuple(
            wire.Member(worker=str(w.gpu), batch=w.batch, micro_steps=w.micro_steps)
            for w in allocation.workers
        ),
        batch=allocation.batch,
        base_batch=(
            job.description.base_batch if job.description is not None else allocation.batch
        ),
    )
    order.published = True
    order.deadline = floor.clock.now() + floor.patience.switch_seconds
    members = set(order.allocation.gpus)
    for worker in job.workers.values():
        worker.leaving |= worker.gpus[0] not in members
        floor.mailbox.put(worker.launch, switch)


def give_up_rescale(floor: Floor, job: LiveJob, reason: str) -> None:
    """The job goes on as before; newcomers are sent away, and who was to leave stays."""
    order = job.pending
    assert order is not None
    plan = order.plan
    job.pending = None
    for worker in job.workers.values():
        worker.leaving = worker.plan == plan
        if worker.leaving:
            worker.parted = True  # it never trained
            floor.launcher.stop(worker.launch, floor.patience.grace_seconds)
    floor.say(ev.RescaleFailed(NOW, job.id, Generation(plan), reason))


def _stop(floor: Floor, job: LiveJob, plan: int) -> None:
    deadline = floor.clock.now() + floor.patience.checkpoint_seconds
    job.pending = Pending(Kind.STOP, plan, deadline=deadline)
    for worker in job.workers.values():
        _send_away(floor, worker, wire.CheckpointAndLeave(plan))


def _finish(floor: Floor, job: LiveJob, plan: int, reason: EndReason, message: str) -> None:
    end(floor, job, plan)
    floor.say(ev.JobEnded(NOW, job.id, reason, message))
    quiet, job.quiet = job.quiet, []
    for worker in quiet:  # whether the job was done does not matter any more
        for gpu in worker.gpus:
            generation = max(job.generation, Generation(worker.plan))
            floor.say(ev.WorkerLeft(NOW, job.id, generation, gpu))
    for worker in job.workers.values():
        _send_away(floor, worker, wire.End(reason.value, plan))


def _send_away(floor: Floor, worker: LiveWorker, order: wire.Order) -> None:
    worker.leaving = True
    if worker.joined:
        floor.mailbox.put(worker.launch, order)
    else:
        floor.launcher.stop(worker.launch, floor.patience.grace_seconds)


def end(floor: Floor, job: LiveJob, plan: int = 0) -> None:
    """It is over. Workers that are still there get some time to go."""
    job.ended = True
    deadline = floor.clock.now() + floor.patience.end_seconds
    job.pending = Pending(Kind.STOP, plan, deadline=deadline)
    if not job.workers:
        forget(floor, job)


def forget(floor: Floor, job: LiveJob) -> None:
    """Nothing of it is left to look after. What the launcher knows of its exits is dropped when
    the end of the job is safe: until then a restarted controller needs it."""
    floor.jobs.pop(job.id, None)
    rows = heard.delete().where(heard.c.job == job.id)

    def safe(problem: Exception | None) -> None:
        if problem is None:
            floor.launcher.forget(job.id)

    def write() -> None:
        floor.store.write(operations=[lambda connection: _run(connection, rows)], done=safe)

    floor.post(write)  # stimuli wait until all events have gone out: this is written behind them


def _run(connection: sa.Connection, statement: sa.Delete) -> None:
    connection.execute(statement)
