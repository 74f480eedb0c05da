"""What can go wrong between us and Slurm, and what each case means.

Three answers look alike in a terminal and must never be confused: *Slurm could not be reached* (`SlurmUnreachable`:
we know nothing), *Slurm answered with nothing* (an empty tuple: true of the list that was asked for, says nothing
of a single job), and *Slurm says that there is no such job* (`NoSuchJob`: a fact about slurmctld's memory, which
forgets a job MinJobAge seconds after its end).
"""

# ruff: noqa: N818  the names say what is the case, as in `except NoSuchJob`
from __future__ import annotations

__all__ = [
    "NoSuchJob",
    "SlurmError",
    "SlurmFormatError",
    "SlurmNotInstalled",
    "SlurmRefused",
    "SlurmTimeout",
    "SlurmUnreachable",
]


_SILENT = {
    "slurmctld": "Slurm's controller (slurmctld) does not answer",
    "slurmdbd": "Slurm's accounting (slurmdbd) does not answer",
    "config": "this machine has no Slurm configuration (no slurm.conf, and no controller found by DNS)",
    "slurm.conf": "Slurm's configuration on this machine cannot be read",
}


class SlurmError(Exception):
    """Base of all errors of the client; ``str()`` is a sentence for a user, of at most three lines."""


class SlurmUnreachable(SlurmError):
    """A Slurm daemon did not answer: nothing is known about what was asked.

    ``daemon`` is ``"slurmctld"``, ``"slurmdbd"``, ``"config"`` (no slurm.conf and no configless server) or
    ``"slurm.conf"`` (one that is broken), ``detail`` is Slurm's own message.
    """

    def __init__(self, daemon: str, detail: str = "") -> None:
        self.daemon = daemon
        self.detail = detail
        super().__init__(
            _SILENT.get(daemon, f"{daemon} does not answer") + (f": {detail}" if detail else ".")
        )


class SlurmTimeout(SlurmUnreachable):
    """A command of Slurm was still running at our deadline and was ended; a submission may have been accepted all
    the same.
    """

    def __init__(self, command: str, seconds: float, daemon: str = "slurmctld") -> None:
        self.command = command
        self.seconds = seconds
        super().__init__(daemon, f"{command} was still waiting after {seconds:g} s and was ended.")


class NoSuchJob(SlurmError):
    """slurmctld was asked and says that it holds no such job. slurmdbd may still know it."""

    def __init__(self, job_id: int | str, detail: str = "") -> None:
        self.job_id = job_id
        super().__init__(
            detail
            or f"Slurm's controller has no job {job_id}: it never existed, or it ended and was dropped from memory."
        )


class SlurmRefused(SlurmError):
    """Slurm understood and refused; ``message`` is what it said, word for word."""

    def __init__(self, command: str, message: str, returncode: int = 1) -> None:
        self.command = command
        self.message = message
        self.returncode = returncode
        super().__init__(message or f"{command} failed with exit code {returncode} and gave no reason.")


class SlurmNotInstalled(SlurmError):
    """The command (or library) is not on this machine, or cannot be used on it; ``detail`` says why."""

    def __init__(self, command: str, detail: str = "") -> None:
        self.command = command
        super().__init__(
            detail or f"{command} was not found: Slurm's commands are not on PATH on this machine."
        )


class SlurmFormatError(SlurmError):
    """Slurm's answer has a form that we do not know; ``line`` keeps the faulty piece, for a bug report."""

    def __init__(self, what: str, line: str) -> None:
        self.what = what
        self.line = line
        super().__init__(f"Slurm's answer was not understood ({what}): {line[:200]!r}")
