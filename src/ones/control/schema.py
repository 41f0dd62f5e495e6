"""Tables of the database. A change needs a migration (`migrations/versions`) and a new HEAD."""

from __future__ import annotations

import sqlalchemy as sa

#: the newest migration: a database at this revision is opened without running Alembic
HEAD = "0003"

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.String, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

#: the run log: every event and every plan, in the encoding of `runlog`
log = sa.Table(
    "log",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String, nullable=False),
    sa.Column("entry", sa.Text, nullable=False),
    sa.Index("log_by_kind", "kind", "number"),
)

#: entries of the run log by job, without those for steps between two epochs (`StepsDone`)
mentions = sa.Table(
    "mentions",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
)

#: state and policy after the log entry `number`; the newest two and one per day are kept
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)

#: jobs that had ended when a snapshot was taken, each written once, in order
outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job", sa.String, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

#: submissions of users; the body also has what the scheduler does not need (environment, tags)
submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("owner", sa.String, nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

#: the last card (read model) of every ended job
ended_cards = sa.Table(
    "ended_cards",
    metadata,
    sa.Column("job", sa.String, primary_key=True),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)

#: reports received from each worker process: its reports up to `number` are in the log
heard = sa.Table(
    "heard",
    metadata,
    sa.Column("launch", sa.String, primary_key=True),
    sa.Column("job", sa.String, nullable=False, index=True),
    sa.Column("number", sa.BigInteger, nullable=False),
    sa.Column("joined", sa.Boolean, nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("name", sa.String, primary_key=True),
    sa.Column("role", sa.String, nullable=False),
    sa.Column("token_hash", sa.String, nullable=False, unique=True),
    sa.Column("max_gpus", sa.Integer),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("unix", sa.String, unique=True),
)

#: login sessions of browsers
sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("hash", sa.String, primary_key=True),
    sa.Column("user", sa.String, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
)

#: actions of users; a trigger of the database refuses to change or remove a row
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("who", sa.String, nullable=False),
    sa.Column("action", sa.String, nullable=False),
    sa.Column("subject", sa.String, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("address", sa.String, nullable=False),
)
