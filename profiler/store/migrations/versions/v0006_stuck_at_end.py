"""For how long a GPU has been stuck up to its last reading; not known of what was told before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the column."""
    op.add_column("gpu_usage", sa.Column("stuck_at_end_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    """Remove it."""
    op.drop_column("gpu_usage", "stuck_at_end_seconds")
