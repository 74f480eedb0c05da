"""For how long a GPU has been stuck up to its last reading, and GPUs of a job by Slurm's word alone.

Neither is known of what was told before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("gpu_usage", sa.Column("stuck_at_end_seconds", sa.Double(), nullable=True))
    op.add_column("job", sa.Column("slurm_gpus", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Remove them."""
    op.drop_column("job", "slurm_gpus")
    op.drop_column("gpu_usage", "stuck_at_end_seconds")
