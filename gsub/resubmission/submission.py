"""A job submitted again by the real sbatch: its command line, its script, the folder and the environment of then.

The environment goes to sbatch and nowhere else. The copy of a script that has changed since lies in a folder of the
user's own while sbatch reads it, under the script's name, which is the job's where it has no other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gsub.errors import UserError
from gsub.remedies import explain
from gsub.resubmission.kept import Kept
from gsub.resubmission.original import Source
from gsub.resubmission.submit_line import Reading
from gsub.sbatch import PROGRAM, Answer, Listener, run, told
from gsub.term import harmless, is_terminal

__all__ = ["Submission", "environment", "submit"]

_OURS: Final = ("SLURM_CONF", "GSUB_SITE")
"""Variables that say which cluster is spoken of: as they are now, since the job was looked at by them."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What sbatch is given: the words behind its name, the script and where it comes from, the folder to run in."""

    reading: Reading
    source: Source
    script: str | None
    folder: str


def environment(kept: Kept, now: Mapping[str, str]) -> dict[str, str]:
    """The variables for sbatch: the job's own where they were kept, else those of now."""
    if kept.environment is None:
        return dict(now)
    return {**kept.environment, **{name: now[name] for name in _OURS if name in now}}


def submit(given: Submission, environ: Mapping[str, str], folder: str, *, silent: bool) -> Answer:
    """Run sbatch; what it says goes on as it comes, unless `silent`. `folder` is where sbatch lies ("" on PATH).

    Raises UserError when nothing was submitted.
    """
    program = folder or os.path.dirname(shutil.which(PROGRAM) or "")  # noqa: PTH120 - on our PATH, not on the job's

    def message(text: bytes) -> None:
        shown = told(text.decode(errors="surrogateescape"))
        sys.stderr.write(harmless(shown) if is_terminal(sys.stderr) else shown)
        sys.stderr.flush()

    def stdout(text: bytes) -> None:
        if not silent:
            sys.stdout.write(text.decode(errors="replace"))
            sys.stdout.flush()

    listener = Listener(stdout, message, lambda job: None, lambda seconds: None)
    stdin = given.script.encode(errors="surrogateescape") if given.source == "stdin" and given.script else b""
    with _readable(given) as words, _in(given.folder):
        answer = run(words, listener, environ=environ, folder=program, stdin=stdin)
    if answer.submitted is None:
        raise explain(answer.errors)
    if answer.errors:
        message(answer.errors.encode(errors="surrogateescape"))
    return answer


@contextlib.contextmanager
def _in(folder: str) -> Iterator[None]:
    """In that folder, and then where we were. Raises UserError where it may not be entered."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            os.chdir(folder)
        except OSError as error:
            raise UserError(
                "the folder that the job was submitted in cannot be entered; nothing was submitted",
                why=f"{folder}: {error.strerror or error}",
            ) from error
        try:
            yield
        finally:
            os.fchdir(here)
    finally:
        os.close(here)


@contextlib.contextmanager
def _readable(given: Submission) -> Iterator[tuple[str, ...]]:
    """The words for sbatch; a copy of the script lies there meanwhile."""
    reading = given.reading
    if given.source != "copy" or given.script is None or reading.script is None:
        yield reading.words
        return
    with tempfile.TemporaryDirectory(prefix="gsub-") as folder:  # of this user alone (mode 0700)
        path = Path(folder, Path(reading.script).name)
        path.write_bytes(given.script.encode(errors="surrogateescape"))
        path.chmod(0o700)
        yield (*reading.options, str(path), *reading.args)
