"""The key under which measurements of jobs of one kind are pooled."""

from __future__ import annotations

from ones.core.job import Job, JobId

_SINGLE_JOB = "job "


def kind_of(job: Job) -> str:
    """The kind of a job; a job without one is a kind of its own.

    Jobs without a kind have nothing in common: one shared pool would mix unrelated step times.
    """
    return job.kind or single_job_kind(job.id)


def single_job_kind(job: JobId) -> str:
    """The kind of this job if it has no other, so that it can be forgotten with the job."""
    return f"{_SINGLE_JOB}{job}"


def is_single_job(kind: str) -> bool:
    return kind.startswith(_SINGLE_JOB)
