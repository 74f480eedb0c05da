"""Doing a plan: each step is written down, done, and written down as done.

What is changed together is taken back together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_plugins.install.around import Around
from slurm_plugins.install.host import Host, HostError
from slurm_plugins.install.journal import ABSENT, Journal, State, state_of
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.plan import Plan
from slurm_plugins.install.proof import Run, StepError, notice, prove
from slurm_plugins.install.rehearse import Candidate
from slurm_plugins.install.restore import restored
from slurm_plugins.install.steps import (
    Answer,
    Command,
    Folder,
    Owner,
    Programs,
    Prove,
    Put,
    Reconfigure,
    Rehearse,
    Remove,
    Step,
    Touch,
    Wait,
)

__all__ = ["Done", "StepError", "apply"]

_SECOND: Final = 1.0
_BETWEEN: Final = 3.0
"""Seconds from one reconfigure to the next, at least."""


@dataclass(frozen=True, slots=True)
class Done:
    """How it went.

    Parameters
    ----------
    steps: how many were done.
    failed: the step that was not, in words, and why; empty: all were.
    back: what was taken back then; None: nothing was to be.
    left: what could not be.
    notes: what came up.
    """

    steps: int
    failed: str = ""
    why: str = ""
    remedy: str = ""
    back: tuple[str, ...] | None = None
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """All of it was done."""
        return not self.failed


def apply(
    plan: Plan,
    host: Host,
    layout: Layout,
    journal: Journal,
    around: Around,
    *,
    version: str = "",
    asked: Mapping[str, str | tuple[str, ...] | None] | None = None,
) -> Done:
    """Do the plan's steps in order, up to the first that fails.

    When one fails after something was changed together, by this run or by one before that was killed, that is put back
    as it was, and Slurm is told. Steps are such that the others may stay: Slurm does not know of them.

    Raises
    ------
    HostError: the journal itself cannot be written, before anything was changed.
    """
    run = Run(host, layout, journal, around)
    if not plan.steps:
        return Done(0)
    journal.add("begun", plan.kind, version=version, asked=dict(asked) if asked is not None else None)
    count = 0
    for step in plan.steps:
        around.say(step.line())
        try:
            _one(step, run)
        except (StepError, HostError, KeyboardInterrupt) as error:
            remedy = error.remedy if isinstance(error, StepError) else ""
            # ^C between a change and its proof, too: what was not proven must not stay.
            why = str(error) or "it was interrupted"
            back = _fail(run, step, why)
            return Done(count, step.line(), why, remedy, back, tuple(run.left), tuple(run.notes))
        count += 1
    return Done(count, notes=tuple(run.notes))


def _one(step: Step, run: Run) -> None:
    """One step, written down before and after."""
    match step:
        case Folder() | Put() | Remove():
            follow = isinstance(step, Folder | Put)
            before = run.journal.keep(step.path, follow=follow)
            if isinstance(step, Put) and step.before is not None and before.kind != "file":
                # Rollback would remove it as ours.
                raise StepError(f"{step.path} is not to be seen any more", "run this again")
            if isinstance(step, Put) and step.together:
                notice(run)
            run.journal.add(
                "doing",
                step.line(),
                path=str(step.path),
                before=before,
                after=_after(step),
                together=isinstance(step, Put) and step.together,
            )
        case Command():
            run.journal.add("doing", step.line(), undo=step.undo)
        case _:
            run.journal.add("doing", step.line())
    _do(step, run)
    run.journal.add("proven" if isinstance(step, Prove) else "done", step.line())


def _after(step: Folder | Put | Remove) -> State:
    match step:
        case Folder():
            return State("folder", mode=step.mode)
        case Put():
            return State("file", hashlib.sha256(step.content).hexdigest(), step.mode)
        case Remove():
            return ABSENT


def _fail(run: Run, step: Step, why: str) -> tuple[str, ...] | None:
    """Write the failure down, and put back what was changed together. What was put back; None: nothing was changed."""
    try:
        run.journal.add("failed", step.line())
        return _take_back(run)
    except HostError as error:
        run.notes.append(f"the journal cannot be written: {error}")
        return _take_back(run)


def _do(step: Step, run: Run) -> None:
    """Raises StepError, HostError."""
    host = run.host
    match step:
        case Folder():
            uid, gid = _numbers(step.owner, host)
            host.make_folder(step.path, mode=step.mode, uid=uid, gid=gid)
        case Put():
            if step.before is not None or step.together:
                now = host.read(step.path)
                if now != step.before:
                    raise StepError(f"{step.path} was changed by somebody meanwhile", "run this again")
            uid, gid = _numbers(step.owner, host)
            host.write(step.path, step.content, mode=step.mode, uid=uid, gid=gid)
        case Remove():
            found = host.stat(step.path)
            if not step.folder or (found is not None and not host.names(step.path)):
                host.remove(step.path)
        case Touch():
            _touch(step.path, run)
        case Command():
            _command(step, run)
        case Answer():
            _answered(step, run)
        case Programs():
            _tried(step, host)
        case Rehearse():
            _rehearsed(step, run)
        case Reconfigure():
            _reconfigure(run)
        case Wait():
            run.around.sleep(step.seconds)
        case Prove():
            prove(step, run)


def _numbers(owner: Owner, host: Host) -> tuple[int, int]:
    if owner.numbers is not None:
        return owner.numbers
    uid = host.uid(owner.user)
    if uid is None:
        raise StepError(f"there is no user {owner.user}")
    if uid == 0:
        return 0, 0
    said = host.run(["id", "-g", owner.user])
    if not said.ok or not said.out.strip().isdecimal():
        raise StepError(f"the group of {owner.user} cannot be told: {said.trouble}")
    return uid, int(said.out)


def _command(step: Command, run: Run) -> None:
    said = run.host.run(step.argv, timeout=90)
    if said.code in step.fine:
        return
    why = f"{' '.join(step.argv)}: {said.trouble}"
    if step.must:
        raise StepError(why)
    run.notes.append(why)


def _touch(path: Path, run: Run) -> None:
    """Slurm compares whole seconds, and loads a file that is later only."""
    found = run.host.stat(path)
    if found is None:
        raise StepError(f"{path} is gone")
    before = int(found.mtime)
    run.host.touch(path)
    while (now := run.host.stat(path)) is not None and int(now.mtime) == before:
        run.around.sleep(_SECOND - run.around.now() % _SECOND + 0.01)
        run.host.touch(path)


def _answered(step: Answer, run: Run) -> None:
    waited = 0.0
    while not run.around.service.decides(step.host, step.port):
        if waited >= run.around.patience:
            raise StepError(
                f"gsubd does not answer on {step.host}:{step.port}",
                "journalctl -u gsubd says why; then run this again",
            )
        run.around.sleep(0.5)
        waited += 0.5


def _tried(step: Programs, host: Host) -> None:
    for program in step.paths:
        said = host.run([str(program), "--help"])
        if not said.ok:
            why = f"{program.name} of this version does not start: {said.trouble}"
            raise StepError(why, "install the package anew")


def _rehearsed(step: Rehearse, run: Run) -> None:
    candidate = Candidate(job_submit=step.job_submit, shim=step.shim, plugins=step.plugins)
    found = run.around.rehearse(run.host, run.layout, candidate)
    if not found.ok:
        raise StepError(found.seen, found.remedy)


# --- Slurm -----------------------------------------------------------------------------------------------------------


def _reconfigure(run: Run) -> None:
    # 24.11 lost a slurmd for a minute when two came within a second.
    what = Reconfigure().line()
    told = [entry.at for entry in run.journal.entries[:-1] if entry.what == what and entry.event == "doing"]
    since = run.around.now() - max(told, default=0.0)
    if 0 <= since < _BETWEEN:
        run.around.sleep(_BETWEEN - since)
    said = run.slurm("scontrol", "reconfigure", timeout=60)
    if not said.ok:
        raise StepError(f"scontrol reconfigure: {said.trouble}")


# --- taking back ------------------------------------------------------------------------------------------------------


def _take_back(run: Run) -> tuple[str, ...] | None:
    """Put what was changed together back as it was, and tell Slurm. Goes on where one thing cannot be put back."""
    unproven = run.journal.unproven()
    if not unproven:
        return None
    told = []
    for path, original in reversed(list(unproven.items())):
        try:
            told.append(_put_back(run, path, original))
        except (HostError, StepError) as error:
            run.left.append(f"{path} could not be put back: {error}")
    told = [line for line in told if line]
    try:
        script = run.layout.job_submit
        if (
            script not in unproven
            and any(path.suffix == ".lua" for path in unproven)
            and run.host.stat(script)
        ):
            _touch(script, run)
        if any(path != script and path.suffix != ".lua" for path in unproven):
            _reconfigure(run)
        if not run.left:
            run.journal.add("taken back")
    except (HostError, StepError) as error:
        run.left.append(f"Slurm could not be told: {error}")
    return tuple(told)


def _put_back(run: Run, path: Path, original: State) -> str:
    now = state_of(run.host, path)
    if now.same(original):
        return ""
    back = restored(run.host, run.layout, run.journal, path, original)
    if back.content is None:
        if run.left:  # slurm.conf, which goes back first, may still ask for it
            raise StepError("it stays as long as another file may name it")
        run.host.remove(path)
        return f"{path} is gone again"
    kept = original if original.kind == "file" and not back.why else now
    run.host.write(path, back.content, mode=kept.mode, uid=kept.uid, gid=kept.gid)
    return f"{path} is as it was" + (f" ({back.why})" if back.why else "")
