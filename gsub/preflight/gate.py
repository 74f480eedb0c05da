"""Preflight ahead of a submission: errors stop it, warnings are told to a person."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gsub.argv import CommandLine
from gsub.errors import FAILED, UserError
from gsub.preflight.look import submission, wanted
from gsub.preflight.values import Finding, Submission, Verdict
from gsub.script_text import is_typed, text_of
from gsub.term import is_terminal, one_line

__all__ = ["Gate", "StoppedError", "gate", "lines_of", "looked_at"]

_SHOWN = 10


class StoppedError(UserError):
    """Preflight found what would break the job; nothing was submitted."""

    def __init__(self, verdict: Verdict, *, anyway: bool = True) -> None:
        count = len(verdict.errors)
        super().__init__(
            f"this job would fail{f' in {count} ways' if count > 1 else ''}; nothing was submitted",
            fix="gsub --no-preflight submits it all the same" if anyway else "",
            exit_code=FAILED,
        )
        self.verdict = verdict

    def lines(self) -> list[str]:
        """The first line, two for each finding, and how to submit it all the same."""
        told = [f"gsub: {one_line(self.what)}"]
        for finding in self.verdict.findings[:_SHOWN]:
            told += lines_of(finding)
        if self.fix:
            told.append(f"  {one_line(self.fix)}")
        return told

    def facts(self) -> dict[str, object]:
        """The same for `--json`."""
        first = self.verdict.errors[0]
        error = {
            "what": self.what,
            "why": one_line(f"{first.where}: {first.what}"),
            "fix": one_line(first.do),
        }
        return {
            "error": error,
            "preflight": [finding.facts() for finding in self.verdict.findings],
            "exit_code": self.exit_code,
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """What preflight says, and the script, where it was read from standard input."""

    verdict: Verdict
    stdin: bytes | None = None


def lines_of(finding: Finding) -> list[str]:
    """A finding as a person reads it."""
    kind = "" if finding.level == "error" else "warning: "
    return [
        f"  {one_line(finding.where)}: {kind}{one_line(finding.what)}",
        f"    try: {one_line(finding.do)}",
    ]


def gate(line: CommandLine, environ: Mapping[str, str], folder: str) -> Gate:
    """Look at a submission before sbatch does. Raises StoppedError where it would certainly fail."""
    if not wanted(line, environ):
        return Gate(Verdict())
    if is_typed(line):
        return Gate(Verdict())  # a script that is being typed is sbatch's to read
    text = text_of(line)
    stdin = text if line.script is None and line.wrap is None else None
    if not text.strip():
        return Gate(Verdict(), stdin)
    found = looked_at(line, text, environ, folder)
    from gsub.preflight.runner import preflight

    verdict = preflight(found, alone=False)
    if verdict.errors:
        raise StoppedError(verdict)
    if is_terminal(sys.stderr):
        for finding in verdict.findings[:_SHOWN]:
            print("\n".join(["gsub:" + lines_of(finding)[0][1:], lines_of(finding)[1]]), file=sys.stderr)
    if "--debug" in line.ours:
        for name, why in verdict.given_up:
            print(f"gsub: preflight left out '{name}': {one_line(why)}", file=sys.stderr)
    return Gate(verdict, stdin)


def looked_at(line: CommandLine, text: bytes, environ: Mapping[str, str], folder: str) -> Submission:
    """The submission as the checks see it."""
    return submission(line, text.decode("utf-8", "surrogateescape"), environ, slurm_folder=folder)
