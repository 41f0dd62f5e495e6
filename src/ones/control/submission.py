"""What a user asked for beyond what the scheduler needs: how to start the processes of a job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import sqlalchemy as sa
from msgspec import field
from msgspec.structs import replace

from ones.control.schema import meta, submissions
from ones.control.store import Store, upsert
from ones.wire.bounds import Seconds, Tagged
from ones.wire.decoding import Decoder
from ones.wire.encoding import to_json


class Submission(Tagged, frozen=True, kw_only=True):
    name: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: does the script call `ones.join`? None: nobody looked. False: one process for all its GPUs
    elastic: bool | None = None
    max_run_seconds: Seconds | None = None
    tags: tuple[str, ...] = ()
    git: str = ""  # commit, and whether files differed from it
    files: Mapping[str, str] = field(default_factory=dict)  # path -> sha256 at submission

    def __repr__(self) -> str:  # without the environment, which may hold secrets
        return f"Submission(name={self.name!r}, argv={self.argv!r}, cwd={self.cwd!r})"

    def encoded(self) -> str:
        return to_json(self)

    @classmethod
    def decoded(cls, text: str) -> Submission:
        return _DECODER.decode(text)


_DECODER: Decoder[Submission] = Decoder(Submission, logs=True)
_AT_ONCE = 500  # names in one query
#: key in `meta`: environments of jobs that ended up to this time are removed
NO_ENVIRONMENTS = "environments_removed_until"


def submissions_of(store: Store, jobs: Iterable[str]) -> dict[str, Submission]:
    """Of these jobs only: environments are large."""
    names = list(jobs)
    found = {}
    for first in range(0, len(names), _AT_ONCE):
        some = names[first : first + _AT_ONCE]
        query = sa.select(submissions.c.job, submissions.c.body)
        for row in store.rows(query.where(submissions.c.job.in_(some))):
            found[row.job] = Submission.decoded(row.body)
    return found


def remove_environments(store: Store, ended: Mapping[str, float]) -> int:
    """Of jobs that ended at these times: what they needed to start, and may be secret. Returns the
    number of jobs. Up to which time this was done is kept, so that no job is read twice."""
    rows = store.rows(sa.select(meta.c.value).where(meta.c.key == NO_ENVIRONMENTS))
    until = float(rows[0].value) if rows else float("-inf")
    jobs = sorted(job for job, at in ended.items() if at > until)
    for first in range(0, len(jobs), _AT_ONCE):
        known = submissions_of(store, jobs[first : first + _AT_ONCE])
        changes = [
            sa.update(submissions)
            .where(submissions.c.job == job)
            .values(body=replace(submission, env={}).encoded())
            for job, submission in known.items()
            if submission.env
        ]
        store.write_now(*(partial(_execute, change) for change in changes))
    if jobs:
        latest = max(ended[job] for job in jobs)
        store.write_now(upsert(meta, {"key": NO_ENVIRONMENTS, "value": repr(latest)}))
    return len(jobs)


def _execute(statement: sa.Update, connection: sa.Connection) -> None:
    connection.execute(statement)


#: variables that belong to a session or to a service, and not to a training process
NOT_PASSED = ("ONES_", "SSH_", "DBUS_", "XDG_SESSION", "SUDO_")


#: and what begins like them but is a user's to say
PASSED = ("ONES_CHECKPOINT_SECONDS", "ONES_HANG_SECONDS")


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """Without what is ours to set and what a training process has no use for."""
    return {k: v for k, v in env.items() if k in PASSED or not k.startswith(NOT_PASSED)}
