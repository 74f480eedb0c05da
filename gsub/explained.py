"""An explanation as a person reads it, and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from gsub.decide import Explanation, Part
from gsub.sbatch import PROGRAM
from slurm_plugins.decide.decision import Change, Decision
from slurm_plugins.decide.pipeline import option

if TYPE_CHECKING:
    pass

__all__ = ["facts", "lines", "show"]

MODES: Final = {
    "observe": "gsub only writes down what it would do; the job stays as it is",
    "advise": "gsub tells what it would do; the job stays as it is",
    "enforce": "gsub makes these changes when the job is submitted",
}
"""What a mode means for a job."""


def facts(explanation: Explanation) -> dict[str, object]:
    """The explanation for `--json`."""
    context = explanation.context
    return {
        "explain": True,
        "command": [PROGRAM, *explanation.line.sbatch],
        "script": explanation.script,
        "cluster": context.site.cluster,
        "slurm": "{:02d}.{:02d}".format(*context.slurm.release),
        "site_file": explanation.site_file or None,
        "problems": list(explanation.problems),
        "components": [_part_facts(part) for part in explanation.parts],
        "exit_code": 1 if explanation.refused else 0,
    }


def _part_facts(part: Part) -> dict[str, object]:
    job = {
        name: value
        for name in part.request.job.__struct_fields__
        if (value := getattr(part.request.job, name)) is not None
    }
    found: dict[str, object] = {"job": job, "env": part.request.env, "asked": part.decision is not None}
    decision = part.decision
    if decision is not None:
        found |= {
            "mode": decision.mode,
            "opted_out": decision.opted_out,
            "changes": [
                {
                    "field": change.field,
                    "option": option(change.field, change.after),
                    "before": change.before,
                    "after": change.after,
                    "reason": change.reason,
                    "stage": change.stage,
                }
                for change in _changes(decision)
            ],
            "set_env": {k: v for k, v in decision.env.items() if k != "GSUB_DECISION"},
            "notes": [
                {"text": note.text, "stage": note.stage, "inputs": dict(note.inputs), "advice": note.advice}
                for note in decision.notes
            ],
            "reject": decision.reject,
            "failures": [{"stage": one.stage, "error": one.error} for one in decision.failures],
            "facts": dict(decision.facts),
        }
    return found


def _changes(decision: Decision) -> list[Change]:
    """What the stages decided; not the id that a real decision leaves in AdminComment."""
    return [change for change in decision.changes if change.stage]


def show(explanation: Explanation, *, terminal: bool) -> None:
    """Print it."""
    print("\n".join(lines(explanation)))


def lines(explanation: Explanation) -> Iterator[str]:
    """The explanation as plain text."""
    yield "Nothing was submitted."
    for part in explanation.parts:
        decision = part.decision
        if decision is None:
            yield "  asks for no GPU: gsub leaves it as it is"
            continue
        yield f"  mode {decision.mode}: {MODES[decision.mode]}"
        for change in _changes(decision):
            yield f"  {option(change.field, change.after)}  {change.before}  {change.reason}"
        for note in decision.notes:
            yield f"  {note.text} {dict(note.inputs)}"
        if decision.reject:
            yield decision.reject
