"""Alembic's environment, run with a connection of the store."""

from __future__ import annotations

from alembic import context

from ones.control.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
