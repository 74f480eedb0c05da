"""From a request to a decision: the stages in order, each seeing what the ones before it changed.

    Request -> gang -> topology -> sensitivity -> avoid_nodes -> the site's own -> limits -> Decision

A stage's changes are made together or not at all: one that the table of edits forbids, or that the job's steps would
not see (`steps`), drops the stage's whole proposal with a note. A stage that raises costs its own proposal only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from site_configs.clients_table import find_client
from site_configs.site_model import MODES, Mode
from site_configs.units import format_size
from slurm_plugins.decide.allowance import Allowance
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import (
    MAX_SAY,
    MAX_SAY_BYTES,
    Change,
    Decision,
    Note,
    Proposal,
    StageFailure,
)
from slurm_plugins.decide.edits import Value, check, check_env
from slurm_plugins.decide.recent import Recent
from slurm_plugins.decide.request import Request, with_edits
from slurm_plugins.decide.shape import NotUnderstood, requested
from slurm_plugins.decide.stage import Stage
from slurm_plugins.decide.steps import complete, mirrors

__all__ = ["Walk", "decide", "mode_for", "option", "sentence"]

# Fields that no stage reads: cut short, they change no decision.
_UNREAD: Final = frozenset(
    {"comment", "dependency", "extra", "name", "user_name", "work_dir", "array_inx", "licenses"}
)


def decide(
    request: Request,
    context: Context,
    *,
    decision_id: str,
    stages: Sequence[Stage] | None = None,
    mode: Mode | None = None,
    recent: Recent[Walk] | None = None,
) -> Decision:
    """Decide one request.

    Parameters
    ----------
    decision_id: "d-" and 16 hexadecimal digits, made by the caller: nothing here is random.
    stages: None for gsub's own. mode: None for what the site file says of the job's partition, account and
    user.
    recent: where the caller keeps what stages said of jobs like this one; None: nothing is kept.

    Never raises for what a request, a site's stage or an odd snapshot may hold.
    """
    if stages is None:
        from slurm_plugins.decide.stages import STAGES

        stages = STAGES
    if mode is None:
        mode = mode_for(request, context)
    if request.opted_out:
        return Decision(decision_id, mode, opted_out=True)
    if not context.inventory:
        return _undecided(request, decision_id, mode, "what the cluster has is not known yet")
    if not context.inventory.pools_of(request.job.partition):
        which = f"partition {request.job.partition}" if request.job.partition else "a default partition"
        return _undecided(request, decision_id, mode, f"{which} is not known here")
    if unknown := sorted(set(request.cut) - _UNREAD):
        why = f"not looked at: {', '.join(unknown[:3])} is longer than what travels to gsub"
        return _undecided(request, decision_id, mode, why)
    if recent is None:
        return Walk.through(stages, request, context).decision(decision_id, mode)
    walk = recent.get(
        request,
        context,
        stages,
        lambda: Walk.through(stages, request, context),
        sure=lambda walk: not walk.failures,  # what fails once may do well the next time
    )
    return walk.decision(decision_id, mode)


def _undecided(request: Request, decision_id: str, mode: Mode, why: str) -> Decision:
    notes = (Note(why, "pipeline"),)
    return Decision(decision_id, mode, notes=notes, say=_say((), notes, None, mode, request.opted_in))


def mode_for(request: Request, context: Context) -> Mode:
    """How far gsub may go with this job; of several partitions (``-p a,b``) the most cautious counts."""
    job = request.job
    account = job.account or job.default_account or ""
    site = context.site
    # Thousands of names may be written: those of which the site file says nothing are all the same
    written = (job.partition or context.inventory.default).split(",")
    names = {name if name in site.partitions else "" for name in written}
    return min(
        (site.mode_for(partition=name, account=account, uid=request.uid) for name in names), key=MODES.index
    )


class Walk:
    """One walk through the stages: what they said of a request, whatever becomes of it."""

    def __init__(self, request: Request, context: Context) -> None:
        self.asked = request
        self.now = request
        self.context = context
        self.changes: list[Change] = []
        self.env: dict[str, str] = {}
        self.notes: list[Note] = []
        self.failures: list[StageFailure] = []
        self.reject: str | None = None
        self.error = 0

    @cached_property
    def allowance(self) -> Allowance | None:
        """The limits and charges of the request as its user made it; found when a change first needs them."""
        return Allowance.of(self.asked, self.context)

    @classmethod
    def through(cls, stages: Sequence[Stage], request: Request, context: Context) -> Walk:
        """Past all of them, or up to the one that refuses the job."""
        walk = cls(request, context)
        for stage in stages:
            walk.take(stage)
            if walk.reject is not None:
                break
        return walk

    def take(self, stage: Stage) -> None:
        """One stage more."""
        try:
            proposal = stage.decide(self.now, self.context)
            self._merge(proposal, stage.name)
        # A stage may be a site's own: its fault must not cost a job, or the work of the others.
        except (Exception, SystemExit) as error:
            self.failures.append(StageFailure(stage.name, f"{type(error).__name__}: {error}"[:300]))

    def _merge(self, proposal: Proposal, stage: str) -> None:
        notes = [Note(note.text, stage, note.inputs, note.advice) for note in proposal.notes]
        reject = None if proposal.reject is None else _lines(proposal.reject)
        wanted = proposal.changes
        if wanted and self.allowance is not None:
            wanted, missed = self.allowance.fit(wanted, lambda some: self._with(some, stage))
            notes += [_missed(*one, stage) for one in missed]
        if wanted:
            changes = self._completed(wanted, stage)
            edits = {change.field: change.after for change in changes}
            for name, value in edits.items():
                check(name, value)
            seen = mirrors(self.now, edits, self.context.slurm.release)
            for name, text in seen.env.items():
                check_env(name, text)
            if seen.refused:
                name, why = next(iter(seen.refused.items()))
                notes.append(Note(f"{option(name, edits[name])} is left as it is: {why}", stage))
            else:
                self.now = with_edits(self.now, edits, seen.env)
                self.env.update(seen.env)
                self.changes = [*self.changes, *changes]
        self.notes += notes
        if reject:
            self.reject, self.error = reject, proposal.error

    def _with(self, changes: tuple[Change, ...], stage: str) -> Request:
        """The request as it would be with some changes."""
        if not changes:
            return self.now
        edits = {change.field: change.after for change in self._completed(changes, stage)}
        return with_edits(self.now, edits)

    def _completed(self, changes: tuple[Change, ...], stage: str) -> tuple[Change, ...]:
        """The stage's changes, with those of the fields that go with them."""
        proposed = {change.field: change for change in changes}
        edits: dict[str, Value] = {name: change.after for name, change in proposed.items()}
        found = []
        for name, value in complete(self.now, edits, self.context.slurm.release).items():
            if (own := proposed.get(name)) is not None:
                found.append(Change(name, own.before, value, own.reason, stage))
            else:
                found.append(Change(name, getattr(self.now.job, name, None), value, stage=stage))
        return tuple(found)

    def decision(self, decision_id: str, mode: Mode) -> Decision:
        """The decision that it leads to, under an id and in a mode."""
        changes, env = tuple(self.changes), dict(self.env)
        say = _say(changes, self.notes, self.reject, mode, self.asked.opted_in)
        if mode == "enforce" and self.reject is None:
            # The id travels with the job, so that what it does later finds what was decided.
            if self.asked.batch:
                env["GSUB_DECISION"] = decision_id
            # jobstats and its like write theirs with sacctmgr from EpilogSlurmctld; what slurmctld has there would be
            # put over it when the job's end is written down.
            if not self.asked.job.admin_comment and self.context.slurm.admin_comment_free:
                changes = (*changes, Change("admin_comment", None, f"gsub:{decision_id}"))
        return Decision(
            decision_id,
            mode,
            changes,
            env,
            tuple(self.notes),
            self.reject,
            say,
            failures=tuple(self.failures),
            facts=_facts(self.now) | self._client(),
            error=self.error,
        )

    def _client(self) -> dict[str, str]:
        """The program that manages the job, for what follows a failure; nothing where there is none."""
        asked = self.asked
        found = find_client(
            self.context.site.clients,
            name=asked.job.name or "",
            comment=asked.job.comment or "",
            script=asked.script_head,
        )
        return {"client": found} if found else {}


def _facts(request: Request) -> dict[str, float | int | str | None]:
    """The job's shape with all changes made; empty for a job without GPUs, or one that cannot be read."""
    shape = requested(request)
    if isinstance(shape, NotUnderstood) or shape.gpus == 0:
        return {}
    return {
        "gpus": shape.gpus,
        "gpu_type": shape.gpu_type or None,
        "nodes": shape.nodes,
        "gpus_per_node": shape.gpus_per_node,
        "tasks": shape.tasks,
    }


# --- words ----------------------------------------------------------------------------------------------------------

# A field as the option that a user would type; {} is the value.
_OPTIONS: Final[Mapping[str, str]] = {
    "min_nodes": "--nodes={}",
    "max_nodes": "at most {} nodes",
    "num_tasks": "--ntasks={}",
    "ntasks_per_node": "--ntasks-per-node={}",
    "shared": "--exclusive",
    "gres": "--gres={}",
    "cpus_per_task": "--cpus-per-task={}",
    "cpus_per_tres": "--cpus-per-gpu={}",
    "min_cpus": "{} CPUs",
    "pn_min_cpus": "--mincpus={}",
    "min_mem_per_node": "--mem={}",
    "min_mem_per_cpu": "--mem-per-cpu={}",
    "mem_per_tres": "--mem-per-gpu={}",
    "req_switch": "--switches={}",
    "wait4switch": "a wait of up to {} s for its switches",
    "segment_size": "--segment={}",
    "features": "--constraint={}",
    "prefer": "--prefer={}",
    "exc_nodes": "--exclude={}",
    "admin_comment": "AdminComment={}",
}


def option(name: str, value: Value) -> str:
    """A field and its value as a user would type them.

    >>> option("min_mem_per_node", 49152), option("cpus_per_tres", "gres:gpu:8"), option("max_nodes", 1)
    ('--mem=48G', '--cpus-per-gpu=8', 'at most 1 node')
    """
    text = str(value)
    if name.startswith("min_mem_per_") and isinstance(value, int):
        text = format_size(value)
    elif name in ("cpus_per_tres", "mem_per_tres"):
        text = text.rpartition(":")[2]
        if name == "mem_per_tres" and text.isdigit():
            text = format_size(int(text))
    elif name == "gres":
        text = text.removeprefix("gres:").removeprefix("gres/")
    elif name == "max_nodes" and value == 1:
        return "at most 1 node"
    return _OPTIONS.get(name, name + "={}").format(text)


def sentence(change: Change) -> str:
    """A change as one line: ``--nodes=2 (not stated before): the fewest nodes that hold 16 GPUs evenly``."""
    was = "not stated before" if change.before is None else f"was {option(change.field, change.before)}"
    return f"{option(change.field, change.after)} ({was}): {change.reason}"


def _missed(change: Change, smaller: Change | None, why: str, stage: str) -> Note:
    """A change that a limit or a charge is in the way of."""
    wanted = option(change.field, change.after)
    if smaller is None:
        return Note(f"{wanted} is left out: {why}", stage, {"limited": "left out"})
    text = f"{option(smaller.field, smaller.after)} instead of {wanted}: {why}"
    return Note(text, stage, {"limited": "clipped"})


def _say(
    changes: Sequence[Change], notes: Sequence[Note], reject: str | None, mode: Mode, asked: bool
) -> tuple[str, ...]:
    """The lines for the user. `asked`: they want to hear of all, in observe too, even that nothing changes."""
    if mode == "observe" and not asked:
        return ()
    if reject is not None:
        return tuple(reject.splitlines())
    verb = "set" if mode == "enforce" else "would set"
    lines = [_line(f"gsub {verb} {sentence(change)}") for change in changes if change.reason]
    if asked and not lines:
        lines = [f"gsub: nothing to change about this job (mode {mode})"]
    lines += [_line(f"gsub: {note.text}") for note in notes if note.advice or asked]
    return tuple(lines[:MAX_SAY])


def _lines(text: str) -> str:
    """A refusal as the shim takes it: up to 3 lines that a terminal shows; empty for a text that says nothing."""
    return "\n".join([_line(line) for line in text.splitlines() if line.strip()][:3])


def _line(text: str) -> str:
    """One line that a terminal shows as it is: reasons may quote what a user or a site wrote."""
    shown = text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)
    while len(shown.encode("utf-8", "replace")) > MAX_SAY_BYTES:
        shown = shown[: min(len(shown) - 1, MAX_SAY_BYTES)]
    return shown
