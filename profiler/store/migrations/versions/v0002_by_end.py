"""Jobs by their end: what has ended since a user last looked, however long ago it began."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_INDEXES = {
    "ix_job_ended": ["cluster", "ended", "pk", "sort_at", "user", "account", "state"],
    "ix_job_uid_ended": ["cluster", "uid", "ended", "pk", "sort_at", "account", "state"],
}


def upgrade() -> None:
    """Make the indexes."""
    for name, columns in _INDEXES.items():
        op.create_index(
            name,
            "job",
            columns,
            unique=False,
            sqlite_where=sa.text("ended IS NOT NULL"),
            postgresql_where=sa.text("ended IS NOT NULL"),
        )


def downgrade() -> None:
    """Remove them."""
    for name in _INDEXES:
        op.drop_index(name, table_name="job")
