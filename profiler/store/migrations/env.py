"""Run by alembic for each upgrade, on the connection that it is given, inside that one's transaction."""

from __future__ import annotations

from alembic import context

from profiler.store.schema import metadata

if hasattr(context, "config"):  # not when it is merely imported, by what looks through all modules
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=metadata,
        # SQLite cannot alter a column: a later step copies the table
        render_as_batch=True,
        transactional_ddl=False,
    )
    context.run_migrations()
