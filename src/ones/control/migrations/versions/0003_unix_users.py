"""The Unix user of each user of the service."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    with op.batch_alter_table("users") as users:
        users.add_column(sa.Column("unix", sa.String))
        users.create_unique_constraint("users_unix", ["unix"])


def downgrade() -> None:
    with op.batch_alter_table("users") as users:
        users.drop_constraint("users_unix", type_="unique")
        users.drop_column("unix")
