"""First come, first served."""

from __future__ import annotations

from msgspec.structs import replace

from ones.core import Cluster, EndReason, Job, JobId, NodeId, Scheduler
from ones.core import events as ev
from ones.policies import create
from ones.sim import Simulator
from ones.workload import Incident, Trace, TraceJob, Training


def submit(
    scheduler: Scheduler, sizes: list[int], priorities: list[float] | None = None
) -> list[str]:
    """The running jobs after all submissions."""
    for i, size in enumerate(sizes):
        priority = priorities[i] if priorities else 0.0
        job = Job(id=JobId(f"j{i}"), submitted_at=0.0, requested_gpus=size, priority=priority)
        scheduler.handle(ev.JobSubmitted(0.0, job))
    return list(scheduler.state.schedule)


def test_the_head_of_the_line_blocks_those_behind_it() -> None:
    scheduler = Scheduler(Cluster.of(4), create("fifo"))
    assert submit(scheduler, [3, 2, 1]) == ["j0"]
    assert scheduler.state.records[JobId("j1")].note == (
        "Waiting: needs 2 GPUs at the same time. ⟨running:⟩ ⟨queue:2⟩"
    )


def test_with_backfill_jobs_that_fit_go_ahead() -> None:
    scheduler = Scheduler(Cluster.of(4), create("fifo", backfill=True))
    assert submit(scheduler, [3, 2, 1]) == ["j0", "j2"]


def test_a_higher_priority_goes_first_and_no_job_is_interrupted() -> None:
    scheduler = Scheduler(Cluster.of(2), create("fifo"))
    assert submit(scheduler, [2, 2, 2], [0.0, 0.0, 5.0]) == ["j0"]
    scheduler.handle(ev.JobEnded(1.0, JobId("j0"), EndReason.FINISHED))
    assert list(scheduler.state.schedule) == ["j2"]


def test_a_raised_priority_moves_a_job_to_the_front() -> None:
    scheduler = Scheduler(Cluster.of(1), create("fifo"))
    submit(scheduler, [1, 1, 1])
    scheduler.handle(ev.PriorityChanged(1.0, JobId("j2"), 9.0))
    scheduler.handle(ev.JobEnded(2.0, JobId("j0"), EndReason.FINISHED))
    assert list(scheduler.state.schedule) == ["j2"]


def test_an_owner_at_the_limit_blocks_no_other_owner() -> None:
    scheduler = Scheduler(Cluster.of(4), create("fifo"))
    scheduler.handle(ev.OwnerLimitSet(0.0, "greedy", 1))
    for i, owner in enumerate(("greedy", "greedy", "modest")):
        job = Job(id=JobId(f"j{i}"), submitted_at=0.0, owner=owner)
        scheduler.handle(ev.JobSubmitted(0.0, job))
    assert list(scheduler.state.schedule) == ["j0", "j2"]


def test_a_job_over_the_limit_of_its_owner_waits_with_the_reason_that_is_true_for_it() -> None:
    scheduler = Scheduler(Cluster.of(8), create("fifo"))
    scheduler.handle(ev.OwnerLimitSet(0.0, "ann", 3))
    for i, size in enumerate((2, 2, 4)):
        job = Job(id=JobId(f"j{i}"), submitted_at=0.0, owner="ann", requested_gpus=size)
        scheduler.handle(ev.JobSubmitted(0.0, job))
    notes = {job: record.note for job, record in scheduler.state.records.items()}
    assert notes[JobId("j1")] == (
        "Waiting: ann may use 3 GPUs and uses 2; this job needs 2."
        " It starts when another job of ann ends."
    )
    assert notes[JobId("j2")].startswith("Waiting: needs 4 GPUs, but the limit of ann is 3.")


def test_a_batch_smaller_than_the_gpus_is_made_to_fit_once_the_job_is_known() -> None:
    job = Job(id=JobId("a"), submitted_at=0.0, kind="k", requested_gpus=4, requested_batch=2)
    training = Training(kind="resnet50-imagenet", dataset_size=6400, base_batch=64)
    incidents: list[Incident] = [ev.NodeDown(30.0, NodeId("n0")), ev.NodeUp(60.0, NodeId("n0"), 4)]
    short = replace(job, epochs=5)
    trace = Trace.of("small batch", [TraceJob(short, training)], incidents)
    result = Simulator(trace, Cluster.of(4), create("fifo")).run()
    assert len(result.state.ended) == 1
