"""The tables, the same on SQLite and PostgreSQL.

A job row is one attempt: (cluster, job id, restarts), known to the other tables by `pk`. Its figures for lists are sums
over its nodes (`job_node`), kept at hand so that a page of jobs reads one table. Times are seconds since the epoch,
sizes bytes. What is only shown, never searched, is JSON text.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from profiler.waits import CAUSES

__all__ = [
    "SEARCHED",
    "TABLES",
    "WAITED",
    "finding",
    "gpu_usage",
    "job",
    "job_node",
    "metadata",
    "node_clearance",
    "node_event",
    "profile_point",
    "resubmission",
    "rule_told",
    "series",
    "undecided",
    "unjudged",
    "verdict",
]

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

WAITED = tuple(f"waited_{cause}" for cause in CAUSES)
"""The columns of a job with what it waited for, in seconds."""

# SQLite numbers rows by itself only in a column that is "INTEGER" to the letter
_Key = BigInteger().with_variant(Integer(), "sqlite")
_Big = BigInteger()
_Real: Double[float] = Double()


def _columns(kind: TypeEngine[Any], *names: str) -> list[Column[object]]:
    return [Column(name, kind) for name in names]


def _text(*names: str) -> list[Column[object]]:
    return [Column(name, Text(), nullable=False, server_default="") for name in names]


def _job_key() -> Column[object]:
    return Column(
        "job", _Key, ForeignKey("job.pk", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )


job = Table(
    "job",
    metadata,
    Column("pk", _Key, primary_key=True, autoincrement=True),
    Column("cluster", Text(), nullable=False),
    Column("job_id", _Big, nullable=False),
    Column("restarts", Integer(), nullable=False),
    # When it started, as far as is known: what lists are sorted by, so never null
    Column("sort_at", _Real, nullable=False),
    # By the service's clock: when a node last told of it, and when Slurm is to be asked (null: no more)
    Column("touched", _Real, nullable=False),
    Column("ask_at", _Real),
    Column("asked", Integer(), nullable=False, server_default="0"),
    Column("complete", Boolean(), nullable=False, server_default=text("false")),
    # Which node's word the facts below are, where Slurm has not been asked: its source, time and name
    Column("told_source", SmallInteger()),
    Column("told_at", _Real),
    Column("told_node", Text()),
    Column("node_count", Integer()),
    # Slurm's own word, once it was asked
    Column("facts_at", _Real),
    Column("facts_final", Boolean(), nullable=False, server_default=text("false")),
    *_columns(_Big, "array_job_id", "array_task_id", "het_job_id", "het_offset", "uid", "gid"),
    *_text("name", "user", "account", "partition", "qos"),
    Column("state", Text()),
    *_text("reason"),
    *_columns(Integer(), "exit_code", "signal", "derived_exit_code"),
    *_columns(_Real, "submitted", "eligible", "started", "ended", "time_limit"),
    *_text("nodes"),
    *_columns(_Big, "cpus", "gpus", "memory_asked_bytes"),
    *_text("work_dir", "stdout", "stderr", "comment"),
    # Sums over job_node
    Column("gpus_known", Integer(), nullable=False, server_default="0"),
    Column("gpus_idle", Integer()),
    *_columns(_Real, "gpu_seconds", "utilisation_mean", "power_mean_w", "cpu_seconds"),
    *_columns(_Big, "gpu_memory_peak_bytes", "gpu_memory_total_bytes", "memory_peak_bytes"),
    # GPUs by Slurm's word alone: where it says none, `gpus` is what the nodes say
    Column("slurm_gpus", _Big),
    # Seconds that it was seen to wait for each cause (`profiler.waits`), once it had started; null: nobody looked
    *_columns(_Real, *WAITED),
    sqlite_autoincrement=False,
)

job_node = Table(
    "job_node",
    metadata,
    _job_key(),
    Column("node", Text(), primary_key=True),
    # Its start and its end there
    Column("started_at", _Real),
    Column("start_source", SmallInteger()),
    Column("gpus", Text()),
    Column("ended_at", _Real),
    Column("end_source", SmallInteger()),
    *_columns(Integer(), "exit_code", "signal", "derived_exit_code"),
    # Its usage there: the newest word
    Column("serial", _Big),
    Column("final", Boolean()),
    *_columns(_Real, "usage_at", "since", "until", "unseen_seconds"),
    *_text("note"),
    # Its processors and memory there
    Column("host_source", SmallInteger()),
    *_columns(_Real, "cpu_seconds", "cpus"),
    *_columns(_Big, "memory_peak_bytes", "memory_working_bytes", "memory_limit_bytes", "oom_kills"),
    # Sums over gpu_usage
    *_columns(Integer(), "gpus_known", "gpus_idle"),
    *_columns(_Real, "gpu_seconds", "utilisation_sum", "utilisation_weight", "power_sum", "power_weight"),
    *_columns(_Big, "gpu_memory_peak_bytes", "gpu_memory_total_bytes"),
    sqlite_with_rowid=False,
)

gpu_usage = Table(
    "gpu_usage",
    metadata,
    _job_key(),
    Column("node", Text(), primary_key=True),
    Column("place", SmallInteger(), primary_key=True, autoincrement=False),
    *_columns(Integer(), "minor"),
    *_columns(Text(), "uuid", "parent_uuid"),
    *_text("name"),
    *_columns(_Big, "samples"),
    *_columns(_Real, "seconds", "utilisation_mean", "utilisation_p5", "utilisation_p50", "utilisation_p95"),
    *_columns(_Real, "utilisation_busy_mean"),
    *_columns(_Big, "memory_peak_bytes", "memory_total_bytes"),
    *_columns(_Real, "memory_mean_bytes", "power_mean_w", "power_peak_w", "power_limit_w", "energy_j"),
    *_columns(Integer(), "temperature_peak_c"),
    *_columns(_Real, "clock_sm_mean_mhz", "busy_seconds", "idle_at_start_seconds", "idle_after_seconds"),
    *_columns(_Real, "idle_at_end_seconds", "stuck_seconds"),
    *_columns(_Big, "ecc_corrected", "ecc_uncorrected"),
    *_columns(Text(), "throttled", "xids", "faults"),
    *_columns(_Real, "stuck_at_end_seconds"),
    sqlite_with_rowid=False,
)

series = Table(
    "series",
    metadata,
    _job_key(),
    Column("node", Text(), primary_key=True),
    Column("serial", _Big, nullable=False),
    Column("final", Boolean(), nullable=False),
    Column("at", _Real, nullable=False),
    Column("touched", _Real, nullable=False),
    Column("since", _Real, nullable=False),
    Column("step", _Real, nullable=False),
    Column("columns", LargeBinary(), nullable=False),
)

node = Table(
    "node",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("name", Text(), primary_key=True),
    Column("heard", _Real, nullable=False),
    sqlite_with_rowid=False,
)

node_event = Table(
    "node_event",
    metadata,
    Column("pk", _Key, primary_key=True, autoincrement=True),
    Column("id", Text(), nullable=False),
    Column("cluster", Text(), nullable=False),
    Column("node", Text(), nullable=False),
    Column("at", _Real, nullable=False),
    Column("name", Text(), nullable=False),
    Column("state", Text(), nullable=False),
    *_text("detail"),
    Column("action", Text(), nullable=False),
    *_columns(Text(), "gpu"),
    *_columns(_Big, "job_id"),
    *_columns(Integer(), "restarts"),
)

# The last event of each check of a node
node_check = Table(
    "node_check",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("node", Text(), primary_key=True),
    Column("name", Text(), primary_key=True),
    Column("at", _Real, nullable=False),
    Column("event_id", Text(), nullable=False),
    Column("state", Text(), nullable=False),
    sqlite_with_rowid=False,
)

decision = Table(
    "decision",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("id", Text(), primary_key=True),
    Column("at", _Real, nullable=False),
    Column("uid", _Big),
    Column("mode", Text()),
    Column("enforced", Boolean()),
    # What came of it: "job", "ambiguous", "dropped"; null: not known yet
    Column("outcome", Text()),
    Column("job_id", _Big),
    # The journal's lines, as they are
    Column("body", Text()),
    Column("joined", Text()),
    sqlite_with_rowid=False,
)

# What a node read in the ends of a job's logs: the newest word
finding = Table(
    "finding",
    metadata,
    _job_key(),
    Column("node", Text(), primary_key=True),
    Column("serial", _Big, nullable=False),
    Column("at", _Real, nullable=False),
    Column("body", Text(), nullable=False),
)

# Attempts whose verdict is to be made, or made again: `due` is when, by the service's clock
unjudged = Table(
    "unjudged",
    metadata,
    _job_key(),
    Column("cluster", Text(), nullable=False),
    Column("due", _Real, nullable=False),
    # Another one each time that something is told of the attempt: a verdict that was made without it is not written
    Column("mark", _Big, nullable=False),
)

# Why an attempt failed. What lists and sums are made of stands beside the whole of it (`body`)
verdict = Table(
    "verdict",
    metadata,
    _job_key(),
    Column("cluster", Text(), nullable=False),
    Column("job_id", _Big, nullable=False),
    Column("uid", _Big),
    *_text("user", "account", "name"),
    # Its end
    Column("at", _Real, nullable=False),
    Column("reason", Text(), nullable=False),
    Column("tier", Text(), nullable=False),
    Column("confidence", _Real),
    *_text("signature", "fingerprint"),
    Column("source", Text(), nullable=False),
    # GPUs asked for, times run time; and the run time
    *_columns(_Real, "gpu_seconds", "runtime"),
    Column("body", Text(), nullable=False),
)

# Attempts that failed just now, of which it is to be decided what follows
undecided = Table(
    "undecided",
    metadata,
    _job_key(),
    Column("cluster", Text(), nullable=False),
    Column("uid", _Big),
    # When it is to be looked at, by the service's clock
    Column("due", _Real, nullable=False),
    # Another one with each verdict: what was decided by an older one is not written
    Column("mark", _Big, nullable=False),
)

# What follows a failed attempt. What is searched by stands beside the whole of it (`body`)
resubmission = Table(
    "resubmission",
    metadata,
    _job_key(),
    Column("cluster", Text(), nullable=False),
    Column("job_id", _Big, nullable=False),
    Column("restarts", Integer(), nullable=False),
    Column("uid", _Big),
    Column("state", Text(), nullable=False),
    Column("reason", Text(), nullable=False),
    # When it is worked on next; null: never again
    Column("due", _Real),
    Column("at", _Real, nullable=False),
    Column("body", Text(), nullable=False),
)

# A rule on use that the job's user was told of, in which words, and when the job was cancelled for it
rule_told = Table(
    "rule_told",
    metadata,
    _job_key(),
    Column("rule", Text(), primary_key=True),
    Column("at", _Real, nullable=False),
    *_text("about", "evidence"),
    Column("cancelled", _Real),
    sqlite_with_rowid=False,
)

# From when on evidence against a node counts: somebody has looked after it
node_clearance = Table(
    "node_clearance",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("node", Text(), primary_key=True),
    Column("at", _Real, nullable=False),
    *_text("by", "why"),
    sqlite_with_rowid=False,
)

# What one run of a workload measured: all of it is in `body`. `family` is the widest of the names that the workload
# has there, `counts` how many points it has
profile_point = Table(
    "profile_point",
    metadata,
    Column("pk", _Key, primary_key=True, autoincrement=True),
    Column("cluster", Text(), nullable=False),
    Column("uid", _Big, nullable=False),
    Column("id", Text(), nullable=False),
    Column("family", Text(), nullable=False),
    Column("gpu_type", Text(), nullable=False),
    Column("source", Text(), nullable=False),
    Column("counts", Integer(), nullable=False),
    Column("at", _Real, nullable=False),
    Column("body", Text(), nullable=False),
)

# A smoke run that passed, by what it ran
smoke = Table(
    "smoke",
    metadata,
    Column("cluster", Text(), primary_key=True),
    Column("uid", _Big, primary_key=True, autoincrement=False),
    Column("fingerprint", Text(), primary_key=True),
    Column("at", _Real, nullable=False),
    Column("job_id", _Big),
    Column("outcome", Text(), nullable=False),
    sqlite_with_rowid=False,
)

SEARCHED = (
    Index("uq_job_attempt", job.c.cluster, job.c.job_id, job.c.restarts, unique=True),
    # A list is read from one of these alone; then its rows are fetched by key
    Index("ix_job_list", job.c.cluster, job.c.sort_at, job.c.pk),
    Index("ix_job_uid", job.c.cluster, job.c.uid, job.c.sort_at, job.c.pk, job.c.state, job.c.account),
    Index("ix_job_user", job.c.cluster, job.c.user, job.c.sort_at, job.c.pk, job.c.state, job.c.account),
    Index("ix_job_account", job.c.cluster, job.c.account, job.c.sort_at, job.c.pk, job.c.state),
    Index("ix_job_state", job.c.cluster, job.c.state, job.c.sort_at, job.c.pk),
    # Those that ended lately are few, whoever's they are
    Index(
        "ix_job_ended",
        job.c.cluster,
        job.c.ended,
        job.c.pk,
        job.c.sort_at,
        job.c.user,
        job.c.account,
        job.c.state,
        sqlite_where=text("ended IS NOT NULL"),
        postgresql_where=text("ended IS NOT NULL"),
    ),
    Index(
        "ix_job_uid_ended",
        job.c.cluster,
        job.c.uid,
        job.c.ended,
        job.c.pk,
        job.c.sort_at,
        job.c.account,
        job.c.state,
        sqlite_where=text("ended IS NOT NULL"),
        postgresql_where=text("ended IS NOT NULL"),
    ),
    Index(
        "ix_job_array",
        job.c.cluster,
        job.c.array_job_id,
        job.c.array_task_id,
        sqlite_where=text("array_job_id IS NOT NULL"),
        postgresql_where=text("array_job_id IS NOT NULL"),
    ),
    Index(
        "ix_job_het",
        job.c.cluster,
        job.c.het_job_id,
        job.c.het_offset,
        sqlite_where=text("het_job_id IS NOT NULL"),
        postgresql_where=text("het_job_id IS NOT NULL"),
    ),
    # Those that Slurm must be asked about are few among many
    Index(
        "ix_job_ask",
        job.c.cluster,
        job.c.ask_at,
        sqlite_where=text("ask_at IS NOT NULL"),
        postgresql_where=text("ask_at IS NOT NULL"),
    ),
    # ... and so are those that run
    Index(
        "ix_job_node_open",
        job_node.c.node,
        job_node.c.job,
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    # What ended on a node about the time of an event there
    Index(
        "ix_job_node_ended",
        job_node.c.node,
        job_node.c.ended_at,
        job_node.c.started_at,
        job_node.c.job,
        sqlite_where=text("ended_at IS NOT NULL"),
        postgresql_where=text("ended_at IS NOT NULL"),
    ),
    Index("ix_series_touched", series.c.touched),
    Index("uq_node_event_id", node_event.c.id, unique=True),
    Index("ix_node_event_node", node_event.c.cluster, node_event.c.node, node_event.c.at, node_event.c.pk),
    Index("ix_node_event_at", node_event.c.at),
    Index("ix_decision_at", decision.c.at),
    Index("ix_decision_job", decision.c.cluster, decision.c.job_id),
    Index("ix_unjudged_due", unjudged.c.cluster, unjudged.c.due, unjudged.c.job, unjudged.c.mark),
    Index("ix_undecided_due", undecided.c.cluster, undecided.c.due, undecided.c.job, undecided.c.uid),
    # Those that are still to be worked on are few among all that ever were
    Index(
        "ix_resubmission_due",
        resubmission.c.cluster,
        resubmission.c.due,
        resubmission.c.job,
        resubmission.c.uid,
        sqlite_where=text("due IS NOT NULL"),
        postgresql_where=text("due IS NOT NULL"),
    ),
    Index(
        "ix_resubmission_job",
        resubmission.c.cluster,
        resubmission.c.job_id,
        resubmission.c.restarts,
        resubmission.c.job,
        resubmission.c.uid,
    ),
    # Pages of verdicts are read from one of these alone
    Index(
        "ix_verdict_at",
        verdict.c.cluster,
        verdict.c.at,
        verdict.c.job,
        verdict.c.user,
        verdict.c.fingerprint,
    ),
    Index("ix_verdict_uid", verdict.c.cluster, verdict.c.uid, verdict.c.at, verdict.c.job, verdict.c.reason),
    # ... and so is the table of reasons
    Index(
        "ix_verdict_reason",
        verdict.c.cluster,
        verdict.c.reason,
        verdict.c.at,
        verdict.c.job,
        verdict.c.user,
        verdict.c.fingerprint,
        verdict.c.account,
        verdict.c.uid,
        verdict.c.job_id,
        verdict.c.gpu_seconds,
        verdict.c.runtime,
    ),
    # A user's failures by the same evidence, and by the same reason under the same name
    Index(
        "ix_verdict_fingerprint",
        verdict.c.cluster,
        verdict.c.uid,
        verdict.c.fingerprint,
        verdict.c.at,
        verdict.c.job,
    ),
    Index(
        "ix_verdict_name",
        verdict.c.cluster,
        verdict.c.uid,
        verdict.c.reason,
        verdict.c.name,
        verdict.c.at,
        verdict.c.job,
    ),
    # All that a user's runs measured is read at once
    Index(
        "uq_profile_point_id", profile_point.c.cluster, profile_point.c.uid, profile_point.c.id, unique=True
    ),
    Index("ix_profile_point_at", profile_point.c.at),
    Index("ix_smoke_at", smoke.c.at),
)
"""What makes the service's queries quick; each serves one or two of them.

On SQLite no ANALYZE is ever run: its planner then goes by the shape of a query alone and takes the index with the most
columns held fast, which is the right one here, on the first day and with a million jobs (tests hold the plans). With
statistics a plan may change by itself, some night.
"""

TABLES: tuple[Table, ...] = tuple(metadata.sorted_tables)
"""All tables, each after those that it refers to."""
