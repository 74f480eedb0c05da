"""Slurm's commands that tell nothing of a request: they were not run, or the controller did not answer them."""

from __future__ import annotations

from gsub.preflight.children import Child

__all__ = ["unanswered"]

_SAID = ("Unable to contact", "Socket timed out")
_MEANT = ("not configured", "out of reach")


def unanswered(said: Child, program: str) -> str:
    """Why the program tells nothing; "" where it answered, be it that it refuses.

    >>> unanswered(Child(None, late=True), "sbatch"), unanswered(Child(1, err="Invalid qos specification"), "sbatch")
    ('the Slurm controller did not answer sbatch in time', '')
    """
    if said.late:
        return f"the Slurm controller did not answer {program} in time"
    if said.code is None:
        return f"{program} cannot be run"
    if said.code == 0:
        return ""
    from gsub.remedies import explain

    what = explain(said.err).what
    if any(text in said.err for text in _SAID) or any(text in what for text in _MEANT):
        return what.partition(";")[0]  # what it would mean for a submission is not meant here
    return ""
