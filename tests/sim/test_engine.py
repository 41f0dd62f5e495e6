"""How the simulated world carries plans out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from ones.core import (
    Allocation,
    Cluster,
    Decision,
    EndReason,
    Event,
    Gpu,
    Job,
    JobId,
    NodeId,
    Plan,
    Schedule,
    State,
    View,
)
from ones.core import events as ev
from ones.policies import create
from ones.runlog import encode
from ones.sim import KindPhysics, Simulator
from ones.sim.sim_job import SimJob
from ones.testing.invariants import check_invariants
from ones.workload import Trace, TraceJob, Training, generate
from tests.core.test_strokes import Wish

A = JobId("a")
KIND = "resnet50-imagenet"
TIMES = KindPhysics(Training(kind=KIND, dataset_size=6400, base_batch=64)).switch
N0 = NodeId("n0")


def trace(epochs: int = 40, *incidents: ev.NodeDown | ev.NodeUp | ev.CancelRequested) -> Trace:
    job = Job(id=A, submitted_at=0.0, kind=KIND, requested_batch=64, epochs=epochs)
    training = Training(kind=KIND, dataset_size=6400, base_batch=64)
    return Trace.of("one job", [TraceJob(job, training)], incidents)


class Diary(Wish):
    """At given times, given GPUs: {time: GPUs}."""

    def __init__(self, sizes: dict[float, int], batch_per_gpu: int = 64) -> None:
        super().__init__()
        self.sizes, self.per_gpu = sizes, batch_per_gpu

    def decide(self, view: View) -> Decision:
        due = [n for at, n in self.sizes.items() if at <= view.now]
        wake = min((at for at in self.sizes if at > view.now), default=float("inf"))
        schedule = view.schedule
        if A in view.jobs and not view.job(A).pinned and due:
            edit = schedule.edit()
            places = [Gpu(N0, i) for i in range(due[-1])]
            known = view.job(A).description is not None
            if places and not known:
                edit.put(A, Allocation.as_scripted(places))
            elif places:
                edit.put(A, Allocation.even(places, self.per_gpu * len(places), 256))
            else:
                edit.drop(A)
            schedule = edit.done()
        return Decision(schedule=schedule, wake_at=wake if view.jobs else float("inf"))


def play(
    policy: Wish, trace: Trace, mechanism: str = "elastic", gpus: int = 8
) -> tuple[State, list[Event | Plan]]:
    log: list[Event | Plan] = []
    result = Simulator(trace, Cluster.of(gpus, 4), policy, mechanism=mechanism).run(log.append)
    check_invariants(result.state)
    return result.state, log


def first(log: list[Event | Plan], kind: type[Event], after: float = 0.0) -> Event:
    return next(e for e in log if isinstance(e, kind) and e.at >= after)


def test_a_first_start_takes_its_time_and_then_the_script_joins() -> None:
    state, log = play(Diary({0.0: 1}), trace())
    assert first(log, ev.WorkerReady).at == TIMES.first_start
    assert first(log, ev.JobDescribed).at == TIMES.first_start
    assert state.ended[A].reason is EndReason.FINISHED
    assert state.ended[A].epochs == 40


def test_joining_workers_start_while_the_others_train_and_the_pause_is_short() -> None:
    state, log = play(Diary({0.0: 1, 30.0: 2}), trace())
    switched = first(log, ev.Rescaled)
    assert isinstance(switched, ev.Rescaled)
    step = 0.08  # 64 samples: 30 ms + 64 x 0.78 ms
    assert switched.pause_seconds == TIMES.rescale
    assert 30 + TIMES.join <= switched.at - TIMES.rescale <= 30 + TIMES.join + step
    epochs_meanwhile = [e for e in log if isinstance(e, ev.EpochFinished) and 30 < e.at < 40]
    assert epochs_meanwhile  # training went on
    assert state.ended[A].rescales == 1


def test_by_checkpoint_the_same_change_costs_a_restart() -> None:
    _, log = play(Diary({0.0: 1, 30.0: 2}), trace(), "checkpoint")
    switched = first(log, ev.Rescaled)
    assert isinstance(switched, ev.Rescaled)
    assert switched.pause_seconds == TIMES.restart
    assert 30 + TIMES.restart <= switched.at <= 30.1 + TIMES.restart


def test_by_checkpoint_a_change_of_only_the_batch_costs_the_end_of_the_step() -> None:
    class Larger(Diary):
        def decide(self, view: View) -> Decision:
            self.per_gpu = 128 if view.now >= 30.0 else 64
            return super().decide(view)

    _, log = play(Larger({0.0: 1, 30.0: 1}), trace(), "checkpoint")
    switched = first(log, ev.Rescaled)
    assert isinstance(switched, ev.Rescaled)
    assert switched.pause_seconds == 0.0
    assert 30 <= switched.at <= 30.2


def test_a_leaving_worker_is_gone_at_the_next_step() -> None:
    _, log = play(Diary({0.0: 2, 30.0: 1}), trace())
    left = first(log, ev.WorkerLeft)
    assert 30.0 <= left.at <= 30.2
    switched = first(log, ev.Rescaled, after=30.0)
    assert switched.at == pytest.approx(left.at + TIMES.regroup)


def test_a_preempted_job_resumes_where_it_stopped() -> None:
    state, log = play(Diary({0.0: 1, 30.0: 0, 100.0: 1}), trace())
    resumed = [e.at for e in log if isinstance(e, ev.WorkerReady)][1]
    assert resumed == pytest.approx(100.0 + TIMES.restart)
    outcome = state.ended[A]
    assert outcome.preemptions == 1
    assert outcome.epochs == 40
    # no sample was trained twice: what it took alone, and what the interruption took
    alone, _ = play(Diary({0.0: 1}), trace())
    whole = outcome.completion_seconds - alone.ended[A].completion_seconds
    assert whole == pytest.approx(70.0 + TIMES.restart, abs=0.2)
    assert outcome.queue_seconds == pytest.approx(70.0, abs=0.2)


def test_a_node_that_dies_costs_survivors_a_pause_and_nothing_else() -> None:
    class Wide(Diary):
        def decide(self, view: View) -> Decision:
            if A in view.jobs and A not in view.schedule and not view.job(A).pinned:
                places = [Gpu(N0, 0), Gpu(NodeId("n1"), 0)]
                return Decision(schedule=Schedule({A: Allocation.as_scripted(places)}))
            return Decision(schedule=view.schedule)

    state, log = play(Wide({}), trace(40, ev.NodeDown(40.0, NodeId("n1"))))
    switched = first(log, ev.Rescaled)
    assert isinstance(switched, ev.Rescaled)
    assert switched.generation.incarnation == 1
    assert switched.at == pytest.approx(40.0 + TIMES.regroup)
    assert state.ended[A].epochs == 40
    assert state.ended[A].losses == 1


def test_a_job_with_no_survivor_goes_back_to_its_last_epoch() -> None:
    one_node = ev.NodeDown(40.0, N0), ev.NodeUp(60.0, N0, 4)
    job = trace(40, *one_node)
    log: list[Event | Plan] = []
    result = Simulator(job, Cluster.of(4), create("fifo")).run(log.append)
    epochs = [e.epoch for e in log if isinstance(e, ev.EpochFinished)]
    assert epochs == list(range(1, 41))  # the one under way was done again, and reported once
    assert result.state.ended[A].reason is EndReason.FINISHED  # a node's end is no failure of a job


def test_a_cancelled_job_leaves_its_gpus() -> None:
    state, _ = play(Diary({0.0: 2}), trace(40, ev.CancelRequested(20.0, A, "her")))
    assert state.ended[A].reason is EndReason.CANCELLED
    assert state.ended[A].ended_at == 20.0
    assert not state.occupants


def test_a_job_that_no_cluster_will_ever_serve_is_reported_unfinished() -> None:
    """All nodes are gone for good: the run ends, and the job is not forgotten."""
    result = Simulator(trace(40, ev.NodeDown(10.0, N0)), Cluster.of(4), create("fifo")).run()
    assert list(result.state.records) == [A]
    assert not result.state.ended


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["fifo", "equi"]))
def test_the_same_seed_gives_the_same_run_byte_for_byte(seed: int, policy: str) -> None:
    def lines() -> list[str]:
        log: list[str] = []
        Simulator(
            generate(jobs=12, seed=seed, gap=15.0),
            Cluster.of(8),
            create(policy, seed=seed),
            mechanism="elastic",
            seed=seed,
        ).run(lambda entry: log.append(encode(entry)))
        return log

    assert lines() == lines()


def test_noise_belongs_to_the_job_and_not_to_the_schedule() -> None:
    """Two policies meet the same luck: an epoch's accuracy noise does not depend on its time."""

    def accuracies(sizes: dict[float, int]) -> list[float | None]:
        _, log = play(Diary(sizes, batch_per_gpu=64), trace(10))
        return [e.accuracy for e in log if isinstance(e, ev.EpochFinished)]

    assert accuracies({0.0: 1}) == accuracies({50.0: 1})


def test_jobs_on_several_nodes_share_their_network_cards() -> None:
    """A second job over the same two nodes slows the first one down, and lets it go again."""

    class Apart(Wish):
        def decide(self, view: View) -> Decision:
            edit = view.schedule.edit()
            for i, job in enumerate(view.jobs.values()):
                if job.wanted is None and not job.pinned:
                    places = [Gpu(N0, i), Gpu(NodeId("n1"), i)]
                    edit.put(job.id, Allocation.as_scripted(places))
            return Decision(schedule=edit.done())

    kind = "vgg16-imagenet"  # the largest gradients

    def job(name: str, at: float, epochs: int) -> TraceJob:
        return TraceJob(
            Job(id=JobId(name), submitted_at=at, epochs=epochs),
            Training(kind=kind, dataset_size=6400, base_batch=64),
        )

    both = Trace.of("two", [job("a", 0.0, 30), job("b", 60.0, 5)])
    _, log = play(Apart(), both)
    times = [e.step_seconds or 0 for e in log if isinstance(e, ev.EpochFinished) and e.job == "a"]
    assert len(times) == 30
    assert max(times) > 1.2 * times[0]  # while the other was there
    assert times[-1] == pytest.approx(times[0], rel=0.05)


def test_a_job_that_fails_or_is_killed_does_so_after_its_epochs() -> None:
    def end(killed: bool) -> tuple[EndReason, int]:
        training = Training(
            kind=KIND, dataset_size=6400, base_batch=64, dies_after=7.5, killed=killed
        )
        job = Job(id=A, submitted_at=0.0, kind=KIND, requested_batch=64)
        state, _ = play(Diary({0.0: 1}), Trace.of("dies", [TraceJob(job, training)]))
        return state.ended[A].reason, state.ended[A].epochs

    for killed, reason in ((False, EndReason.FAILED), (True, EndReason.CANCELLED)):
        ended, epochs = end(killed)
        assert ended is reason
        assert epochs == 7


def test_with_checkpoint_rescaling_recovery_uses_the_checkpoint() -> None:
    class Wide(Diary):
        def decide(self, view: View) -> Decision:
            if A in view.jobs and A not in view.schedule and not view.job(A).pinned:
                places = [Gpu(N0, 0), Gpu(NodeId("n1"), 0)]
                return Decision(schedule=Schedule({A: Allocation.as_scripted(places)}))
            return Decision(schedule=view.schedule)

    _, log = play(Wide({}), trace(40, ev.NodeDown(40.0, NodeId("n1"))), "checkpoint")
    assert first(log, ev.Rescaled).at == pytest.approx(40.0 + TIMES.restart)


def test_many_small_jumps_within_an_epoch_are_a_large_one() -> None:
    training = Training(kind=KIND, dataset_size=64_000, base_batch=64)
    job = SimJob(0, Job(id=A, submitted_at=0.0), training, KindPhysics(training))
    place = [Gpu(N0, 0)]
    job.progress = 10.0
    for at, batch in enumerate((64, 128, 256, 512)):
        job.begin(float(at), Allocation.even(place, batch, 256))
    assert job.progress < 10.0
    job.finish_epoch(100.0)
    before = job.progress
    job.begin(100.0, Allocation.even(place, 1024, 256))  # an epoch later it may double again
    assert job.progress == before


def test_a_script_that_runs_out_of_memory_reports_it_and_accumulates() -> None:
    job = Job(id=A, submitted_at=0.0, requested_batch=8192, epochs=2)
    training = Training(kind=KIND, dataset_size=64_000, base_batch=64)
    log: list[Event | Plan] = []
    run = Simulator(
        Trace.of("large", [TraceJob(job, training)]), Cluster.of(1), create("fifo")
    ).run(log.append)
    learned = first(log, ev.MemoryLimitLearned)
    assert isinstance(learned, ev.MemoryLimitLearned)
    assert learned.max_local_batch == 256
    assert run.state.ended[A].epochs == 2


def test_late_in_virtual_time_no_step_is_lost() -> None:
    late = trace(30)
    moved = Trace.of(
        "late", [TraceJob(structs.replace(e.job, submitted_at=3e7), e.training) for e in late.jobs]
    )
    _, log = play(Diary({0.0: 1}), moved)
    steps = {e.steps for e in log if isinstance(e, ev.EpochFinished)}
    assert steps == {100}


def test_a_cancel_at_the_time_of_submission_is_handled() -> None:
    state, _ = play(Diary({0.0: 1}), trace(40, ev.CancelRequested(0.0, A, "her")))
    assert state.ended[A].reason is EndReason.CANCELLED
