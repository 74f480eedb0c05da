"""`gsub fix JOB`: the exact change that mends what a job failed of, and with --yes the job submitted with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gsub.errors import FAILED, UserError

if TYPE_CHECKING:
    from gsub.fixes.values import Case, Fix
    from gsub.resubmission.looking import Looked
    from gsub.resubmission.original import Original
    from gsub.resubmission.prepared import Prepared
    from gsub.resubmission.proposal import Proposal, Weighed


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("words", nargs=-1, metavar="[-- OPTIONS SCRIPT ARGUMENTS]")
@click.option("--yes", is_flag=True, help="Submit the job with the fix; your own files stay as they are.")
@click.option("--write", is_flag=True, help="Write the fix into your script's file.")
@click.option("--as-read", is_flag=True, help="Take the command line as it reads without its quotes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def fix(job: str, words: Sequence[str], *, yes: bool, write: bool, as_read: bool, as_json: bool) -> int:
    """Show the change to the command line or the script that mends what JOB (12 or 12_3) failed of.

    Only what is sure is offered; gsub why JOB has the rest. Nothing is submitted without --yes.
    """
    try:
        return _fix(job, words, yes=yes, write=write, as_read=as_read or bool(words), as_json=as_json)
    except UserError as error:
        if as_json:
            from gsub.commands.submit import print_json

            print_json(error.facts())
        raise


@dataclass(frozen=True, slots=True)
class _Mended:
    """A job with its fixes: as it was, as it would be, and the command line."""

    before: Original
    after: Original
    fixes: tuple[Fix, ...]
    weighed: tuple[Weighed, ...]
    proposal: Proposal


def _fix(job: str, words: Sequence[str], *, yes: bool, write: bool, as_read: bool, as_json: bool) -> int:
    from gsub.resubmission.prepared import prepare, submitted, to_be_sure

    found = prepare(job, words)
    mended = _mended(job, found)
    if write:
        _may_write(mended)
    if yes:
        if not any(one.submits for one in mended.fixes):
            raise UserError(
                "there is nothing to submit with this fix",
                why=mended.fixes[0].what,
                fix=f"{mended.fixes[0].typed[0]}, then gsub resubmit {job} --anyway"
                if mended.fixes[0].typed
                else f"gsub resubmit {job} --anyway, when that is done",
                exit_code=FAILED,
            )
        to_be_sure(mended.after, mended.proposal, as_read=as_read, again="gsub fix")
    if write:
        _write(mended)
    if not as_json:
        print("\n".join(_lines(job, mended, yes=yes, write=write)), flush=True)
    number = None
    if yes:
        for one in mended.fixes:
            for folder in one.folders:
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - text as Slurm has it
        answer = submitted(mended.after, mended.proposal, found.environ, found.slurm_folder, silent=as_json)
        number = answer.submitted.job_id if answer.submitted is not None else None
    if as_json:
        from gsub.commands.submit import print_json

        print_json(_facts(mended, number, wrote=write))
    return 0


def _mended(job: str, found: Prepared) -> _Mended:
    """The fixes for what failed, put into the submission. Raises UserError where none is known."""
    from gsub.fixes import fixes_for
    from gsub.fixes.applying import applied, options_of
    from gsub.resubmission.proposal import propose

    fixes: dict[Fix, None] = {}
    chosen = []
    for looked, weighed in zip(found.looked, found.weighed, strict=True):
        case = _case(looked, weighed, found)
        one = fixes_for(case) if case is not None else None
        if one is not None:
            fixes[one] = None
            chosen.append(weighed)
    if not fixes:
        raise _none(job, found.weighed)
    after = applied(found.original, tuple(fixes))
    changes = options_of(found.original, tuple(fixes))
    return _Mended(found.original, after, tuple(fixes), tuple(chosen), propose(after, chosen, changes))


def _case(looked: Looked, weighed: Weighed, found: Prepared) -> Case | None:
    from gsub.fixes.values import Case, RealFiles
    from gsub.resubmission.proposal import exclude_change, memory_change

    original, part = found.original, looked.part
    finding = weighed.finding
    if finding is None or part.state.value == "COMPLETED":
        return None
    peak = looked.known.job.memory_peak_bytes

    def asks(name: str) -> str | None:
        option = original.asks(name)
        return None if option is None else option.value

    return Case(
        shown=part.shown_id,
        finding=finding,
        evidence=tuple(one.text for one in finding.evidence),
        row=weighed.row,
        script=original.script or "",
        wrap=original.given.value("wrap"),
        words=original.given.args,
        folder=part.work_dir or original.folder,
        output=part.stdout or "",
        files=RealFiles(),
        asks=asks,
        exclude=lambda avoid: next(iter(exclude_change(original, set(avoid), finding.reason, [])), None),
        more_memory=lambda mib, per, why: memory_change(original, mib, per, why),
        time_limit=part.time_limit,
        most_time=found.most_time,
        peak_mib=None if peak is None else -(-peak >> 20),
    )


def _none(job: str, weighed: Sequence[Weighed]) -> UserError:
    from gsub.why_log import sentence, where

    first = weighed[0].finding
    if first is None:
        return UserError(
            f"no fix is known for job {job}", why="why it failed is not known", fix=f"gsub why {job}"
        )
    said = f"; {where(first.evidence[0])}{first.evidence[0].text}" if first.evidence else ""
    again = f"; gsub resubmit {job} tries it again" if weighed[0].again else ""
    return UserError(
        f"no fix is known for job {job}",
        why=f"gsub why {job} says: {sentence(first)}{said}",
        fix=f"{first.advice or 'read its log'}{again}",
        exit_code=FAILED,
    )


# --- the user's file --------------------------------------------------------------------------------------------------


def _may_write(mended: _Mended) -> None:
    """Raises UserError where the fix is not one of the user's file, or that is not the script as it ran any more."""
    before = mended.before
    if mended.after.script == before.script:
        raise UserError(
            "there is nothing to write: this fix changes no script",
            fix=f"gsub fix {before.shown} --yes submits the job with it",
            exit_code=FAILED,
        )
    if before.source != "file" or before.given.script is None or before.kept.script is None:
        why = "the script is no file, or it has changed since it ran: what you changed would be lost"
        if before.source == "file":
            why = "the script as it ran was not kept: whether the file is the same nobody knows"
        raise UserError(
            "the fix cannot be written into a file",
            why=why,
            fix=f"gsub fix {before.shown} shows it; --yes submits the script as it ran, with it",
            exit_code=FAILED,
        )
    path = os.path.join(before.folder, before.given.script)  # noqa: PTH118 - text as Slurm has it
    if not os.access(path, os.W_OK):
        # It would be put in its place all the same, where its folder is ours to write to
        raise UserError(f"{path} cannot be written", why="it is read-only for you", exit_code=FAILED)


def _write(mended: _Mended) -> None:
    """Put the fix into the user's script: whole or not at all, with the mode that it had."""
    import shutil
    import tempfile
    from pathlib import Path

    assert mended.after.script is not None and mended.before.given.script is not None  # noqa: S101 - looked at before
    path = Path(mended.before.folder, mended.before.given.script).resolve()
    try:
        # Not by profiler.whole_file: the script keeps its mode, whatever the umask
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(mended.after.script.encode(errors="surrogateescape"))
            shutil.copymode(path, name)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(
            f"{path} cannot be written", why=error.strerror or str(error), exit_code=FAILED
        ) from error


# --- what is shown ----------------------------------------------------------------------------------------------------


def _diffs(mended: _Mended) -> tuple[list[str], list[str]]:
    """Of the command line, and of the script."""
    from gsub.resubmission.view import command_line, diff

    before, after = mended.before, mended.after
    command = diff(
        command_line(before.given.words),
        command_line(mended.proposal.reading.words),
        "as it was",
        "with the fix",
    )
    name = before.given.script or "the script"
    script = diff(before.script or "", after.script or "", name, f"{name} with the fix")
    return (command if before.given.words != mended.proposal.reading.words else []), script


def _lines(job: str, mended: _Mended, *, yes: bool, write: bool) -> list[str]:
    from gsub.term import one_line
    from gsub.why_log import sentence, where

    lines = []
    for one in mended.weighed:
        assert one.finding is not None  # noqa: S101 - it has a fix
        lines.append(f"job {one_line(one.part.shown_id)}: {sentence(one.finding)}")
        lines += [f"  {one_line(where(line) + line.text)}" for line in one.finding.evidence[:1]]
    for fixed in mended.fixes:
        lines.append(f"  fix        {one_line(fixed.what)} {one_line(fixed.why)}")
        lines += [f"  type       {one_line(command)}" for command in fixed.typed]
        lines += [f"  makes      {one_line(folder)}" for folder in fixed.folders]
    if any(one.submits for one in mended.fixes):
        command, script = _diffs(mended)
        lines += [*command, *script]
        lines += [f"  note       {one_line(note)}" for note in (*mended.before.notes, *mended.proposal.notes)]
        lines += [f"  not sure   {one_line(doubt)}" for doubt in mended.proposal.reading.doubts]
        if write:
            lines.append(f"Written: {one_line(mended.before.given.script or '')}")
        if not yes:
            lines.append(f"Nothing was submitted: gsub fix {job} --yes submits it with the fix.")
    elif not yes:
        lines.append(f"Then: gsub resubmit {job} --anyway")
    return lines


def _facts(mended: _Mended, number: int | None, *, wrote: bool) -> dict[str, Any]:
    from gsub.resubmission.view import facts, masked

    command, script = _diffs(mended)
    return {
        **facts(mended.after, mended.weighed, mended.proposal, submitted=number),
        "was": ["sbatch", *masked(mended.before.given.words)],
        "fixes": [
            {
                "what": one.what,
                "why": one.why,
                "submits": one.submits,
                "insert": one.insert or None,
                "replace": [list(masked(pair)) for pair in one.replace],
                "folders": list(one.folders),
                "typed": list(one.typed),
            }
            for one in mended.fixes
        ],
        "command_diff": "\n".join(command) or None,
        "script_diff": "\n".join(script) or None,
        "wrote": wrote,
    }
