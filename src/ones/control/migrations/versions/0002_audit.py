"""The audit log. The database refuses to change or remove its rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("who", sa.String, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("subject", sa.String, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("address", sa.String, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{verb.lower()} BEFORE {verb} ON audit"
                " BEGIN SELECT RAISE(ABORT, 'audit: rows are only added'); END"
            )
        return
    op.execute(
        "CREATE FUNCTION audit_only_added() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'audit: rows are only added'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_only_added BEFORE UPDATE OR DELETE ON audit"
        " FOR EACH ROW EXECUTE FUNCTION audit_only_added()"
    )


def downgrade() -> None:
    op.drop_table("audit")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_only_added()")
