"""Jobs as a policy sees them, for tests of what is learned and asked."""

from __future__ import annotations

from dataclasses import replace

from ones.core import (
    Allocation,
    Cluster,
    Generation,
    Gpu,
    Job,
    JobId,
    JobView,
    NodeId,
    Scheduler,
    View,
)
from ones.core import events as ev
from ones.policies import create

A = JobId("a")


def seen(
    *,
    base: int = 64,
    size: int = 10_000,
    limit: int | None = 256,
    gpus: int = 4,
    kind: str = "kind",
    least: int = 1,
    most: int | None = None,
    max_batch: int | None = None,
) -> tuple[View, JobView]:
    """A cluster with one job that has joined, on the GPUs that it takes at least."""
    scheduler = Scheduler(Cluster.of(gpus), create("fifo"))
    job = Job(
        id=A,
        submitted_at=0.0,
        kind=kind,
        min_gpus=least,
        max_gpus=most,
        requested_gpus=least,
        max_batch=max_batch,
    )
    scheduler.handle(ev.JobSubmitted(0.0, job))
    generation = Generation(1)
    for i in range(least):
        scheduler.handle(ev.WorkerReady(1.0, A, generation, Gpu(NodeId("n0"), i)))
    scheduler.handle(
        ev.JobDescribed(
            at=1.0,
            job=A,
            generation=generation,
            dataset_size=size,
            base_batch=base,
            max_local_batch=limit,
        )
    )
    view = scheduler.state.view()
    return view, view.job(A)


def a_job(*, base: int = 64, size: int = 10_000, limit: int | None = 256) -> JobView:
    """A job that has joined, on one GPU."""
    return seen(base=base, size=size, limit=limit)[1]


def told(
    job: JobView,
    *,
    samples: int | None = None,
    noise: float | None = None,
    batch: int | None = None,
    step_seconds: float | None = None,
) -> JobView:
    """The same job with other reports, or another batch."""
    progress = job.progress
    if samples is not None:
        progress = replace(progress, samples=samples)
    if noise is not None:
        progress = replace(progress, gradient_noise=noise)
    if step_seconds is not None:
        progress = replace(progress, step_seconds=step_seconds)
    held = job.held
    if batch is not None:
        held = Allocation.even([Gpu(NodeId("n0"), 0)], batch)
    return replace(job, progress=progress, held=held, wanted=held)
