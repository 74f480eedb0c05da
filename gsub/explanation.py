"""What gsub would decide about a submission: the code that gsubd runs, over the cluster as it is now."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gsub import remedies
from gsub.argv import CommandLine
from gsub.decide import Component, components, wants_gpu
from gsub.errors import USAGE, UserError
from gsub.known import known_of
from gsub.script import Asked
from gsub.script_text import needed
from gsub.site import usable_site
from gsub.workload_name import identified, with_workload
from profiler.workload import Identity
from site_configs.site_model import Site
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.runner import Runner, check
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.plugins import all_stages
from slurm_plugins.decide.request import Request
from slurm_plugins.decide.stage import Stage
from slurm_plugins.service.look import Slurm, slurm_environment
from slurm_plugins.service.look import look as look_at
from slurm_plugins.service.wire import Question

__all__ = ["Explanation", "Part", "decided", "explain_submission"]

_UNMADE = "d-0000000000000000"
"""The id of a decision that is not made, only explained."""
_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Part:
    """One component: the options in effect, what would be asked, and the answer; None where the shim would not ask."""

    options: tuple[Asked, ...]
    request: Request
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would become of a submission.

    `problems` are for the site's people: a topology that cannot be read, a site's stage that cannot be used.
    `workload` is what it is known as, for what was measured of it.
    """

    line: CommandLine
    script: str
    parts: tuple[Part, ...]
    context: Context
    site_file: str = ""
    problems: tuple[str, ...] = ()
    workload: Identity | None = None

    @property
    def refused(self) -> bool:
        """It can never run."""
        return any(part.decision is not None and part.decision.reject is not None for part in self.parts)


def explain_submission(line: CommandLine, environ: Mapping[str, str]) -> Explanation:
    """Decide about a submission as gsubd would, and change nothing.

    Raises UserError where sbatch would not submit it or Slurm does not answer. A site file that cannot be used is as
    none.
    """
    from site_configs.site import find_site

    site = usable_site(environ)
    known_site = site or Site(cluster="")
    slurm_env = slurm_environment(environ, known_site)
    script = _script(line)
    context, problems = _look(Slurm.here(slurm_env, known_site), known_site)
    known, unheard = known_of(context.site, os.getuid())
    context = replace(context, knowledge=known)
    workload = identified(line, script, environ)
    environ = with_workload(line, script, environ)
    account, unknown = _default_account(slurm_env, context.site)
    stages, wrong = all_stages()
    found = components(line, script, environ, context.slurm.release, uid=os.getuid(), account=account)
    return Explanation(
        line,
        line.script or ("--wrap" if line.wrap is not None else "standard input"),
        decided(found, context, stages),
        context,
        str(find_site(environ)) if site is not None else "",
        (*problems, *unheard, *unknown, *wrong),
        workload,
    )


def decided(
    found: Iterable[Component], context: Context, stages: Sequence[Stage] | None = None
) -> tuple[Part, ...]:
    """Each component with its decision."""
    return tuple(
        Part(
            one.options,
            one.request,
            decide(one.request, context, decision_id=_UNMADE, stages=stages)
            if wants_gpu(one.request.job)
            else None,
        )
        for one in found
    )


def _script(line: CommandLine) -> bytes:
    if line.given("clusters"):
        raise UserError("only jobs of this cluster can be explained", fix="leave -M out", exit_code=USAGE)
    text = needed(line, "explain")
    if line.wrap is None:
        _sound(text)
    return text


# What sbatch does not take as a script, and what it says then, which `remedies` knows.
_UNSOUND: Final[tuple[tuple[Callable[[bytes], bool], str], ...]] = (
    (lambda text: not text.strip(), "Batch script contains only whitespace"),
    (lambda text: not text.startswith(b"#!"), "This does not look like a batch script"),
    (lambda text: b"\0" in text, "NULL character"),
    (lambda text: b"\r\n" in text, "DOS line breaks"),
)


def _sound(script: bytes) -> None:
    """Refuse a script that sbatch would refuse before it asks anybody."""
    for is_so, said in _UNSOUND:
        if is_so(script):
            error = remedies.explain(f"sbatch: error: {said}")
            raise UserError(error.what, fix=error.fix, exit_code=USAGE)


def _look(slurm: Slurm, site: Site) -> tuple[Context, tuple[str, ...]]:
    """The cluster as it is now, and what was wrong with it. Raises UserError when Slurm does not answer."""
    report = look_at(slurm, site, Question(site="", site_path="", limits=True))
    if report.inventory is None:
        raise UserError(
            "the cluster could not be looked at",
            why=report.error,
            fix="try again in a few minutes; 'scontrol ping' tells when it answers",
        )
    problems = [f"{report.trouble}; the network is taken as flat"] if report.trouble else []
    if lost := report.unread.get("node", 0) + report.unread.get("partition", 0):
        problems.append(f"{lost} of Slurm's nodes and partitions could not be read: more may be there")
    if report.limits_error:
        problems.append(f"the limits of accounting could not be read: {report.limits_error}")
    context = Context(site, report.inventory, report.facts, associations=report.associations)
    return context, tuple(problems)


def _default_account(env: Mapping[str, str], site: Site) -> tuple[str | None, tuple[str, ...]]:
    """The user's account where a job names none; asked for only where the site treats accounts in their own ways."""
    if not site.accounts:
        return None, ()
    user = pwd.getpwuid(os.getuid()).pw_name
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=DefaultAccount"]
    try:
        lines = check(Runner(env, timeout=_SECONDS).read(command, daemon="slurmdbd")).stdout.split()
    except SlurmError as error:
        return None, (f"your default account is not known, the mode may be another: {error}",)
    return (lines[0] if lines else None), ()
