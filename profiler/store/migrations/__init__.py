"""The schema's history: alembic's scripts, which travel in the wheel."""
