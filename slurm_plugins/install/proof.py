"""Whether a change that Slurm has taken is what it was meant to be: asked of slurmctld, before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_plugins.install.around import Around
from slurm_plugins.install.facts import slurm_env
from slurm_plugins.install.host import Host, Ran
from slurm_plugins.install.journal import Journal
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.steps import Prove

__all__ = ["Run", "StepError", "notice", "prove"]

_LEFT_OUT: Final = "gsub is left out"


class StepError(Exception):
    """A step did not work: the message says why. `remedy`: what to do, where that is known."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


@dataclass(slots=True)
class Run:
    """A plan that is being done: where, and what was noticed on the way.

    `before`: what Slurm said of a submission before the first change; `log_from`: the size of slurmctld's log then;
    `left`: what could not be taken back.
    """

    host: Host
    layout: Layout
    journal: Journal
    around: Around
    before: str | None = None  # what Slurm said of a submission before it was changed
    log_from: int = -1
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def slurm(self, *argv: str, timeout: float = 30.0) -> Ran:
        """Run a command of Slurm's, for the cluster that is meant."""
        return self.host.run(argv, timeout=timeout, env=slurm_env(self.host, self.layout))


def notice(run: Run) -> None:
    """How things are before the first change that Slurm will see."""
    if run.before is None:
        run.before = _submission(run)
        run.log_from = _log_size(run)


def _submission(run: Run) -> str:
    """What Slurm says of a submission, without numbers and times; "ok" where it would take it."""
    said = run.slurm(
        "sbatch", "--test-only", "--job-name=gsub-check", "--time=1", "--ntasks=1", "--wrap=true"
    )
    return "ok" if said.ok else re.sub(r"\d+", "#", said.trouble) or "failed"


def _config(run: Run) -> dict[str, list[str]]:
    said = run.slurm("scontrol", "show", "config")
    found: dict[str, list[str]] = {}
    for line in said.out.splitlines():
        if match := re.match(r"(\w+)(?:\[\d+\])?\s*=\s*(.*?)\s*$", line):
            found.setdefault(match[1].lower(), []).append(match[2])
    return found


def _log_size(run: Run) -> int:
    log = _config(run).get("slurmctldlogfile", [""])[0]
    found = run.host.stat(Path(log)) if log.startswith("/") else None
    return found.size if found is not None else -1


def _log_since(run: Run) -> str:
    log = _config(run).get("slurmctldlogfile", [""])[0]
    if run.log_from < 0 or not log.startswith("/"):
        return ""
    return run.host.run(["tail", "-c", f"+{run.log_from + 1}", log]).out


def prove(step: Prove, run: Run) -> None:
    """Ask until nothing speaks against it any more. Raises StepError: something still does after some patience."""
    waited = 0.0
    while True:
        trouble = _disproof(step, run)
        if not trouble:
            return
        if waited >= run.around.patience:
            raise StepError(trouble)
        # slurmctld is away for a moment while it takes a new configuration, from 23.11 on as a new process.
        run.around.sleep(0.5)
        waited += 0.5


def _disproof(step: Prove, run: Run) -> str:
    """What speaks against it; empty: nothing."""
    if " UP" not in run.slurm("scontrol", "ping").out:
        return "slurmctld does not answer"
    config = _config(run)
    for key, word in step.shows:
        values = config.get(key.lower(), [])
        if not any(word in value for value in values):
            shown = ", ".join(values) or "nothing"
            return f"slurmctld has {key}={shown}, not {word}"
    for word in step.hides:
        if keys := [key for key, values in config.items() if any(word in value for value in values)]:
            return f"slurmctld still has {word} in {', '.join(keys)}"
    if step.shim:
        now = _submission(run)
        if now not in ("ok", run.before) and run.before is not None:
            return f"a submission that was {run.before} is now: {now}"
        said = [line for line in _log_since(run).splitlines() if _LEFT_OUT in line]
        if said:
            return f"slurmctld's log: {said[-1].strip()[-200:]}"
    return ""
