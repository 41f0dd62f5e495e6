"""Reads submissions from the database and removes the environments of ended jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec.structs import replace

from ones.control.schema import meta, submissions
from ones.control.store import Operation, Store, upsert
from ones.control.submission import Submission

_AT_ONCE = 500  # names in one query
#: key in `meta`: environments of jobs that ended up to this time are removed
NO_ENVIRONMENTS = "environments_removed_until"


def submissions_of(store: Store, jobs: Iterable[str]) -> dict[str, Submission]:
    """The submissions of these jobs only, because environments are large."""
    names = list(jobs)
    found = {}
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        query = sa.select(submissions.c.job, submissions.c.body)
        for row in store.rows(query.where(submissions.c.job.in_(some))):
            found[row.job] = Submission.decoded(row.body)
    return found


def remove_environments(store: Store, ended: Mapping[str, float]) -> int:
    """Remove the environments of jobs that ended at these times, because they may hold secrets.

    Returns the number of jobs. Stores the latest of the times, so that no job is read twice.
    """
    rows = store.rows(sa.select(meta.c.value).where(meta.c.key == NO_ENVIRONMENTS))
    until = float(rows[0].value) if rows else float("-inf")
    jobs = sorted(job for job, at in ended.items() if at > until)
    for first in range(0, len(jobs), _AT_ONCE):
        known = submissions_of(store, jobs[first : first + _AT_ONCE])
        changes = [
            change_submission(job, replace(submission, env={}))
            for job, submission in known.items()
            if submission.env
        ]
        store.write_now(*changes)
    if jobs:
        latest = max(ended[job] for job in jobs)
        store.write_now(upsert(meta, {"key": NO_ENVIRONMENTS, "value": repr(latest)}))
    return len(jobs)


def change_submission(job: str, submission: Submission) -> Operation:
    """An operation that replaces the stored submission of a job."""
    change = sa.update(submissions).where(submissions.c.job == job)
    return partial(_execute, change.values(body=submission.encoded()))


def _execute(statement: sa.Update, connection: sa.Connection) -> None:
    connection.execute(statement)
