"""The store as others see it: open it, give it records, ask it.

    store = open_store("sqlite:////var/lib/gsub/store.db")
    store.migrate()
    store.take(records, time.time())
    store.job("cluster", 12)

A store may be used by several threads; writers wait for each other, readers for nobody. Each call is a transaction of
its own and raises StoreError when the store cannot do it; nothing is half-written then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection

from profiler.answers import (
    Clearance,
    DecisionAnswer,
    EarlyFailures,
    Events,
    Jobs,
    JobSummary,
    Nodes,
    Reasons,
    Report,
    RuleTold,
    Series,
    Usage,
    VerdictAnswer,
    Verdicts,
)
from profiler.points import Measured
from profiler.records import Record
from profiler.resubmissions import PastAttempt, Resubmission
from profiler.store import clearances as clearances_
from profiler.store import early as early_
from profiler.store import enrich, ingest, judging, queries, upgrade
from profiler.store import points as points_
from profiler.store import report as report_
from profiler.store import resubmissions as resubmissions_
from profiler.store import retention as retention_
from profiler.store import told as told_
from profiler.store import verdicts as verdicts_
from profiler.store.backup import Copied, back_up
from profiler.store.bulk import lock
from profiler.store.early import EarlyQuery
from profiler.store.engine import Engines
from profiler.store.errors import StoreError, told
from profiler.store.facts import JobFacts, Wanted
from profiler.store.judging import Case, Judged
from profiler.store.queries import EventQuery, JobQuery
from profiler.store.report import ReportQuery
from profiler.store.resubmissions import Due, Undecided
from profiler.store.retention import Purged
from profiler.store.verdicts import ReasonsQuery, VerdictQuery
from profiler.waits import Attempt, Wait

__all__ = ["Store", "open_store"]


def open_store(url: str, *, read_only: bool = False) -> Store:
    """A store by its address (SQLAlchemy's). It connects when it is first asked, so this succeeds without a server.

    Raises StoreError for an address that is none.
    """
    return Store(Engines(url, read_only=read_only))


class Store:
    """What happened, kept. Made by `open_store`."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._writing = threading.Lock()

    @property
    def name(self) -> str:
        """Its address, as it may be shown."""
        return self._engines.name

    @property
    def engines(self) -> Engines:
        """Its connections."""
        return self._engines

    def close(self) -> None:
        """Give back all connections."""
        self._engines.close()

    def migrate(self) -> tuple[str, str]:
        """Make the tables, or bring them up to date; the schema's versions before ("": none) and after.

        Raises StoreError("newer") for a schema that this gsub does not know.
        """
        with told(f"The store at {self.name} cannot be opened."):
            self._engines.create()
        with self.writing("The store's schema cannot be upgraded.", checked=False) as connection:
            lock(connection, ["schema"])  # two that start at once
            return upgrade.upgrade(connection, self.name)

    def version(self) -> str:
        """The schema's version; "" without tables."""
        with self.reading("The store's version cannot be read.") as connection:
            return upgrade.version(connection)

    def check(self) -> None:
        """Raise StoreError unless the store can be reached and has this gsub's schema."""
        with self.reading("The store cannot be used.") as connection:
            upgrade.check(connection, self.name)

    # What is told

    def take(self, records: Sequence[Record], at: float) -> None:
        """Write records; when this returns, they are on disk. `at` is now, by the service's clock.

        A record that is there already changes nothing, an older one than the store has neither; the order in which
        they come does not matter. Raises StoreError, of the kind "refused" when one of them cannot be kept: take them
        one by one to know which.
        """
        if records:
            with self.writing("Records cannot be written.") as connection:
                ingest.take(connection, records, at)

    def enrich(
        self,
        facts: Sequence[JobFacts],
        at: float | None = None,
        waits: Mapping[Attempt, Wait] | None = None,
    ) -> int:
        """Write what Slurm says of attempts (`at`: now, if not given); how many of them the store has.

        `waits` is what pending jobs were seen to wait for, by job id and restarts: it is written with their start.
        """
        if not facts:
            return 0
        with self.writing("What Slurm says of jobs cannot be written.") as connection:
            return enrich.enrich(connection, facts, time.time() if at is None else at, waits or {})

    def wanting(self, cluster: str, limit: int, now: float) -> tuple[Wanted, ...]:
        """Attempts that Slurm is to be asked about now; each comes again later, unless facts of it end that."""
        with self.writing("Jobs to ask Slurm about cannot be listed.") as connection:
            return enrich.wanting(connection, cluster, limit, now)

    def put_decisions(self, cluster: str, lines: Sequence[Mapping[str, Any]]) -> int:
        """Write lines of gsubd's journal of decisions; how many were ones."""
        if not lines:
            return 0
        with self.writing("Decisions cannot be written.") as connection:
            return enrich.put_decisions(connection, cluster, lines)

    def put_verdicts(self, judged: Sequence[Judged], at: float | None = None) -> tuple[Judged, ...]:
        """Write what cases came to; those that say something new: a first verdict, or another reason than before.

        A case of which more was told meanwhile is not written: it comes again.
        """
        if not judged:
            return ()
        with self.writing("Verdicts cannot be written.") as connection:
            return judging.put(connection, judged, time.time() if at is None else at)

    def put_resubmissions(
        self, rows: Sequence[Resubmission], at: float | None = None, *, of: Sequence[Undecided] = ()
    ) -> tuple[Resubmission, ...]:
        """Write what follows failed attempts, or what has come of it; those of them that were written.

        `of` are those of `undecided` that the rows answer. Not written is a row of one that was judged anew meanwhile:
        it comes again. Nor is one of an attempt that is not there, or one that would undo what is done.
        """
        if not rows:
            return ()
        with self.writing("What follows failed jobs cannot be written.") as connection:
            return resubmissions_.put(connection, rows, time.time() if at is None else at, of)

    def put_off(self, of: Sequence[Undecided], until: float) -> None:
        """Let `undecided` not have these before `until`, unless they are judged anew."""
        if of:
            with self.writing("Decisions cannot be put off.") as connection:
                resubmissions_.put_off(connection, of, until)

    def put_told(self, cluster: str, told: Mapping[Attempt, Sequence[RuleTold]]) -> int:
        """Write of which rules on use users were told, and what followed; how much of it the store has jobs for."""
        with self.writing("What users were told cannot be written.") as connection:
            return told_.put(connection, cluster, told)

    def clear_node(self, cluster: str, node: str, at: float, by: str, why: str) -> None:
        """Let nothing from before `at` count against a node: `by` has looked after it, and says `why`."""
        with self.writing("The node cannot be cleared.") as connection:
            clearances_.clear(connection, cluster, Clearance(node, at, by, why))

    def put_points(self, cluster: str, uid: int, measured: Sequence[Measured]) -> int:
        """Keep what runs of a user measured, within bounds; how many were new."""
        if not measured:
            return 0
        with self.writing("What a run measured cannot be written.") as connection:
            return points_.put(connection, cluster, uid, measured)

    def forget(self, cluster: str, uid: int, keys: Sequence[int]) -> int:
        """Remove what runs of a user measured, by the keys that `named` told; how many of them there were."""
        with self.writing("What runs measured cannot be removed.") as connection:
            return points_.forget(connection, cluster, uid, keys)

    # What is asked

    def job(self, cluster: str, job_id: int, restarts: int | None = None) -> JobSummary | None:
        """An attempt at a job: the last one, unless `restarts` names one. None: there is none."""
        with self.reading("The job cannot be read.") as connection:
            found = queries.find(connection, cluster, job_id, restarts)
            return None if found is None else found[1]

    def id_of(
        self, cluster: str, leader: int, *, task: int | None = None, offset: int | None = None
    ) -> int | None:
        """The id of an array's task ("12_3") or a hetjob's component ("12+1"); None: Slurm has not told of it."""
        with self.reading("The job cannot be read.") as connection:
            return queries.id_of(connection, cluster, leader, task=task, offset=offset)

    def jobs(self, query: JobQuery) -> Jobs:
        """A page of jobs, the last to start (or, with `ended_since`, to end) first.

        Raises CursorError for a wrong cursor or limit.
        """
        with self.reading("Jobs cannot be listed.") as connection:
            return queries.jobs(connection, query)

    def usage(
        self, cluster: str, job_id: int, restarts: int | None = None, *, node: str | None = None
    ) -> Usage | None:
        """What a job did on its nodes, or on one of them."""
        with self.reading("The job's usage cannot be read.") as connection:
            found = queries.find(connection, cluster, job_id, restarts)
            if found is None:
                return None
            decided = resubmissions_.of_attempt(connection, found[0])
            rules = told_.of_attempt(connection, found[0])
            used = queries.usage(connection, *found, node)
            return msgspec.structs.replace(used, resubmission=decided, told=rules)

    def series(
        self,
        cluster: str,
        job_id: int,
        restarts: int | None = None,
        *,
        node: str | None = None,
        limit: int = 64,
    ) -> Series | None:
        """A job over time, on its first `limit` nodes by name, or on one of them."""
        with self.reading("The job's course cannot be read.") as connection:
            found = queries.find(connection, cluster, job_id, restarts)
            return None if found is None else queries.courses(connection, *found, node, limit)

    def nodes(self, cluster: str, name: str | None = None) -> Nodes:
        """The nodes that ever delivered a record, or one of them."""
        with self.reading("Nodes cannot be listed.") as connection:
            return queries.nodes(connection, cluster, name)

    def events(self, query: EventQuery) -> Events:
        """A page of a node's events, the latest first. Raises CursorError."""
        with self.reading("Events cannot be listed.") as connection:
            return queries.events(connection, query)

    def unjudged(self, cluster: str, limit: int, now: float) -> tuple[Case, ...]:
        """Attempts whose verdict is to be made now, or made again, each with all that is known of it."""
        with self.reading("Attempts without a verdict cannot be listed.") as connection:
            return judging.cases(connection, cluster, limit, now)

    def undecided(self, cluster: str, limit: int, now: float) -> tuple[Undecided, ...]:
        """Attempts that failed a moment ago, of which it is to be decided what follows; users in turn.

        Each was marked with its verdict, in one transaction, and stays until `put_resubmissions` answers it.
        """
        with self.reading("Failed jobs cannot be listed.") as connection:
            return resubmissions_.to_decide(connection, cluster, limit, now)

    def due_resubmissions(self, cluster: str, limit: int, now: float) -> tuple[Due, ...]:
        """What was decided and has not ended, and is due; users in turn, of each the longest due first."""
        with self.reading("What is to be done for failed jobs cannot be listed.") as connection:
            return resubmissions_.due(connection, cluster, limit, now)

    def resubmissions(self, cluster: str, job_id: int, uid: int | None = None) -> tuple[Resubmission, ...]:
        """What followed each failed attempt at a job (of `uid` only, if given), the oldest attempt first."""
        with self.reading("What followed the job's failures cannot be read.") as connection:
            return resubmissions_.of_job(connection, cluster, job_id, uid)

    def past_of(self, cluster: str, job_id: int, before_restarts: int) -> tuple[PastAttempt, ...]:
        """The attempts at a job before that one, the oldest first; the last hundred of them."""
        with self.reading("The job's earlier attempts cannot be read.") as connection:
            return resubmissions_.past_of(connection, cluster, job_id, before_restarts)

    def clearances(self, cluster: str) -> tuple[Clearance, ...]:
        """The nodes that somebody has looked after, and the last time of each."""
        with self.reading("Cleared nodes cannot be listed.") as connection:
            return clearances_.clearances(connection, cluster)

    def measured(self, cluster: str, uid: int) -> tuple[Measured, ...]:
        """What runs of a user measured, the newest first."""
        with self.reading("What runs measured cannot be read.") as connection:
            return points_.runs(connection, cluster, uid)

    def named(self, cluster: str, uid: int) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The names of each run of a user that measured something, with its key."""
        with self.reading("What runs measured cannot be read.") as connection:
            return points_.named(connection, cluster, uid)

    def measuring(self, cluster: str) -> tuple[int, ...]:
        """The users of whose runs something was measured."""
        with self.reading("What runs measured cannot be read.") as connection:
            return points_.users(connection, cluster)

    def ran(
        self, cluster: str, since: float, known: Collection[tuple[int, int]] = ()
    ) -> tuple[points_.Ran, ...]:
        """Attempts that ended since then whose decision and memory are known, without those in `known`."""
        with self.reading("What runs used cannot be read.") as connection:
            return points_.ran(connection, cluster, since, known)

    def verdicts(self, query: VerdictQuery) -> Verdicts:
        """A page of verdicts, the last to end first. Raises CursorError."""
        with self.reading("Verdicts cannot be listed.") as connection:
            return verdicts_.verdicts(connection, query)

    def verdict(self, cluster: str, job_id: int, restarts: int | None = None) -> VerdictAnswer | None:
        """Why an attempt failed, and what is known of failures like it. None: there is no such attempt."""
        with self.reading("The verdict cannot be read.") as connection:
            found = queries.find(connection, cluster, job_id, restarts)
            if found is None:
                return None
            key, of = found
            return VerdictAnswer(
                of, verdicts_.of_attempt(connection, key), verdicts_.similar(connection, key)
            )

    def decision(self, cluster: str, job_id: int, restarts: int | None = None) -> DecisionAnswer | None:
        """What was decided when a job was submitted. None: there is no such attempt."""
        with self.reading("The decision cannot be read.") as connection:
            found = queries.find(connection, cluster, job_id, restarts)
            return (
                None if found is None else DecisionAnswer(found[1], *verdicts_.decision(connection, found[1]))
            )

    def reasons(self, query: ReasonsQuery) -> Reasons:
        """Failures by reason over a span of time, the costliest first."""
        with self.reading("The table of reasons cannot be made.") as connection:
            return verdicts_.reasons(connection, query)

    def report(self, query: ReportQuery) -> Report:
        """What a user's attempts over a span of time held, used and lost."""
        with self.reading("The report cannot be made.") as connection:
            return report_.report(connection, query)

    def early_failures(self, query: EarlyQuery) -> EarlyFailures:
        """After how long jobs failed of what a smoke run would have seen."""
        with self.reading("The history of early failures cannot be read.") as connection:
            return early_.early_failures(connection, query)

    # Upkeep

    def purge(self, now: float, retention: float, series_retention: float) -> Purged:
        """Remove what ended more than `retention` seconds ago, and series after `series_retention`; what that was.

        It takes its time: others may write in between. When it is cut off, the next one goes on.
        """
        return retention_.purge(
            lambda: self.writing("What is too old cannot be removed."), now, retention, series_retention
        )

    def backup(self, path: Path) -> Copied:
        """Copy all to a file (mode 0600), while others go on writing; what that was."""
        return back_up(self._engines, path)

    # Transactions

    @contextmanager
    def reading(self, what: str) -> Iterator[Connection]:
        """A connection that sees one state of the store; `what` begins the message when it fails."""
        with told(what), self._engines.reader.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, what: str, *, checked: bool = True) -> Iterator[Connection]:
        """The one transaction that writes: all of it is kept, or nothing."""
        if self._engines.read_only:
            raise StoreError("read_only", what, "The store was opened for reading.", "")
        with self._writing, told(what), self._engines.writer.begin() as connection:
            if checked:
                upgrade.check(connection, self.name)
            yield connection
