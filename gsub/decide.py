"""What gsub would decide about a submission: the questions that the shim in slurmctld would ask, put here.

A question holds what sbatch makes of options, #SBATCH lines and environment (`gsub.job_desc`). It is answered by the
code that gsubd runs, over the cluster as it is now.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gsub.argv import CommandLine
from gsub.errors import USAGE, UserError
from gsub.hetjob import spread
from gsub.job_desc import WAIT, JobDesc, job_desc
from gsub.job_env import effective, job_environment
from gsub.notations import NotationError
from gsub.sbatch_options import Table
from gsub.script import Asked, request
from gsub.site import read_site
from site_configs.site_model import Site
from slurm_plugins.decide.context import Context
from slurm_plugins.decide.decision import Decision
from slurm_plugins.decide.pipeline import decide
from slurm_plugins.decide.request import HEAD_BYTES, Job, Request
from slurm_plugins.decide.steps import ENV_NAMES

if TYPE_CHECKING:
    from slurm_plugins.service.look import Slurm

__all__ = ["Explanation", "Part", "explain_submission", "look", "requests", "wants_gpu", "wrapped"]

UNMADE: Final = "d-0000000000000000"
"""The id of a decision that is not made, only explained."""
TEXT_BYTES: Final = 4096
"""The longest text of a field that travels whole."""
_WAIT: Final = "SBATCH_WAIT4SWITCH"
_FIELDS: Final = frozenset(Job.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Part:
    """One component: what would be asked, and the answer; None where the shim would not ask."""

    request: Request
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would become of a submission.

    `problems` are for the site's people: a topology that cannot be read, a site's stage that cannot be used.
    """

    line: CommandLine
    script: str
    parts: tuple[Part, ...]
    context: Context
    site_file: str = ""
    problems: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """It can never run."""
        return any(part.decision is not None and part.decision.reject is not None for part in self.parts)


def explain_submission(line: CommandLine, environ: dict[str, str]) -> Explanation:
    """Decide about a submission as gsubd would, and change nothing.

    Raises UserError where sbatch would not submit it, the site file cannot be used or Slurm does not answer.
    """
    from gsub.commands.dry_run import script_bytes
    from site_configs.site import find_site
    from slurm_plugins.decide.plugins import all_stages
    from slurm_plugins.service.look import Slurm, slurm_environment

    site = read_site(environ)
    slurm = Slurm.here(slurm_environment(environ, site or Site(cluster="")))
    script = wrapped(line.wrap) if line.wrap is not None else script_bytes(line)
    context, problems = look(slurm, site)
    stages, wrong = all_stages()
    asked = requests(line, script, environ, context.slurm.release, uid=os.getuid())
    parts = tuple(
        Part(one, decide(one, context, decision_id=UNMADE, stages=stages) if wants_gpu(one.job) else None)
        for one in asked
    )
    name = line.script or ("--wrap" if line.wrap is not None else "standard input")
    return Explanation(line, name, parts, context, str(find_site(environ) or ""), (*problems, *wrong))


def look(slurm: Slurm, site: Site | None) -> tuple[Context, tuple[str, ...]]:
    """The cluster as it is now, and what was wrong with it. Raises UserError when Slurm does not answer."""
    from slurm_plugins.service.look import look as looked
    from slurm_plugins.service.wire import Question

    known = site or Site(cluster="")
    report = looked(slurm, known, Question(site="", site_path=""))
    if report.inventory is None:
        raise UserError(
            "the cluster could not be looked at",
            why=report.error,
            fix="try again in a few minutes; 'scontrol ping' tells when it answers",
        )
    problems = (f"{report.trouble}; the network is taken as flat",) if report.trouble else ()
    return Context(known, report.inventory, report.facts), problems


def wrapped(command: str) -> bytes:
    """The script that sbatch makes of `--wrap`."""
    text = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"
    return text.encode("utf-8", "surrogateescape")


def requests(
    line: CommandLine,
    script: bytes,
    environ: Mapping[str, str],
    release: tuple[int, int],
    *,
    uid: int,
) -> tuple[Request, ...]:
    """The questions about a submission, one for each component of a heterogeneous job.

    Parameters
    ----------
    script: its text, also for `--wrap` and standard input.
    environ: the variables that sbatch would find.
    release: of Slurm, (major, minor).

    Raises UserError (exit 2) for what sbatch would not submit.
    """
    table = Table.of_release(f"{release[0]:02d}.{release[1]:02d}")
    asked = request(line, script.decode(errors="replace"), environ, table)
    components = spread(asked.components)
    _known(components, table)
    several = len(components) > 1
    descs = [_desc(options, environ, release) for options in components]
    _apart(descs)
    found = []
    for number, (options, desc) in enumerate(zip(components, descs, strict=True)):
        named = [option.value for option in options if option.name == "job-name"]
        name = asked.job_name if not named else named[-1]
        fields: dict[str, Any] = {**desc.fields, "name": name, "work_dir": _folder(options)}
        if several:
            fields["het_job_offset"] = number
        job = Job(**{name: value for name, value in fields.items() if name in _FIELDS})
        if number:
            # the first component brings script and environment
            found.append(Request(id=number + 1, uid=uid, submit_uid=uid, job=job, batch=False))
            continue
        # sbatch's own variables carry each component's number there
        env = job_environment(options, environ, {} if several else desc.env)
        found.append(
            Request(
                id=number + 1,
                uid=uid,
                submit_uid=uid,
                job=job,
                env={name: env[name] for name in sorted(ENV_NAMES & env.keys())},
                script_head=_head(script),
                script_bytes=len(script),
            )
        )
    return tuple(found)


def _known(components: Sequence[Sequence[Asked]], table: Table) -> None:
    """Refuse an option of another release."""
    every = Table.of_all()
    for option in (option for options in components for option in options):
        if option.name in every.long and option.name not in table.long:
            raise UserError(
                f"no such option: --{option.name}",
                fix="'sbatch --help' lists the options of this Slurm, 'gsub --help' ours",
                exit_code=USAGE,
            )


def _desc(options: Sequence[Asked], environ: Mapping[str, str], release: tuple[int, int]) -> JobDesc:
    found = effective(options)
    if _WAIT in environ:
        found[WAIT] = environ[_WAIT]
    try:
        return job_desc(found, release)
    except NotationError as error:
        raise UserError(
            "this cannot be explained, since sbatch would not submit it", why=str(error), exit_code=USAGE
        ) from None


def _apart(descs: Sequence[JobDesc]) -> None:
    """Components do not share nodes: what one names, the others exclude."""
    named = [str(desc.fields.get("req_nodes", "")) for desc in descs]
    for number, desc in enumerate(descs):
        others = [nodes for other, nodes in enumerate(named) if nodes and other != number]
        if others:
            own = [str(desc.fields["exc_nodes"])] if "exc_nodes" in desc.fields else []
            desc.fields["exc_nodes"] = ",".join(own + others)


def wants_gpu(job: Job) -> bool:
    """Whether the shim asks about a job at all."""
    lists = (job.tres_per_job, job.tres_per_node, job.tres_per_socket, job.tres_per_task)
    return job.ntasks_per_tres is not None or any(_names_gpu(text) for text in lists if text)


def _names_gpu(text: str) -> bool:
    for item in text.split(","):
        name = item.strip().removeprefix("gres:").removeprefix("gres/")
        if name.replace("=", ":").partition(":")[0] == "gpu":
            return True
    return False


def _folder(options: Sequence[Asked]) -> str:
    chosen = [option.value for option in options if option.name == "chdir" and option.value]
    return chosen[-1] if chosen else os.getcwd()  # noqa: PTH109 - what sbatch sends


def _head(script: bytes) -> str:
    return script[:HEAD_BYTES].decode(errors="replace")
