"""What runs of workloads measured: a row a run, with all its points.

Nothing ever wrote to the table as it was. It keeps its name: a backup from before has one of that name.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_KEY: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Change the tables."""
    op.drop_index("ix_profile_point_workload", table_name="profile_point")
    op.drop_table("profile_point")
    op.create_table(
        "profile_point",
        sa.Column("pk", _KEY, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("counts", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_profile_point")),
    )
    op.create_index("uq_profile_point_id", "profile_point", ["cluster", "uid", "id"], unique=True)
    op.create_index("ix_profile_point_at", "profile_point", ["at"], unique=False)


def downgrade() -> None:
    """Undo it; what was measured is forgotten."""
    op.drop_table("profile_point")
    op.create_table(
        "profile_point",
        sa.Column("pk", _KEY, autoincrement=True, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("gpu_type", sa.Text(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("placement", sa.Text(), nullable=True),
        sa.Column("speed", sa.Double(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_profile_point")),
    )
    op.create_index(
        "ix_profile_point_workload", "profile_point", ["cluster", "uid", "workload", "gpu_type"], unique=False
    )
