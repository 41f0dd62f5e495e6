"""`equi`: equal shares."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ones.core import Cluster, Event, Generation, Gpu, Job, JobId, NodeId, Plan, Scheduler, State
from ones.core import events as ev
from ones.core.plan import Start
from ones.models.sharing import OwnerQuota, ShareRequest, equal_shares
from ones.policies import create
from ones.sim import Simulator
from ones.workload import Trace, TraceJob, Training, generate

claims = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 10)), min_size=1, max_size=12).map(
    lambda rows: [
        ShareRequest(JobId(f"j{i}"), "", least, least + more)
        for i, (least, more) in enumerate(rows)
    ]
)


@given(claims, st.integers(0, 40))
def test_shares_are_as_equal_as_limits_allow(claims: list[ShareRequest], gpus: int) -> None:
    shares = equal_shares(claims, gpus, OwnerQuota(State(Cluster.of(1)).view(), []))
    assert sum(shares.values()) <= gpus
    for claim in claims:
        if claim.job in shares:
            assert claim.least <= shares[claim.job] <= claim.most
    left = gpus - sum(shares.values())
    can_rise = [c for c in claims if c.job in shares and shares[c.job] < c.most]
    assert not (left and can_rise)  # no GPU is left that a job could use
    if can_rise:
        lowest = min(shares[c.job] for c in can_rise)
        for claim in claims:  # no job has two GPUs more than one that could grow
            if claim.job in shares:
                assert shares[claim.job] <= max(lowest + 1, claim.least)


def test_every_job_gets_a_share_and_shares_grow_when_a_job_ends() -> None:
    sizes: list[int] = []
    trace = generate(jobs=4, seed=3, gap=0.0)
    sim = Simulator(trace, Cluster.of(16), create("equi"), mechanism="elastic")

    def look(entry: Event | Plan) -> None:
        state = sim.scheduler.state
        if len(state.records) == 4 and all(r.settled for r in state.records.values()):
            sizes.extend(r.goal.n_gpus for r in state.records.values() if r.goal)

    sim.run(look)
    assert max(Counter(sizes), key=Counter(sizes).__getitem__) == 4


def test_with_more_jobs_than_gpus_they_take_turns() -> None:
    def job(i: int) -> TraceJob:
        return TraceJob(
            Job(id=JobId(f"j{i}"), submitted_at=0.0, kind="k", requested_batch=64, epochs=400),
            Training(kind="resnet50-imagenet", dataset_size=6400, base_batch=64),
        )

    started: dict[JobId, float] = {}

    def look(entry: Event | Plan) -> None:
        if isinstance(entry, Plan):
            for action in entry.actions:
                if isinstance(action, Start):
                    started.setdefault(action.job, entry.at)

    trace = Trace.of("crowd", [job(i) for i in range(6)])
    result = Simulator(trace, Cluster.of(2), create("equi", quantum=60.0)).run(look)
    assert len(started) == 6
    assert max(started.values()) < 60.0 * 6  # every job has run before the third turn of any
    assert all(o.preemptions > 0 for o in result.state.ended.values())


def test_a_lowered_limit_of_an_owner_gives_gpus_back() -> None:
    scheduler = Scheduler(Cluster.of(8), create("equi"))
    scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0, owner="her")))
    generation = Generation(1)
    scheduler.handle(ev.WorkerReady(1.0, JobId("a"), generation, Gpu(NodeId("n0"), 0)))
    plan = scheduler.handle(
        ev.JobDescribed(
            at=1.0,
            job=JobId("a"),
            generation=generation,
            dataset_size=1000,
            base_batch=32,
            max_local_batch=64,
        )
    )
    assert scheduler.state.schedule[JobId("a")].n_gpus == 8
    scheduler.handle(ev.Rescaled(2.0, JobId("a"), Generation(plan.number), 0.5))
    scheduler.handle(ev.OwnerLimitSet(3.0, "her", 2))
    assert scheduler.state.schedule[JobId("a")].n_gpus == 2


def growing_job() -> tuple[Scheduler, Plan]:
    """Alone on four GPUs, the job has joined on one and gets the order to grow."""
    scheduler = Scheduler(Cluster.of(4), create("equi"))
    scheduler.handle(ev.JobSubmitted(0.0, Job(id=JobId("a"), submitted_at=0.0)))
    generation = Generation(1)
    scheduler.handle(ev.WorkerReady(1.0, JobId("a"), generation, Gpu(NodeId("n0"), 0)))
    described = ev.JobDescribed(
        at=1.0, job=JobId("a"), generation=generation, dataset_size=1000, base_batch=32
    )
    return scheduler, scheduler.handle(described)


def failed(scheduler: Scheduler, plan: Plan, at: float) -> Plan:
    """The decision then; joining workers leave afterwards."""
    job, generation = JobId("a"), Generation(plan.number)
    answer = scheduler.handle(ev.RescaleFailed(at, job, generation, "no room"))
    for gpu in sorted(scheduler.state.records[job].occupied - {Gpu(NodeId("n0"), 0)}):
        scheduler.handle(ev.WorkerLeft(at, job, generation, gpu))
    return answer


def test_a_change_that_failed_is_not_tried_again_at_once() -> None:
    scheduler, plan = growing_job()
    assert scheduler.state.schedule[JobId("a")].n_gpus == 4
    answer = failed(scheduler, plan, 2.0)
    assert answer.actions == ()
    (note,) = answer.notes.values()
    assert note.startswith("Keeps 1 GPU: its last change failed.")
    assert scheduler.wake_at == 62.0
    other = Job(id=JobId("b"), submitted_at=3.0)
    started = scheduler.handle(ev.JobSubmitted(3.0, other))
    assert [type(a) for a in started.actions] == [Start]  # others are served meanwhile
    assert scheduler.state.schedule[JobId("a")].n_gpus == 1

    again = scheduler.handle(ev.Woke(62.0))
    assert scheduler.state.schedule[JobId("a")].n_gpus > 1
    twin = create("equi")
    failed(scheduler, again, 63.0)
    assert scheduler.wake_at == 63.0 + 120.0  # each time it is left alone for longer
    twin.load(scheduler.policy.save())
    assert twin.save() == scheduler.policy.save()
    last = scheduler.handle(ev.Woke(183.0))
    scheduler.handle(ev.Rescaled(184.0, JobId("a"), Generation(last.number), 0.5))
    assert scheduler.policy.save()["rests"] == {}


def test_with_a_tolerance_jobs_change_less_often_and_none_waits_for_it() -> None:
    trace = generate(jobs=12, seed=3, gap=12.0)
    results = {}
    for tolerance in (0.0, 1e-9, 0.5):
        policy = create("equi", tolerance=tolerance)
        state = Simulator(trace, Cluster.of(16), policy, mechanism="checkpoint").run().state
        results[tolerance] = list(state.ended.values())
    assert results[1e-9] == results[0.0]  # a job keeps its size only if its share is that size
    rescales = {t: sum(o.rescales for o in ended) for t, ended in results.items()}
    assert rescales[0.5] < 0.8 * rescales[0.0]
    assert max(o.queue_seconds for o in results[0.5]) < 120.0


def test_with_a_tolerance_a_waiting_job_gets_gpus_of_the_others() -> None:
    def job(i: int) -> TraceJob:
        return TraceJob(
            Job(id=JobId(f"j{i}"), submitted_at=200.0 * i, kind="k", epochs=400),
            Training(kind="resnet50-imagenet", dataset_size=6400, base_batch=64),
        )

    trace = Trace.of("pair", [job(0), job(1)])
    result = Simulator(trace, Cluster.of(4), create("equi", tolerance=10.0)).run()
    second = result.state.ended[JobId("j1")]
    assert second.queue_seconds < 60.0
