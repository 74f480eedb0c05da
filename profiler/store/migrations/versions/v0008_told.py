"""Rules on use that a job's user was told of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "rule_told",
        sa.Column(
            "job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("about", sa.Text(), server_default="", nullable=False),
        sa.Column("evidence", sa.Text(), server_default="", nullable=False),
        sa.Column("cancelled", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_rule_told_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "rule", name=op.f("pk_rule_told")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Remove it; what users were told is forgotten."""
    op.drop_table("rule_told")
