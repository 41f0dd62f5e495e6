"""Hypothesis strategies for the domain."""

from __future__ import annotations

from hypothesis import strategies as st

from ones.core import Allocation, Cluster, Gpu, Job, JobId, Schedule, Worker
from ones.core import events as ev
from ones.core.cluster import Node, NodeId, NodeState
from ones.core.job import Configuration, EndReason, Forecast, Generation
from ones.core.plan import Action, Finish, Plan, Prepare, Rescale, Start, Stop, Withdraw
from ones.stopping import StopRule
from ones.wire.work import Unit, Work

times = st.floats(0, 1e6, allow_nan=False)
names = st.text("abcdefgh0123456789-", min_size=1, max_size=8)
job_ids = names.map(JobId)
generations = st.builds(Generation, st.integers(0, 50), st.integers(0, 3))
gpus = st.builds(Gpu, names.map(NodeId), st.integers(0, 15))
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
counts = st.integers(1, 10_000)
works = st.none() | st.builds(Work, st.sampled_from(Unit), counts, st.none() | counts)

stop_rules = st.builds(
    StopRule,
    target_accuracy=st.none() | st.floats(0, 1),
    target_epochs=st.integers(1, 10),
    patience=st.none() | st.integers(1, 10),
    max_epochs=st.none() | st.integers(1, 100),
    max_steps=st.none() | st.integers(1, 10**6),
    max_samples=st.none() | st.integers(1, 10**9),
    max_tokens=st.none() | st.integers(1, 10**12),
)
jobs = st.builds(
    Job,
    id=job_ids,
    submitted_at=times,
    kind=names,
    owner=names,
    command=st.lists(names, max_size=3).map(tuple),
    priority=finite,
    requested_gpus=st.integers(1, 8),
    requested_batch=st.none() | counts,
    max_batch=st.none() | counts.map(lambda n: n + 100),
    min_batch=st.none() | st.integers(1, 100),
    epochs=st.none() | counts,
    stop=stop_rules,
    retries=st.integers(0, 3),
)
configurations = st.builds(
    Configuration, st.integers(1, 64), st.integers(1, 16), counts, st.integers(1, 4)
)
_report = {"at": times, "job": job_ids, "generation": generations}
events: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.JobSubmitted, times, jobs),
    st.builds(
        ev.JobDescribed,
        **_report,
        dataset_size=counts,
        base_batch=counts,
        min_batch=st.none() | counts,
        max_batch=st.none() | counts,
    ),
    st.builds(
        ev.StepsDone,
        **_report,
        epoch=counts,
        steps=counts,
        samples=counts,
        planned_epochs=st.none() | counts,
        work=works,
        effective_samples=st.none() | st.floats(0, 1e9),
    ),
    st.builds(
        ev.EpochFinished,
        **_report,
        epoch=counts,
        samples=counts,
        steps=counts,
        loss=st.none() | st.floats(allow_nan=False),
        accuracy=st.none() | st.floats(0, 1),
        effective_samples=st.none() | st.floats(0, 1e9),
    ),
    st.builds(
        ev.ThroughputMeasured,
        **_report,
        configuration=configurations,
        step_seconds=st.floats(1e-6, 100),
        steps=counts,
    ),
    st.builds(ev.MemoryLimitLearned, **_report, max_local_batch=counts),
    st.builds(ev.JobFoundFixed, times, job_ids, generations),
    st.builds(ev.TrackerLinked, times, job_ids, generations, st.just("https://runs.example/1")),
    st.builds(ev.TrainingRestarted, times, job_ids, generations, counts),
    st.builds(ev.WorkerReady, times, job_ids, generations, gpus, st.none() | counts),
    st.builds(ev.WorkerLeft, times, job_ids, generations, gpus),
    st.builds(ev.WorkerLost, times, job_ids, generations, gpus, names),
    st.builds(
        ev.Rescaled, times, job_ids, generations, st.floats(0, 100), batch=st.none() | counts
    ),
    st.builds(ev.RescaleFailed, times, job_ids, generations, names),
    st.builds(
        ev.NodeUp,
        times,
        names.map(NodeId),
        st.integers(1, 16),
        st.lists(st.integers(0, 3), max_size=4).map(tuple),
    ),
    st.builds(ev.NodeDraining, times, names.map(NodeId)),
    st.builds(ev.NodeDown, times, names.map(NodeId)),
    st.builds(ev.GpuSetAside, times, gpus, names),
    st.builds(ev.GpuReturned, times, gpus),
    st.builds(ev.CancelRequested, times, job_ids, names),
    st.builds(ev.PriorityChanged, times, job_ids, finite),
    st.builds(
        ev.JobChanged,
        at=times,
        job=job_ids,
        by=names,
        priority=st.none() | finite,
        min_gpus=st.none() | counts,
        max_gpus=st.none() | counts,
        other=st.lists(names, max_size=2).map(tuple),
    ),
    st.builds(ev.JobHeld, times, job_ids, names),
    st.builds(ev.JobReleased, times, job_ids, names),
    st.builds(ev.JobWarned, times, job_ids, st.sampled_from(["idle", "slow"]), names),
    st.builds(ev.OwnerLimitSet, times, names, st.none() | counts),
    st.builds(
        ev.FairShareSet,
        times,
        st.floats(0, 1e6),
        st.dictionaries(names, st.floats(0, 1e9), max_size=2),
    ),
    st.builds(ev.JobEnded, times, job_ids, st.sampled_from(EndReason), names),
    st.builds(
        ev.EntryQuarantined,
        at=times,
        entry=st.integers(0, 10**6),
        kind=names,
        reason=names,
        job=st.none() | job_ids,
        policy_only=st.booleans(),
    ),
    st.builds(
        ev.PolicyFailed, at=times, policy=names, reason=names, failures=counts, retry_at=times
    ),
    st.builds(ev.PolicyReplaced, at=times, policy=names, reason=names),
    st.builds(ev.Woke, times),
)


@st.composite
def schedules(draw: st.DrawFn, cluster: Cluster, jobs: tuple[JobId, ...]) -> Schedule:
    """Any schedule of these jobs."""
    takers = draw(
        st.lists(st.sampled_from([None, *jobs]), min_size=cluster.n_gpus, max_size=cluster.n_gpus)
    )
    workers: dict[JobId, list[Worker]] = {}
    for gpu, job in zip(cluster.gpus(), takers, strict=True):
        if job is not None:
            batch = draw(st.integers(1, 4)) * 16
            workers.setdefault(job, []).append(Worker(gpu, batch))
    return Schedule({job: Allocation(tuple(mine)) for job, mine in workers.items()})


workers = st.builds(Worker, gpus, st.integers(0, 4096), st.integers(1, 8))
allocations = st.lists(workers, min_size=1, max_size=4, unique_by=lambda worker: worker.gpu).map(
    lambda chosen: Allocation(tuple(chosen))
)
base_batches = st.none() | counts
actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(Start, job_ids, allocations, base_batches),
    st.builds(Rescale, job_ids, allocations, base_batches),
    st.builds(Prepare, job_ids, allocations),
    st.builds(Withdraw, job_ids),
    st.builds(Stop, job_ids),
    st.builds(Finish, job_ids, st.sampled_from(EndReason), st.text(max_size=20)),
)
_eta = st.floats(0, allow_nan=False)
forecasts = st.builds(Forecast, _eta, _eta, _eta)
plans = st.builds(
    Plan,
    number=st.integers(0, 10**9),
    at=times,
    actions=st.lists(actions, max_size=4).map(tuple),
    notes=st.dictionaries(job_ids, st.text(max_size=30), max_size=3),
    forecasts=st.dictionaries(job_ids, forecasts, max_size=3),
)
nodes = st.builds(
    Node, names.map(NodeId), st.integers(1, 16), st.sampled_from(NodeState), st.integers(0, 9)
)
