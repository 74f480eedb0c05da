"""What goes wrong, as a user is told it: what happened, why, what to do; three lines at most."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
"""Exit code: the thing asked about failed (Slurm refused, the controller is out of reach, the job failed)."""
USAGE: Final = 2
"""Exit code: wrong usage or configuration; nothing was asked of Slurm."""


class UserError(Exception):
    """An error that the user can do something about; told without a traceback.

    Parameters
    ----------
    what: what happened, one line.
    why: the cause as Slurm or the system words it; may be empty.
    fix: what to do; may be empty.
    exit_code: FAILED or USAGE.
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "", exit_code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        self.exit_code = exit_code

    def lines(self) -> list[str]:
        """The message, one to three lines, without control characters."""
        from gsub.term import one_line

        told = [f"gsub: {one_line(self.what)}"]
        if self.why:
            told.append(f"  why: {one_line(self.why)}")
        if self.fix:
            told.append(f"  try: {one_line(self.fix)}")
        return told

    def facts(self) -> dict[str, object]:
        """The same for `--json`."""
        return {"error": {"what": self.what, "why": self.why, "fix": self.fix}, "exit_code": self.exit_code}
