"""Findings and verdicts: what nodes read in logs, and one verdict an attempt with all that decided it.

Verdicts of before (one by each of two sources, of which no release wrote any) are kept: root's where there are two.
Failed attempts without one are queued, so that the table of reasons does not begin with the day of the upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_KEY: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_ROWS: Final = 1000
_BEFORE: Final = sa.table(
    "verdict_0002",
    *map(sa.column, ("pk", "job", "cluster", "uid", "at", "reason", "confidence", "evidence", "source")),
)
_JOB: Final = sa.table(
    "job",
    *map(sa.column, ("pk", "cluster", "job_id", "user", "account", "name", "started", "ended", "gpus")),
)
_INDEXES: Final = {
    "ix_verdict_at": ["cluster", "at", "job", "user", "fingerprint"],
    "ix_verdict_uid": ["cluster", "uid", "at", "job", "reason"],
    "ix_verdict_reason": [
        *("cluster", "reason", "at", "job", "user", "fingerprint", "account", "uid", "job_id"),
        *("gpu_seconds", "runtime"),
    ],
    "ix_verdict_fingerprint": ["cluster", "uid", "fingerprint", "at", "job"],
    "ix_verdict_name": ["cluster", "uid", "reason", "name", "at", "job"],
}
_QUEUE: Final = sa.text(
    """
    INSERT INTO unjudged (job, cluster, due, mark)
    SELECT pk, cluster, 0, 0 FROM job
    WHERE facts_final AND state IS NOT NULL
      AND (state NOT IN ('COMPLETED', 'PENDING', 'RUNNING', 'SUSPENDED') OR coalesce(derived_exit_code, 0) <> 0)
      AND pk NOT IN (SELECT job FROM verdict)
    """
)


def upgrade() -> None:
    """Make the tables anew, with what was in them."""
    for name in ("ix_verdict_at", "ix_verdict_uid", "uq_verdict_job_source"):
        op.drop_index(name, table_name="verdict")
    op.rename_table("verdict", "verdict_0002")
    if op.get_bind().dialect.name == "postgresql":
        # Names of constraints are the schema's, not the table's
        op.execute("ALTER TABLE verdict_0002 DROP CONSTRAINT pk_verdict, DROP CONSTRAINT fk_verdict_job")
    _make()
    _carry_over()
    op.drop_table("verdict_0002")
    for name, columns in _INDEXES.items():
        op.create_index(name, "verdict", columns, unique=False)
    op.execute(_QUEUE)
    op.create_index("ix_unjudged_due", "unjudged", ["cluster", "due", "job", "mark"], unique=False)
    op.create_index(
        "ix_job_node_ended",
        "job_node",
        ["node", "ended_at", "started_at", "job"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NOT NULL"),
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )


def _make() -> None:
    op.create_table(
        "finding",
        sa.Column("job", _KEY, autoincrement=False, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_finding_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "node", name=op.f("pk_finding")),
    )
    op.create_table(
        "unjudged",
        sa.Column("job", _KEY, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("due", sa.Double(), nullable=False),
        sa.Column("mark", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_unjudged_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_unjudged")),
    )
    op.create_table(
        "verdict",
        sa.Column("job", _KEY, autoincrement=False, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("user", sa.Text(), server_default="", nullable=False),
        sa.Column("account", sa.Text(), server_default="", nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("signature", sa.Text(), server_default="", nullable=False),
        sa.Column("fingerprint", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("gpu_seconds", sa.Double(), nullable=True),
        sa.Column("runtime", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_verdict_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_verdict")),
    )


def _carry_over() -> None:
    """The verdicts, a few at a time; of two of an attempt the one that sorts first: "root" before "user"."""
    bind = op.get_bind()
    table = sa.table("verdict", *map(sa.column, _converted_names()))
    wanted = (
        sa.select(_BEFORE, *(column for column in _JOB.c if column.name not in ("pk", "cluster")))
        .join(_JOB, _JOB.c.pk == _BEFORE.c.job)
        .order_by(_BEFORE.c.job, _BEFORE.c.source)
        .limit(_ROWS)
    )
    last = None
    while True:
        rows = bind.execute(wanted if last is None else wanted.where(_BEFORE.c.job > last)).mappings().all()
        if not rows:
            return
        first = {row["job"]: row for row in reversed(rows)}
        bind.execute(sa.insert(table), [_converted(dict(row)) for row in first.values()])
        last = rows[-1]["job"]


def _converted_names() -> tuple[str, ...]:
    copied = (
        "job",
        "cluster",
        "job_id",
        "uid",
        "user",
        "account",
        "name",
        "at",
        "reason",
        "confidence",
        "source",
    )
    return (*copied, "tier", "gpu_seconds", "runtime", "body")


def _converted(row: Mapping[str, Any]) -> dict[str, Any]:
    runtime = None
    if row["started"] is not None and row["ended"] is not None:
        runtime = max(0.0, row["ended"] - row["started"])
    evidence = {"text": row["evidence"][:600], "source": row["source"]}
    body = {
        "reason": row["reason"][:128],
        "confidence": min(1.0, max(0.0, row["confidence"] or 0.0)),
        "tier": "explicit",
        "evidence": [evidence] if row["evidence"] else [],
    }
    values = {name: row[name] for name in _converted_names() if name in row}
    return values | {
        "tier": "explicit",
        "runtime": runtime,
        "gpu_seconds": None if runtime is None or row["gpus"] is None else runtime * row["gpus"],
        "body": msgspec.json.encode(body).decode(),
    }


def downgrade() -> None:
    """Back to an empty table of verdicts as it was; findings are lost."""
    op.drop_index(
        "ix_job_node_ended",
        table_name="job_node",
        sqlite_where=sa.text("ended_at IS NOT NULL"),
        postgresql_where=sa.text("ended_at IS NOT NULL"),
    )
    for name in ("verdict", "unjudged", "finding"):
        op.drop_table(name)
    op.create_table(
        "verdict",
        sa.Column("pk", _KEY, autoincrement=True, nullable=False),
        sa.Column("job", _KEY, nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("evidence", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_verdict_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_verdict")),
    )
    op.create_index("ix_verdict_at", "verdict", ["cluster", "at", "pk"], unique=False)
    op.create_index("ix_verdict_uid", "verdict", ["cluster", "uid", "at", "pk"], unique=False)
    op.create_index("uq_verdict_job_source", "verdict", ["job", "source"], unique=True)
