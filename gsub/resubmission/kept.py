"""What Slurm keeps of a submission besides its options: the script, and the environment that it was made in.

slurmctld has the script while it has the job, accounting has both where the site lets it
(AccountingStoreFlags=job_script,job_env). The environment holds the user's secrets: it is handed to sbatch, and never
shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from slurm_plugins.client.commands import valid_id
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.runner import Completed

__all__ = ["Kept", "Reads", "environment_of", "kept_of", "script_of"]

_HEAD: Final = re.compile(r"\A(?:Batch Script|Environment used) for [^\n]*\n-{20,}\n")
_NEXT: Final = re.compile(r"(?<=\n)(?=(?:Batch Script|Environment used) for \d+_[^\n]*\n-{80}\n)")
_NONE: Final = "NONE"
_NAME: Final = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^\s=]+(?:%%|\(\)))=")
# Written by sbatch anew at each submission
_SBATCHS: Final = ("SLURM_", "SPANK_", "_SLURM_SPANK_")
_KEPT: Final = frozenset({"SLURM_CONF"})


class Reads(Protocol):
    """Runs a command of Slurm that only reads: `slurm_plugins.client.runner.Runner`."""

    def read(self, argv: list[str], *, daemon: str = "slurmctld") -> Completed:
        """Run it. Raises SlurmError."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept: `script` (None: nowhere) and who has it; `environment` (None: nowhere) without what sbatch
    writes itself; `submit_dir` is where sbatch ran ("": not known).
    """

    script: str | None = None
    by: Literal["", "Slurm", "accounting"] = ""
    environment: Mapping[str, str] | None = None
    submit_dir: str = ""

    def __repr__(self) -> str:
        """Without the environment: a traceback or a log is read by others."""
        held = None if self.environment is None else len(self.environment)
        return f"Kept(by={self.by!r}, environment={held} variables, submit_dir={self.submit_dir!r})"


def kept_of(job: str, slurm: Reads, environ: Mapping[str, str]) -> Kept:
    """Ask Slurm and accounting for what they have of a job (`12` or `12_3`); what cannot be asked is not there.

    `environ` is the environment of now: a value of several lines is known for one if it is there too.
    """
    script = script_of(_said(slurm, ["scontrol", "write", "batch_script", valid_id(job), "-"]))
    by: Literal["", "Slurm", "accounting"] = "Slurm" if script is not None else ""
    if script is None:
        script = script_of(_accounted(slurm, job, "--batch-script"))
        by = "accounting" if script is not None else ""
    everything = environment_of(_accounted(slurm, job, "--env-vars"), environ)
    if everything is None:
        return Kept(script, by)
    own = {
        name: value for name, value in everything.items() if name in _KEPT or not name.startswith(_SBATCHS)
    }
    return Kept(script, by, own, everything.get("SLURM_SUBMIT_DIR", ""))


def _accounted(slurm: Reads, job: str, what: str) -> str:
    """What sacct prints of a job; of a task that never started, by which it finds nothing, that of the array's first:
    an array has one script and one environment.
    """
    said = _said(slurm, ["sacct", f"--jobs={valid_id(job)}", what], "slurmdbd")
    array, _, task = job.partition("_")
    if said or not task:
        return said
    whole = _said(slurm, ["sacct", f"--jobs={valid_id(array)}", what], "slurmdbd")
    return _NEXT.split(whole, maxsplit=1)[0]


def _said(slurm: Reads, argv: list[str], daemon: str = "slurmctld") -> str:
    try:
        done = slurm.read(argv, daemon=daemon)
    except SlurmError:
        return ""
    # scontrol ends with 0 even where the job is gone; it has then printed nothing
    return "" if done.returncode else done.stdout


def script_of(said: str) -> str | None:
    r"""The script in what `scontrol write batch_script` or `sacct --batch-script` printed; None: there is none.

    >>> script_of("Batch Script for 7\n" + "-" * 80 + "\n#!/bin/sh\n:\n\n"), script_of(""), script_of("NONE\n")
    ('#!/bin/sh\n:\n', None, None)
    """
    found = _HEAD.match(said)
    text = said[found.end() :] if found else said
    if found and text.endswith("\n\n"):
        text = text[:-1]  # 22.05 ends it with a line of its own
    return text if text.startswith("#!") else None


def environment_of(said: str, environ: Mapping[str, str]) -> dict[str, str] | None:
    r"""The variables that `sacct --env-vars` printed; None: it has none. A line that begins no variable goes on with
    the one before it.

    >>> head = "Environment used for 7 (must be batch to display)\n" + "-" * 80 + "\n"
    >>> environment_of(head + "A=1\nF=() {  echo a\n}\nB=\n\n", {})
    {'A': '1', 'F': '() {  echo a\n}', 'B': ''}
    """
    found = _HEAD.match(said)
    if not found or said[found.end() :].strip() in ("", _NONE):
        return None
    lines = said[found.end() :].rstrip("\n").split("\n")
    variables: dict[str, str] = {}
    name = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not _NAME.match(line):
            if name:
                variables[name] += "\n" + line
            continue
        name, _, value = line.partition("=")
        # Lines of a value that look like variables: one that is the same now is known whole
        whole = environ.get(name, "").split("\n")
        if len(whole) > 1 and [value, *lines[at : at + len(whole) - 1]] == whole:
            value = "\n".join(whole)
            at += len(whole) - 1
        variables[name] = value
    return variables


def is_same(path: str, script: str) -> bool:
    """Whether the file holds that script; blank lines at the end, which accounting adds or drops, do not count."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = file.read(len(script.encode(errors="surrogateescape")) + 4096)
    except OSError:
        return False
    return found.decode(errors="surrogateescape").rstrip("\n") == script.rstrip("\n")
