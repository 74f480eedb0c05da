"""An explanation as a person reads it, on a terminal and in a pipe, and as one JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from gsub.explanation import Explanation, Part
from gsub.render import count, duration
from gsub.sbatch import PROGRAM
from gsub.term import console, one_line
from profiler.workload import Identity
from slurm_plugins.decide.decision import Change, Decision, Note
from slurm_plugins.decide.pipeline import option

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["MODES", "facts", "lines", "show"]

MODES: Final = {
    "observe": "gsub only writes down what it would do; the job stays as it is",
    "advise": "gsub tells the user what it would do; the job stays as it is",
    "enforce": "gsub makes these changes when the job is submitted",
}
"""What a mode means for a job."""
_OPT_OUT: Final = "--comment=gsub:off, or GSUB=off in the environment: gsub then leaves the job alone"
_HEAD: Final = {
    "observe": ("gsub would set", "in place of", "because"),
    "advise": ("gsub would set", "in place of", "because"),
    "enforce": ("gsub sets", "in place of", "because"),
}
_MARGIN: Final = "  "
_DIGEST: Final = 12
"""Characters of a digest that are shown."""
_LEFT_OUT: Final = 4
_SECONDS: Final = frozenset({"run_time", "worth", "wait", "locality.max_wait", "max_switch_wait"})
# Of a note about memory, the first two mark it as such
_MEBIBYTES: Final = ("memory_per_gpu", "memory_peak", "share", "cap")


# --- for programs ---------------------------------------------------------------------------------------------------


def facts(explanation: Explanation) -> dict[str, Any]:
    """The explanation for `--json`."""
    context = explanation.context
    return {
        "explain": True,
        "command": [PROGRAM, *explanation.line.sbatch],
        "script": explanation.script,
        "args": list(explanation.line.args),
        "cluster": context.site.cluster or None,
        "slurm": _release(explanation),
        "site_file": explanation.site_file or None,
        "workload": _workload_facts(explanation),
        "problems": list(explanation.problems),
        "components": [_part_facts(part) for part in explanation.parts],
        "exit_code": 1 if explanation.refused else 0,
    }


def _release(explanation: Explanation) -> str:
    return "{:02d}.{:02d}".format(*explanation.context.slurm.release)


def _workload_facts(explanation: Explanation) -> dict[str, object] | None:
    known = explanation.workload
    if known is None:
        return None
    left_out = [{"text": token.text, "why": token.why} for token in known.ignored]
    return {"names": list(known.fingerprints), "left_out": left_out}


def _part_facts(part: Part) -> dict[str, object]:
    job = part.request.job
    fields = {name: value for name in job.__struct_fields__ if (value := getattr(job, name)) is not None}
    found: dict[str, object] = {
        "asked_for": {one.name: {"value": one.value, "source": one.source} for one in part.options},
        "job": fields,
        "env": dict(part.request.env),
        "looked_at": part.decision is not None,
    }
    return found if part.decision is None else found | _decision_facts(part.decision)


def _decision_facts(decision: Decision) -> dict[str, object]:
    return {
        "mode": decision.mode,
        "enforced": decision.mode == "enforce" and not decision.opted_out and decision.reject is None,
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
        "set_env": _variables(decision),
        "notes": [
            {"text": note.text, "stage": note.stage, "inputs": dict(note.inputs), "advice": note.advice}
            for note in decision.notes
        ],
        "reject": decision.reject,
        "failures": [{"stage": failure.stage, "error": failure.error} for failure in decision.failures],
        "shape": dict(decision.facts),
    }


def _changes(decision: Decision) -> list[Change]:
    """What the stages decided; not the id that a real decision leaves in AdminComment."""
    return [change for change in decision.changes if change.stage]


def _variables(decision: Decision) -> dict[str, str]:
    return {name: value for name, value in sorted(decision.env.items()) if name != "GSUB_DECISION"}


# --- for people -----------------------------------------------------------------------------------------------------


def show(explanation: Explanation, *, terminal: bool) -> None:
    """Print it."""
    if not terminal:
        print("\n".join(lines(explanation)), flush=True)
        return
    screen = console()
    for block in _blocks(explanation):
        if isinstance(block, str):
            # a label or a heading stands out; what follows it may be a user's text, which is no markup
            screen.print(block, markup=False, style="bold" if block and block[0] != " " else "")
        else:
            screen.print(_table(block))


def lines(explanation: Explanation) -> Iterator[str]:
    """The explanation as plain text; nothing is cut off, since programs read it too."""
    for block in _blocks(explanation):
        if isinstance(block, str):
            yield block
            continue
        widths = [max(len(row[column]) for row in block) for column in range(2)]
        for what, before, why in block:
            yield f"{_MARGIN}{what:<{widths[0]}}  {before:<{widths[1]}}  {why}".rstrip()


_Rows = list[tuple[str, str, str]]


def _blocks(explanation: Explanation) -> Iterator[str | _Rows]:
    """Lines of text, and tables: rows of three cells, the first row their heads."""
    yield "Nothing was submitted."
    yield from _labelled("script", one_line(explanation.script))
    cluster = explanation.context.site.cluster
    where = f"Slurm {_release(explanation)}, as it is now"
    yield from _labelled("cluster", f"{cluster}, {where}" if cluster else where)
    if explanation.workload is not None and explanation.workload.fingerprints:
        yield from _labelled("workload", one_line(_workload(explanation.workload)))
    if not explanation.site_file:
        yield from _labelled("site file", "none is found here: gsub observes")
    for problem in explanation.problems:
        yield from _labelled("problem", one_line(problem))
    for number, part in enumerate(explanation.parts):
        if len(explanation.parts) > 1:
            yield f"Component {number}"
        yield from _part(part)


def _workload(known: Identity) -> str:
    """What it is known as, and what of it did not count: `run:31d6f059b8f4, without --seed 7 (a seed)`."""
    name = known.fingerprints[0]
    kind, _, rest = name.partition(":")
    if kind == "own":
        return f"{name}, as you name it"
    shown = f"{kind}:{rest[:_DIGEST]}" if kind != "name" else name
    left_out = list(dict.fromkeys(f"{token.text} ({token.why})" for token in known.ignored))
    more = f", and {len(left_out) - _LEFT_OUT} more" if len(left_out) > _LEFT_OUT else ""
    return shown + (f", without {', '.join(left_out[:_LEFT_OUT])}{more}" if left_out else "")


def _labelled(label: str, text: str) -> Iterator[str]:
    yield f"{_MARGIN}{label:<10} {text}"


def _part(part: Part) -> Iterator[str | _Rows]:
    asked = [
        f"--{one.name}" + ("" if one.value is None else f"={one.value}") + f" ({one.source})"
        for one in sorted(part.options, key=lambda one: one.name)
        if one.name != "wrap"
    ]
    yield from _labelled("asks for", one_line(", ".join(asked)) or "nothing but the cluster's defaults")
    decision = part.decision
    if decision is None:
        yield from _labelled("gsub", "leaves it as it is: it asks for no GPU")
        return
    yield from _labelled("mode", f"{decision.mode}: {MODES[decision.mode]}")
    if decision.opted_out:
        yield from _labelled("gsub", "leaves it as it is: the job says so (gsub:off)")
        return
    yield from _decided(decision)


def _decided(decision: Decision) -> Iterator[str | _Rows]:
    for failure in decision.failures:
        yield from _labelled("problem", one_line(f"the stage {failure.stage} failed: {failure.error}"))
    if decision.reject is not None:
        verb = "refuses" if decision.mode == "enforce" else "would refuse"
        first, *rest = [one_line(text) for text in decision.reject.removeprefix("gsub: ").splitlines()] or [
            ""
        ]
        yield from _labelled("gsub", f"{verb} it: {first}")
        for text in rest:
            yield from _labelled("", text)
    told = [change for change in _changes(decision) if change.reason and decision.reject is None]
    if told:
        rows = [
            (option(one.field, one.after), _before(one), one_line(f"{one.reason} ({one.stage})"))
            for one in told
        ]
        yield ""
        yield [_HEAD[decision.mode], *rows]
        yield ""
        if variables := _variables(decision):
            pairs = " ".join(f"{name}={value}" for name, value in variables.items())
            yield from _labelled("for srun", one_line(pairs))
        if shape := _shape(decision.facts):
            yield from _labelled("the job", shape)
    elif decision.reject is None:
        yield from _labelled("gsub", "finds nothing to change")
    for note in decision.notes:
        yield from _labelled("note", one_line(f"{note.text} ({note.stage})"))
        if inputs := _inputs(note):
            yield from _labelled("", inputs)
    if told or decision.reject is not None:
        yield from _labelled("opt out", _OPT_OUT)


def _before(change: Change) -> str:
    return "nothing" if change.before is None else option(change.field, change.before)


def _shape(facts: Mapping[str, float | int | str | None]) -> str:
    """The job with all changes made: `2 nodes x 8 GPUs (a100), 16 tasks`."""
    nodes, each, total = facts.get("nodes"), facts.get("gpus_per_node"), facts.get("gpus")
    if isinstance(nodes, int) and isinstance(each, int):
        text = f"{count(nodes, 'node')} x {count(each, 'GPU')}"
    elif isinstance(total, int):
        text = count(total, "GPU")
    else:
        return ""
    kind, tasks = facts.get("gpu_type"), facts.get("tasks")
    text += f" ({kind})" if kind else ""
    return one_line(text + (f", {count(tasks, 'task')}" if isinstance(tasks, int) else ""))


def _inputs(note: Note) -> str:
    """The numbers behind a note, each with its source: `slowdown 1.15 (site), run_time 4 h (site)`."""
    sizes = _MEBIBYTES if note.inputs.keys() & set(_MEBIBYTES[:2]) else ()
    shown = []
    for name, value in note.inputs.items():
        if name.endswith("_source") or value is None:
            continue
        if isinstance(value, str):
            text = value
        elif name in _SECONDS:
            text = duration(value)
        else:
            text = f"{value / 1024:g}G" if name in sizes else f"{value:g}"
        source = note.inputs.get(f"{name}_source")
        shown.append(f"{name} {text}" + (f" ({source})" if source else ""))
    return one_line(", ".join(shown))


def _table(rows: _Rows) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for number, head in enumerate(rows[0]):
        table.add_column(head, no_wrap=number < 2)
    for row in rows[1:]:
        # Text and not str: a reason may quote what a user or a site wrote
        table.add_row(*(Text(cell, style="green" if number == 0 else "") for number, cell in enumerate(row)))
    return table
