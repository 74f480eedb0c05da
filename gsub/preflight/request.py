"""What sbatch itself says of the request, asked with `--test-only`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from gsub.preflight.children import child
from gsub.preflight.unanswered import unanswered
from gsub.preflight.values import MOST, Finding, LeftOutError, Submission
from gsub.script_text import is_pipe

__all__ = ["test_only"]


def test_only(submission: Submission) -> Iterator[Finding]:
    """Slurm's own verdict on the request. Raises LeftOutError where it cannot be had."""
    from gsub.remedies import explain
    from gsub.sbatch import PROGRAM

    if _was_read(submission):
        raise LeftOutError("the script is a pipe and has been read: sbatch would find nothing in it")
    folder = f"{submission.slurm_folder}/" if submission.slurm_folder else ""
    given = submission.text.encode("utf-8", "surrogateescape") if submission.name == "standard input" else b""
    said = child(
        [folder + PROGRAM, "--test-only", *submission.words],
        given=given,
        environ=submission.environ,
        folder=submission.cwd,
    )
    if why := unanswered(said, PROGRAM):
        raise LeftOutError(why)
    if not said.code:
        return
    if "DOS line" in said.err or "look like a batch script" in said.err:
        return  # told with its line already
    error = explain(said.err)
    line = _line_of(submission, said.err)
    why = f" ({error.why.removeprefix('sbatch says: ')[:MOST]})" if error.why else ""
    yield submission.finding("error", line, f"{error.what}{why}", error.fix or "see 'man sbatch'")


def _was_read(submission: Submission) -> bool:
    for folder in (submission.folder, submission.cwd):
        with suppress(OSError):
            return is_pipe(os.path.join(folder, submission.name))  # noqa: PTH118 - text
    return False


def _line_of(submission: Submission, said: str) -> int:
    """The `#SBATCH` line that sbatch's words point at; 0 where none does."""
    for option in submission.components[0]:
        if option.source.startswith("script line "):
            value = option.value or ""
            if f"--{option.name}" in said or (
                len(value) > 1 and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", said)
            ):
                return int(option.source.rpartition(" ")[2])
    return 0
