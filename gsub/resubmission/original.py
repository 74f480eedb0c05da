"""A job as it was submitted: found out from Slurm, accounting and the user's own files, by its user."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gsub.argv import CommandLine
from gsub.errors import FAILED, USAGE, UserError
from gsub.job_parts import accounted_parts, is_rest, live_parts, single_tasks, unknown
from gsub.resubmission.kept import Kept, Reads, is_same, kept_of
from gsub.resubmission.submit_line import Reading, Told, UnreadableError, read_words, reading
from gsub.sbatch_options import Table
from gsub.script import Asked, request
from gsub.script_text import command_of
from prolog_epilog.failures.mask import mask

if TYPE_CHECKING:
    from gsub.submissions import Typed
    from slurm_plugins.client.protocol import SlurmClient
    from slurm_plugins.client.values import AccountingRecord, Job

__all__ = ["Original", "Part", "Source", "original_of", "parts_of", "with_script"]

Part: TypeAlias = "Job | AccountingRecord"
Source: TypeAlias = Literal["wrap", "stdin", "file", "copy"]
"""Where sbatch gets the script: --wrap, standard input, the user's file, or the copy of it that Slurm kept."""

_LONGEST: Final = 4 << 20
"""Bytes of a script that is read: Slurm's own max_script_size."""
_OTHER: Final = "give the command line yourself: gsub resubmit {} -- OPTIONS SCRIPT ARGUMENTS"


@dataclass(frozen=True, slots=True)
class Original:
    """A submission as it was: `given` is its command line, `line` what Slurm kept of that ("" nothing), `folder` where
    sbatch ran. `source` says where the script comes from, `script` is its text (None where it is the user's file, and
    nobody kept it). `asked` are all options in effect, `notes` what the user should know of all this.
    """

    shown: str
    job: Part
    line: str
    given: Reading
    table: Table
    kept: Kept
    folder: str
    source: Source
    script: str | None
    asked: tuple[Asked, ...] = ()
    notes: tuple[str, ...] = ()

    def asks(self, name: str) -> Asked | None:
        """The option in effect of that name."""
        return next((one for one in self.asked if one.name == name), None)


def parts_of(job: str, client: SlurmClient) -> tuple[Part, ...]:
    """The job, or all tasks of an array that have started or ended, each by its last attempt; slurmctld's word goes
    first. Those that ended before they started come last: the others tell more of how it was submitted.

    Raises UserError for what is not this user's to submit again, SlurmError where Slurm does not answer.
    """
    from slurm_plugins.client.errors import SlurmError

    rows: dict[str, Part] = {}
    trouble: SlurmError | None = None
    try:
        rows.update({one.shown_id: one for one in accounted_parts(job, client)})
    except SlurmError as error:
        trouble = error
    # The record of an array as such does not say which tasks it stands for: accounting's does
    live = live_parts(job, client)
    rows.update({one.shown_id: one for one in live if one.array_tasks or not (rows and is_rest(one))})
    if not rows:
        raise trouble or unknown(job, client)
    for one in rows.values():
        if not _is_mine(one):
            raise UserError(
                f"job {job} is another user's",
                why="a job is submitted again as oneself, with one's own rights and files",
                fix="only its user can; 'gsub status --ended' lists your jobs",
                exit_code=FAILED,
            )
        if one.het_job_id is not None:
            raise UserError(
                f"job {job} is a heterogeneous job",
                why="Slurm keeps one command line for all of its components, and not which script was whose",
                fix="submit it again by the command that it was submitted by",
                exit_code=FAILED,
            )
    return tuple(_tasks(rows).values()) or tuple(rows.values())


def _tasks(rows: Mapping[str, Part]) -> dict[str, Part]:
    """Jobs and single tasks; what waits of an array is none."""
    found = {shown: one for shown, one in rows.items() if one.array_tasks is None}
    for rest in rows.values():
        if rest.array_tasks is not None and rest.state.ended:
            found |= {one.shown_id: one for one in single_tasks(rest) if one.shown_id not in found}
    return found


def _is_mine(job: Part) -> bool:
    """By the user's number as slurmctld has it; by name as accounting has it.

    sacct shows number 0 for the first seconds after a short job (22.05).
    """
    if hasattr(job, "command") or not job.user:
        return job.uid == os.geteuid()
    try:
        return job.user == pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return job.uid == os.geteuid()


def original_of(
    job: str,
    part: Part,
    record: AccountingRecord | None,
    slurm: Reads,
    table: Table,
    *,
    environ: Mapping[str, str],
    words: Sequence[str] = (),
    typed: Typed | None = None,
    current_script: bool = False,
    current_env: bool = False,
) -> Original:
    """How a job was submitted.

    Parameters
    ----------
    part: the job as Slurm has it, or one task of the array.
    record: its row of accounting, which has the command line; None: accounting does not know it.
    words: the command line, where the user gives it.
    typed: the command line as gsub has kept it, with its quotes; None: it has not.
    current_script, current_env: the file and the environment of now, not those of then.

    Raises UserError where it cannot be found out.
    """
    kept = kept_of(part.shown_id, slurm, environ)
    notes: list[str] = []
    if current_env:
        kept = replace(kept, environment=None)
    elif kept.environment is None:
        notes.append(
            "its environment was not kept (AccountingStoreFlags=job_env): that of this shell is used"
        )
    if typed is not None and not kept.submit_dir:
        kept = replace(kept, submit_dir=typed.folder)
    folder = kept.submit_dir or part.work_dir or ""
    line = (record.submit_line if record is not None else None) or getattr(part, "submit_line", None) or ""
    known = tuple(words) if words or typed is None else typed.words
    given = read_words(known, table) if known else _read(job, line, part, kept, folder=folder, table=table)
    source, script, more = _script(job, given, kept, folder, current=current_script, typed=bool(words))
    asked = _asked(given, script or "", environ if kept.environment is None else kept.environment, table)
    found = Original(job, part, line, given, table, kept, folder, source, script, asked, (*notes, *more))
    if not os.path.isdir(folder):  # noqa: PTH112 - text as Slurm has it
        raise UserError(
            f"the folder that job {job} was submitted in is not here",
            why=f"{folder or 'Slurm does not say which it was'}: no such folder",
            fix="make it, or go where it is and submit the script by hand",
            exit_code=FAILED,
        )
    return found


def with_script(original: Original, script: str) -> Original:
    """The same with another script: its own options count, and it is no file of the user's."""
    environ = original.kept.environment if original.kept.environment is not None else os.environ
    asked = _asked(original.given, script, environ, original.table)
    source: Source = "copy" if original.source == "file" else original.source
    return replace(original, script=script, asked=asked, source=source)


def _read(job: str, line: str, part: Part, kept: Kept, *, folder: str, table: Table) -> Reading:
    if not line:
        raise UserError(
            f"how job {job} was submitted is not known",
            why="accounting does not have its command line (SubmitLine): there is none, or it has not come in yet",
            fix=_OTHER.format(job),
            exit_code=FAILED,
        )
    script = kept.script or ""
    told = Told(
        name=part.name,
        comment=part.comment,
        command=_command(part),
        wrap=command_of(kept.script),
        submit_dir=folder,
        script=script,
        is_script=lambda path: bool(script) and is_same(path, script),
        is_file=os.path.isfile,
        environment=kept.environment,
    )
    try:
        return reading(line, told, table)
    except UnreadableError as error:
        raise UserError(
            f"job {job} cannot be submitted again by its command line",
            why=f"{error}: {mask(line[:200])}",
            fix=_OTHER.format(job),
            exit_code=FAILED,
        ) from error


def _command(part: Part) -> str | None:
    """Slurm's word for the script; "" where it has none; None where Slurm has forgotten the job."""
    if not hasattr(part, "command"):
        return None
    return part.command if part.command not in (None, "(null)") else ""


def _script(
    job: str, given: Reading, kept: Kept, folder: str, *, current: bool, typed: bool
) -> tuple[Source, str | None, list[str]]:
    """Where the script comes from, its text, and what is to be said of it."""
    if given.given("wrap"):
        return "wrap", kept.script if not typed else None, []
    if given.script is None:
        if kept.script is None:
            raise UserError(
                f"the script of job {job} is not known",
                why="it came from standard input, and neither Slurm nor accounting has kept it (job_script)",
                fix=f"if you have it: gsub resubmit {job} -- OPTIONS SCRIPT",
                exit_code=FAILED,
            )
        return "stdin", kept.script, []
    path = os.path.join(folder, given.script)  # noqa: PTH118 - text as it was typed
    if kept.script is not None and is_same(path, kept.script):
        return "file", kept.script, []
    there = os.path.isfile(path)  # noqa: PTH113
    if (current or typed or kept.script is None) and there:
        text = _text(path)
        if current or typed:
            return "file", text, []
        return "file", text, [f"{given.script} is used as it is now: the script as it ran was not kept"]
    if kept.script is None or current:
        raise UserError(
            f"the script of job {job} is not here",
            why=f"{path} is no file, and Slurm has no copy of it any more"
            if not current
            else f"{path} is no file",
            fix=f"gsub resubmit {job} -- OPTIONS SCRIPT names another one",
            exit_code=FAILED if not typed else USAGE,
        )
    changed = "has changed since" if there else "is gone"
    return "copy", kept.script, [
        f"{given.script} {changed}: the script is the copy that {kept.by} keeps"
        + (" (--current-script takes the file)" if there else "")
    ]  # fmt: skip


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            text = file.read(_LONGEST + 1)
    except OSError:
        return None
    # A part of it must never be submitted, or written, in place of the whole
    return text.decode(errors="surrogateescape") if len(text) <= _LONGEST else None


def _asked(given: Reading, script: str, environ: Mapping[str, str], table: Table) -> tuple[Asked, ...]:
    line = CommandLine(
        ours=frozenset(),
        sbatch=given.words,
        audible=given.words,
        components=(given.settings,),
        script=given.script,
        args=given.args,
        unsure=False,
    )
    return request(line, script, environ, table).components[0]
