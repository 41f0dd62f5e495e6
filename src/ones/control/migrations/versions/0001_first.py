"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "log",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
    )
    op.create_index("log_by_kind", "log", ["kind", "number"])
    op.create_table(
        "mentions",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "outcomes",
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "submissions",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "ended_cards",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "heard",
        sa.Column("launch", sa.String, primary_key=True),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("joined", sa.Boolean, nullable=False),
    )
    op.create_index("ix_heard_job", "heard", ["job"])
    op.create_table(
        "users",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("token_hash", sa.String, nullable=False, unique=True),
        sa.Column("max_gpus", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "sessions",
        sa.Column("hash", sa.String, primary_key=True),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )


def downgrade() -> None:
    for table in (
        "sessions",
        "users",
        "heard",
        "ended_cards",
        "submissions",
        "outcomes",
        "snapshots",
        "mentions",
        "log",
        "meta",
    ):
        op.drop_table(table)
