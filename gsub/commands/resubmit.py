"""`gsub resubmit JOB`: submit a job that failed once more, changed as its reason asks for, as oneself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from time import time
from typing import TYPE_CHECKING, Final

import click

from gsub.errors import FAILED, UserError

if TYPE_CHECKING:
    from gsub.resubmission.looking import Looked
    from gsub.resubmission.original import Original
    from gsub.resubmission.proposal import Proposal, Weighed

_UNDECIDED: Final = 60.0
"""Seconds after a job's end in which the service decides what follows."""


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[-- OPTIONS SCRIPT ARGUMENTS]")
@click.option("--dry-run", is_flag=True, help="Submit nothing: show the command line and what changes.")
@click.option("--anyway", is_flag=True, help="Also where another attempt cannot help, or nothing failed.")
@click.option(
    "--as-read",
    is_flag=True,
    help="Take the command line as it reads without its quotes, which Slurm does not keep.",
)
@click.option("--current-script", is_flag=True, help="The script's file as it is now, not as it ran.")
@click.option("--current-env", is_flag=True, help="The environment of this shell, not that of the job.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resubmit(
    job: str,
    words: Sequence[str],
    *,
    dry_run: bool,
    anyway: bool,
    as_read: bool,
    current_script: bool,
    current_env: bool,
    as_json: bool,
) -> int:
    """Submit JOB (12 or 12_3) once more: its script, options, folder and environment, changed as its reason asks for.

    Of an array only the tasks that failed run again. Words after -- are the command line, where Slurm does not have it.
    """
    try:
        return _resubmit(
            job,
            words,
            dry_run=dry_run,
            anyway=anyway,
            as_read=as_read or bool(words),
            current_script=current_script,
            current_env=current_env,
            as_json=as_json,
        )
    except UserError as error:
        if as_json:
            from gsub.commands.submit import print_json

            print_json(error.facts())
        raise


def _resubmit(
    job: str,
    words: Sequence[str],
    *,
    dry_run: bool,
    anyway: bool,
    as_read: bool,
    current_script: bool,
    current_env: bool,
    as_json: bool,
) -> int:
    from gsub.resubmission.prepared import prepare, submitted, to_be_sure
    from gsub.resubmission.proposal import propose

    found = prepare(job, words, anyway=anyway, current_script=current_script, current_env=current_env)
    if not anyway:
        _not_twice(job, found.looked)
        if found.enforced:
            _not_ahead(job, found.looked, found.weighed, time())
    chosen = [one for one in found.weighed if one.again or anyway]
    if not chosen:
        raise _refusal(job, found.weighed)
    proposal = propose(found.original, chosen)
    if dry_run:
        return _show(found.original, found.weighed, proposal, as_json=as_json)
    to_be_sure(found.original, proposal, as_read=as_read, again="gsub resubmit")
    answer = submitted(found.original, proposal, found.environ, found.slurm_folder, silent=as_json)
    return _tell(found.original, found.weighed, chosen, proposal, answer, as_json=as_json)


def _not_twice(job: str, looked: Sequence[Looked]) -> None:
    """Raises UserError where gsub itself is about to run the job again, by its own number."""
    from gsub.resubmission.looking import followed

    for one in looked:
        told = followed(one.known)
        if told is not None and told.state in ("planned", "requeued"):
            when = "as soon as gsub-act answers" if told.withheld else "by itself"
            raise UserError(
                f"gsub is about to run job {one.part.shown_id} again {when}",
                why=told.why,
                fix=f"gsub watch {job}; gsub resubmit {job} --anyway submits another one besides",
                exit_code=FAILED,
            )


def _not_ahead(job: str, looked: Sequence[Looked], weighed: Sequence[Weighed], now: float) -> None:
    """Raises UserError where gsub has not decided yet whether to run the job again: it would then run twice."""
    from gsub.resubmission.looking import followed

    for one, what in zip(looked, weighed, strict=True):
        end, comment = one.part.end, (one.part.comment or "").lower()
        fresh = end is not None and 0 <= now - end.timestamp() < _UNDECIDED
        left_alone = (
            getattr(one.part, "requeue", None) is False
            or "gsub:off" in comment
            or "gsub:resubmit=" in comment
        )
        # Where the service does not answer nobody may be there who decides
        if fresh and what.again and not left_alone and not one.known.troubles and followed(one.known) is None:
            raise UserError(
                f"job {one.part.shown_id} has only just failed; gsub may be about to run it again by itself",
                why="it decides within a minute, mostly in some seconds; the job would then run twice",
                fix=f"gsub why {job} tells; gsub resubmit {job} --anyway submits another one all the same",
                exit_code=FAILED,
            )


def _refusal(job: str, weighed: Sequence[Weighed]) -> UserError:
    """Why it is not submitted again, and what to do."""
    first = weighed[0]
    reason = first.finding.reason if first.finding is not None else "not known"
    advice = first.row.command if first.row is not None else ""
    known = f"{advice} may know more; " if advice and "resubmit" not in advice else ""
    more = f" ({len(weighed) - 1} more failed for their own reasons)" if len(weighed) > 1 else ""
    return UserError(
        f"job {job} is not submitted again: {reason}{more}",
        why=first.why,
        fix=f"{known}gsub resubmit {job} --anyway submits it all the same",
        exit_code=FAILED,
    )


def _show(original: Original, weighed: Sequence[Weighed], proposal: Proposal, *, as_json: bool) -> int:
    from gsub.resubmission.view import facts, lines

    if as_json:
        from gsub.commands.submit import print_json

        print_json(facts(original, weighed, proposal, submitted=None))
        return 0
    print("Nothing was submitted (--dry-run).")
    print("\n".join(lines(original, weighed, proposal)))
    return 0


def _tell(
    original: Original,
    weighed: Sequence[Weighed],
    chosen: Sequence[Weighed],
    proposal: Proposal,
    answer: object,
    *,
    as_json: bool,
) -> int:
    from gsub.resubmission.view import command_line, facts
    from gsub.sbatch import Answer
    from gsub.term import one_line

    assert isinstance(answer, Answer) and answer.submitted is not None  # noqa: S101 - else it had raised
    if as_json:
        from gsub.commands.submit import print_json

        print_json(facts(original, weighed, proposal, submitted=answer.submitted.job_id))
        return 0
    sys.stdout.flush()
    print(f"  {command_line(proposal.reading.words)}", file=sys.stderr)
    for why in dict.fromkeys(one.why for one in chosen if one.again):
        print(f"  {one_line(why)}", file=sys.stderr)
    left = [one for one in weighed if one not in chosen]
    for one in left:
        print(
            f"  left out: {one_line(one.part.shown_id)} and those like it: {one_line(one.why)}",
            file=sys.stderr,
        )
    for note in (*original.notes, *proposal.notes):
        print(f"  note: {one_line(note)}", file=sys.stderr)
    return 0
