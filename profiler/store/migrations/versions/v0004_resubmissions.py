"""What follows a failed attempt, and nodes that somebody has looked after.

Nothing is queued: failures from before this schema are over, whatever their verdicts say.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_KEY: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "node_clearance",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), server_default="", nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", name=op.f("pk_node_clearance")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "undecided",
        sa.Column("job", _KEY, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("due", sa.Double(), nullable=False),
        sa.Column("mark", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_undecided_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_undecided")),
    )
    op.create_index("ix_undecided_due", "undecided", ["cluster", "due", "job", "uid"], unique=False)
    op.create_table(
        "resubmission",
        sa.Column("job", _KEY, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("due", sa.Double(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_resubmission_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_resubmission")),
    )
    op.create_index(
        "ix_resubmission_due",
        "resubmission",
        ["cluster", "due", "job", "uid"],
        unique=False,
        sqlite_where=sa.text("due IS NOT NULL"),
        postgresql_where=sa.text("due IS NOT NULL"),
    )
    op.create_index(
        "ix_resubmission_job",
        "resubmission",
        ["cluster", "job_id", "restarts", "job", "uid"],
        unique=False,
    )


def downgrade() -> None:
    """Remove them; what was decided is forgotten."""
    for name in ("resubmission", "undecided", "node_clearance"):
        op.drop_table(name)
