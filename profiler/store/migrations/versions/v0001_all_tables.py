"""All tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make everything."""
    op.create_table(
        "decision",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("enforced", sa.Boolean(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("joined", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("cluster", "id", name=op.f("pk_decision")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_decision_at", "decision", ["at"], unique=False)
    op.create_index("ix_decision_job", "decision", ["cluster", "job_id"], unique=False)
    op.create_table(
        "job",
        sa.Column(
            "pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("sort_at", sa.Double(), nullable=False),
        sa.Column("touched", sa.Double(), nullable=False),
        sa.Column("ask_at", sa.Double(), nullable=True),
        sa.Column("asked", sa.Integer(), server_default="0", nullable=False),
        sa.Column("complete", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("told_source", sa.SmallInteger(), nullable=True),
        sa.Column("told_at", sa.Double(), nullable=True),
        sa.Column("told_node", sa.Text(), nullable=True),
        sa.Column("node_count", sa.Integer(), nullable=True),
        sa.Column("facts_at", sa.Double(), nullable=True),
        sa.Column("facts_final", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("array_job_id", sa.BigInteger(), nullable=True),
        sa.Column("array_task_id", sa.BigInteger(), nullable=True),
        sa.Column("het_job_id", sa.BigInteger(), nullable=True),
        sa.Column("het_offset", sa.BigInteger(), nullable=True),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("gid", sa.BigInteger(), nullable=True),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("user", sa.Text(), server_default="", nullable=False),
        sa.Column("account", sa.Text(), server_default="", nullable=False),
        sa.Column("partition", sa.Text(), server_default="", nullable=False),
        sa.Column("qos", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("derived_exit_code", sa.Integer(), nullable=True),
        sa.Column("submitted", sa.Double(), nullable=True),
        sa.Column("eligible", sa.Double(), nullable=True),
        sa.Column("started", sa.Double(), nullable=True),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("time_limit", sa.Double(), nullable=True),
        sa.Column("nodes", sa.Text(), server_default="", nullable=False),
        sa.Column("cpus", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=True),
        sa.Column("memory_asked_bytes", sa.BigInteger(), nullable=True),
        sa.Column("work_dir", sa.Text(), server_default="", nullable=False),
        sa.Column("stdout", sa.Text(), server_default="", nullable=False),
        sa.Column("stderr", sa.Text(), server_default="", nullable=False),
        sa.Column("comment", sa.Text(), server_default="", nullable=False),
        sa.Column("gpus_known", sa.Integer(), server_default="0", nullable=False),
        sa.Column("gpus_idle", sa.Integer(), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=True),
        sa.Column("utilisation_mean", sa.Double(), nullable=True),
        sa.Column("power_mean_w", sa.Double(), nullable=True),
        sa.Column("cpu_seconds", sa.Double(), nullable=True),
        sa.Column("gpu_memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_memory_total_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_job")),
        sqlite_autoincrement=False,
    )
    op.create_index("ix_job_account", "job", ["cluster", "account", "sort_at", "pk", "state"], unique=False)
    op.create_index(
        "ix_job_array",
        "job",
        ["cluster", "array_job_id", "array_task_id"],
        unique=False,
        sqlite_where=sa.text("array_job_id IS NOT NULL"),
        postgresql_where=sa.text("array_job_id IS NOT NULL"),
    )
    op.create_index(
        "ix_job_ask",
        "job",
        ["cluster", "ask_at"],
        unique=False,
        sqlite_where=sa.text("ask_at IS NOT NULL"),
        postgresql_where=sa.text("ask_at IS NOT NULL"),
    )
    op.create_index(
        "ix_job_het",
        "job",
        ["cluster", "het_job_id", "het_offset"],
        unique=False,
        sqlite_where=sa.text("het_job_id IS NOT NULL"),
        postgresql_where=sa.text("het_job_id IS NOT NULL"),
    )
    op.create_index("ix_job_list", "job", ["cluster", "sort_at", "pk"], unique=False)
    op.create_index("ix_job_state", "job", ["cluster", "state", "sort_at", "pk"], unique=False)
    op.create_index(
        "ix_job_uid", "job", ["cluster", "uid", "sort_at", "pk", "state", "account"], unique=False
    )
    op.create_index(
        "ix_job_user", "job", ["cluster", "user", "sort_at", "pk", "state", "account"], unique=False
    )
    op.create_index("uq_job_attempt", "job", ["cluster", "job_id", "restarts"], unique=True)
    op.create_table(
        "node",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("heard", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name", name=op.f("pk_node")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "node_check",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node", "name", name=op.f("pk_node_check")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "node_event",
        sa.Column(
            "pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default="", nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=True),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("pk", name=op.f("pk_node_event")),
    )
    op.create_index("ix_node_event_at", "node_event", ["at"], unique=False)
    op.create_index("ix_node_event_node", "node_event", ["cluster", "node", "at", "pk"], unique=False)
    op.create_index("uq_node_event_id", "node_event", ["id"], unique=True)
    op.create_table(
        "profile_point",
        sa.Column(
            "pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
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
    op.create_table(
        "smoke",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("uid", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "uid", "fingerprint", name=op.f("pk_smoke")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_smoke_at", "smoke", ["at"], unique=False)
    op.create_table(
        "gpu_usage",
        sa.Column(
            "job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("place", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("minor", sa.Integer(), nullable=True),
        sa.Column("uuid", sa.Text(), nullable=True),
        sa.Column("parent_uuid", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("utilisation_mean", sa.Double(), nullable=True),
        sa.Column("utilisation_p5", sa.Double(), nullable=True),
        sa.Column("utilisation_p50", sa.Double(), nullable=True),
        sa.Column("utilisation_p95", sa.Double(), nullable=True),
        sa.Column("utilisation_busy_mean", sa.Double(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_total_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_mean_bytes", sa.Double(), nullable=True),
        sa.Column("power_mean_w", sa.Double(), nullable=True),
        sa.Column("power_peak_w", sa.Double(), nullable=True),
        sa.Column("power_limit_w", sa.Double(), nullable=True),
        sa.Column("energy_j", sa.Double(), nullable=True),
        sa.Column("temperature_peak_c", sa.Integer(), nullable=True),
        sa.Column("clock_sm_mean_mhz", sa.Double(), nullable=True),
        sa.Column("busy_seconds", sa.Double(), nullable=True),
        sa.Column("idle_at_start_seconds", sa.Double(), nullable=True),
        sa.Column("idle_after_seconds", sa.Double(), nullable=True),
        sa.Column("idle_at_end_seconds", sa.Double(), nullable=True),
        sa.Column("stuck_seconds", sa.Double(), nullable=True),
        sa.Column("ecc_corrected", sa.BigInteger(), nullable=True),
        sa.Column("ecc_uncorrected", sa.BigInteger(), nullable=True),
        sa.Column("throttled", sa.Text(), nullable=True),
        sa.Column("xids", sa.Text(), nullable=True),
        sa.Column("faults", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_gpu_usage_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "node", "place", name=op.f("pk_gpu_usage")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_node",
        sa.Column(
            "job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("start_source", sa.SmallInteger(), nullable=True),
        sa.Column("gpus", sa.Text(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("end_source", sa.SmallInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("signal", sa.Integer(), nullable=True),
        sa.Column("derived_exit_code", sa.Integer(), nullable=True),
        sa.Column("serial", sa.BigInteger(), nullable=True),
        sa.Column("final", sa.Boolean(), nullable=True),
        sa.Column("usage_at", sa.Double(), nullable=True),
        sa.Column("since", sa.Double(), nullable=True),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("unseen_seconds", sa.Double(), nullable=True),
        sa.Column("note", sa.Text(), server_default="", nullable=False),
        sa.Column("host_source", sa.SmallInteger(), nullable=True),
        sa.Column("cpu_seconds", sa.Double(), nullable=True),
        sa.Column("cpus", sa.Double(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_working_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("oom_kills", sa.BigInteger(), nullable=True),
        sa.Column("gpus_known", sa.Integer(), nullable=True),
        sa.Column("gpus_idle", sa.Integer(), nullable=True),
        sa.Column("gpu_seconds", sa.Double(), nullable=True),
        sa.Column("utilisation_sum", sa.Double(), nullable=True),
        sa.Column("utilisation_weight", sa.Double(), nullable=True),
        sa.Column("power_sum", sa.Double(), nullable=True),
        sa.Column("power_weight", sa.Double(), nullable=True),
        sa.Column("gpu_memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpu_memory_total_bytes", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_job_node_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "node", name=op.f("pk_job_node")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_job_node_open",
        "job_node",
        ["node", "job"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "series",
        sa.Column(
            "job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("serial", sa.BigInteger(), nullable=False),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("touched", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("step", sa.Double(), nullable=False),
        sa.Column("columns", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.pk"], name=op.f("fk_series_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "node", name=op.f("pk_series")),
    )
    op.create_index("ix_series_touched", "series", ["touched"], unique=False)
    op.create_table(
        "verdict",
        sa.Column(
            "pk", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("job", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
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


def downgrade() -> None:
    """Remove everything."""
    op.drop_index("uq_verdict_job_source", table_name="verdict")
    op.drop_index("ix_verdict_uid", table_name="verdict")
    op.drop_index("ix_verdict_at", table_name="verdict")
    op.drop_table("verdict")
    op.drop_index("ix_series_touched", table_name="series")
    op.drop_table("series")
    op.drop_index(
        "ix_job_node_open",
        table_name="job_node",
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.drop_table("job_node")
    op.drop_table("gpu_usage")
    op.drop_index("ix_smoke_at", table_name="smoke")
    op.drop_table("smoke")
    op.drop_index("ix_profile_point_workload", table_name="profile_point")
    op.drop_table("profile_point")
    op.drop_index("uq_node_event_id", table_name="node_event")
    op.drop_index("ix_node_event_node", table_name="node_event")
    op.drop_index("ix_node_event_at", table_name="node_event")
    op.drop_table("node_event")
    op.drop_table("node_check")
    op.drop_table("node")
    op.drop_index("uq_job_attempt", table_name="job")
    op.drop_index("ix_job_user", table_name="job")
    op.drop_index("ix_job_uid", table_name="job")
    op.drop_index("ix_job_state", table_name="job")
    op.drop_index("ix_job_list", table_name="job")
    op.drop_index(
        "ix_job_het",
        table_name="job",
        sqlite_where=sa.text("het_job_id IS NOT NULL"),
        postgresql_where=sa.text("het_job_id IS NOT NULL"),
    )
    op.drop_index(
        "ix_job_ask",
        table_name="job",
        sqlite_where=sa.text("ask_at IS NOT NULL"),
        postgresql_where=sa.text("ask_at IS NOT NULL"),
    )
    op.drop_index(
        "ix_job_array",
        table_name="job",
        sqlite_where=sa.text("array_job_id IS NOT NULL"),
        postgresql_where=sa.text("array_job_id IS NOT NULL"),
    )
    op.drop_index("ix_job_account", table_name="job")
    op.drop_table("job")
    op.drop_index("ix_decision_job", table_name="decision")
    op.drop_index("ix_decision_at", table_name="decision")
    op.drop_table("decision")
