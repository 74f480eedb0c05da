"""All that `gsub resubmit` and `gsub fix` find out of a job before they change or submit anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Final

from gsub.client import connect, job_id, telling
from gsub.errors import FAILED, USAGE, UserError
from gsub.job_parts import accounted_parts
from gsub.resubmission.looking import Looked, failed_of, look, weigh
from gsub.resubmission.original import Original, Part, original_of, parts_of
from gsub.resubmission.proposal import Proposal, Weighed
from gsub.resubmission.submission import Submission, environment, submit
from gsub.resubmission.submit_line import UnreadableError
from gsub.resubmission.view import command_line
from gsub.sbatch import Answer, clean_environment
from gsub.site import check_sbatch
from gsub.term import is_terminal

if TYPE_CHECKING:
    from gsub.submissions import Typed
    from site_configs.site_model import Site
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord

__all__ = ["Prepared", "prepare", "submitted", "to_be_sure"]

_DEADLINE: Final = 20.0
_LATE: Final = 15.0
_SOON: Final = 120.0
_PAUSE: Final = 0.5
"""Seconds: how long accounting is waited for, of jobs that ended how long ago, and between two questions."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that failed: how it was submitted, what failed of it, what the table has for that; and this shell's
    variables and the folder of Slurm's commands ("" on PATH). `most_time` is the longest limit that its partition
    gives, in seconds (None: no limit, or not known). `enforced`: the site lets gsub run such jobs again by itself.
    """

    original: Original
    looked: tuple[Looked, ...]
    weighed: tuple[Weighed, ...]
    environ: dict[str, str]
    slurm_folder: str
    most_time: int | None = None
    enforced: bool = False


def prepare(
    job: str,
    words: Sequence[str] = (),
    *,
    anyway: bool = False,
    current_script: bool = False,
    current_env: bool = False,
) -> Prepared:
    """Ask Slurm, accounting and the service. Raises UserError."""
    from gsub.commands.submit import installed_table
    from gsub.why_job import known_of
    from site_configs.resubmit_table import Resubmit
    from slurm_plugins.client.runner import Runner

    shown = job_id(job)
    client = connect()
    environ = clean_environment()
    slurm = check_sbatch(environ)
    if slurm.conf:
        environ.setdefault("SLURM_CONF", slurm.conf)
    site = slurm.site
    runner = Runner(environ, timeout=_DEADLINE)
    with telling():
        parts = parts_of(shown, client)
        failed = failed_of(shown, parts, anyway=anyway)
        record = None if words else _record(failed[0], client)
        try:
            original = original_of(
                shown,
                failed[0],
                record,
                runner,
                installed_table(environ, slurm.folder),
                environ=environ,
                words=words,
                typed=None if words else _typed(failed[0], record, site, environ),
                current_script=current_script,
                current_env=current_env,
            )
        except UnreadableError as error:
            raise UserError(
                "that command line cannot be used", why=str(error), fix="submit it with gsub", exit_code=USAGE
            ) from error
        looked = look(failed, client, known_of)
        if any(one.known.unsettled for one in looked):
            note = "it has only just ended: the reason may still turn out to be another one"
            original = replace(original, notes=(*original.notes, note))
        policy = Resubmit() if site is None else site.resubmit
        weighed = weigh(looked, original, client, policy)
        names = original.job.partition.split(",")
        limits = [one.max_time for one in client.partitions() if one.name in names and one.max_time]
    return Prepared(
        original,
        tuple(looked),
        tuple(weighed),
        environ,
        slurm.folder,
        min(limits) if limits else None,
        site is not None and site.resubmit.enabled and _is_enforced(site, original.job),
    )


def _is_enforced(site: Site, job: Part) -> bool:
    """Whether gsub may act on a job: in all partitions that it may run in."""
    uid, account = os.geteuid(), job.account or ""
    names = job.partition.split(",")
    return all(site.mode_for(partition=name, account=account, uid=uid) == "enforce" for name in names)


def _typed(
    part: Part, record: AccountingRecord | None, site: Site | None, environ: Mapping[str, str]
) -> Typed | None:
    """The command line as this user typed it, where it was submitted by gsub; accounting cannot tell all of it."""
    from gsub.submissions import typed_of

    line = (record.submit_line if record is not None else None) or getattr(part, "submit_line", None)
    return typed_of(
        part.array_job_id or part.id,
        environ,
        cluster=part.cluster or ("" if site is None else site.cluster),
        line=line or "",
        submitted=None if part.submitted is None else part.submitted.timestamp(),
        requeued=part.restarts != 0,
    )


def _record(part: Part, client: SlurmClient) -> AccountingRecord | None:
    """Accounting's row of a job, which alone has its command line; that comes in some seconds after a short job."""
    from slurm_plugins.client.errors import SlurmError

    until = monotonic() + _LATE
    while True:
        try:
            record = next(iter(accounted_parts(part.shown_id, client)), None)
        except SlurmError:
            return None  # a cluster without accounting, or one whose slurmdbd is away
        fresh = part.end is not None and time() - part.end.timestamp() < _SOON
        if (record is not None and record.submit_line) or not fresh or monotonic() > until:
            return record
        sleep(_PAUSE)


def to_be_sure(original: Original, proposal: Proposal, *, as_read: bool, again: str) -> None:
    """Ask where the command line was read from words without quotes; without a terminal refuse. Raises UserError."""
    doubts = proposal.reading.doubts
    if not doubts or as_read:
        return
    line = command_line(proposal.reading.words)
    if is_terminal(sys.stdin) and is_terminal(sys.stderr):
        import click

        if click.confirm(f"Not certain: {'; '.join(doubts)}.\nSubmit {line}?", err=True):
            return
        raise UserError("nothing was submitted", exit_code=FAILED)
    job = original.shown
    raise UserError(
        f"the command line of job {job} is not certain; nothing was submitted",
        why=f"{'; '.join(doubts)}. It reads: {line}",
        fix=f"{again} {job} --as-read takes it so; {again} {job} -- OPTIONS SCRIPT ARGUMENTS is another one",
        exit_code=FAILED,
    )


def submitted(
    original: Original, proposal: Proposal, environ: dict[str, str], folder: str, *, silent: bool
) -> Answer:
    """Submit. Raises UserError when nothing was submitted."""
    given = Submission(proposal.reading, original.source, original.script, original.folder)
    return submit(given, environment(original.kept, environ), folder, silent=silent)
