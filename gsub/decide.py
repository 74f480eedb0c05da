"""The questions that the shim in slurmctld would ask about a submission, made here.

A question holds what sbatch makes of options, #SBATCH lines and environment (`gsub.job_desc`, `gsub.job_env`), and
what slurmctld adds to it before its plugins see it. Tests hold the two equal on each release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gsub.argv import CommandLine
from gsub.errors import USAGE, UserError
from gsub.here import here
from gsub.hetjob import spread
from gsub.job_desc import WAIT, JobDesc, job_desc
from gsub.job_env import effective, job_environment
from gsub.notations import NotationError
from gsub.sbatch_options import Table
from gsub.script import Asked, foreign, request
from gsub.workload_name import head
from slurm_plugins.decide.request import HEAD_BYTES, Job, Request
from slurm_plugins.decide.steps import ENV_NAMES

__all__ = ["WISHES", "Component", "components", "wants_gpu"]

WISHES: Final = frozenset({
    "GSUB", "GSUB_DECISION", "GSUB_REPACK", "GSUB_RESTART", "GSUB_RETUNE", "GSUB_RUN_TIME",
    "GSUB_SENSITIVITY", "GSUB_SMOKE", "GSUB_WORKLOAD",
})  # fmt: skip
"""Our own variables that the shim reads; ENV_NAMES are Slurm's."""
TEXT_BYTES: Final = 4096
"""The longest text of a field that travels whole."""
VARIABLE_BYTES: Final = 1024
"""The longest variable."""
_WAIT: Final = "SBATCH_WAIT4SWITCH"
_FIELDS: Final = frozenset(Job.__struct_fields__)


@dataclass(frozen=True, slots=True)
class Component:
    """A component of a submission, most have one: the options in effect, and the question about it."""

    options: tuple[Asked, ...]
    request: Request


def components(
    line: CommandLine,
    script: bytes,
    environ: Mapping[str, str],
    release: tuple[int, int],
    *,
    uid: int,
    account: str | None = None,
) -> tuple[Component, ...]:
    """The questions about a submission, one for each component of a heterogeneous job.

    Parameters
    ----------
    script: its text, also for `--wrap` and standard input.
    environ: the variables that sbatch would find.
    release: of Slurm, (major, minor).
    account: the user's default account; None where there is no accounting.

    Raises UserError (exit 2) for what sbatch would not submit.
    """
    table = Table.of_release(f"{release[0]:02d}.{release[1]:02d}")
    text = script.decode(errors="replace")
    asked = request(line, text, environ, table)
    parts = spread(asked.components)
    _known(parts, table)
    if (theirs := foreign(text)) and all(option.name != "ignore-pbs" for option in parts[0]):
        raise UserError(
            "this submission cannot be explained",
            why=f"PBS and LSF options are not read here: {theirs}",
            fix="write them as #SBATCH, or have sbatch leave them out with --ignore-pbs",
            exit_code=USAGE,
        )
    descs = [_desc(options, environ, release) for options in parts]
    _apart(descs)
    found = []
    for number, (options, desc) in enumerate(zip(parts, descs, strict=True)):
        named = [option.value for option in options if option.name == "job-name"]
        fields: dict[str, Any] = {
            **desc.fields,
            "name": named[-1] if named else asked.job_name,
            "work_dir": _folder(options),
            "default_account": account,
            "het_job_offset": number if len(parts) > 1 else None,
        }
        cut: list[str] = []
        job = Job(**_clipped({k: v for k, v in fields.items() if k in _FIELDS}, TEXT_BYTES, cut, ""))
        if number:
            one = Request(id=number + 1, uid=uid, submit_uid=uid, job=job, batch=False, cut=tuple(cut))
        else:
            # The first component brings script and environment; of several, each one's variables carry its number.
            env = job_environment(options, environ, {} if len(parts) > 1 else desc.env)
            sent = {name: env[name] for name in sorted((ENV_NAMES | WISHES) & env.keys())}
            sent = _clipped(sent, VARIABLE_BYTES, cut, "env.")
            one = Request(
                id=1,
                uid=uid,
                submit_uid=uid,
                job=job,
                env=sent,
                script_head=head(script, HEAD_BYTES),
                script_bytes=len(script),
                cut=tuple(cut),
            )
        found.append(Component(tuple(options), one))
    return tuple(found)


def _clipped(values: Mapping[str, Any], limit: int, cut: list[str], prefix: str) -> dict[str, Any]:
    """The texts as they travel: UTF-8 of so many bytes at most. Names of those cut short go into `cut`."""
    found = {}
    for name, value in values.items():
        if isinstance(value, str):
            data = value.encode("utf-8", "surrogateescape")
            if len(data) > limit:
                cut.append(prefix + name)
            value = head(data, limit)  # noqa: PLW2901 - the value as it travels
        found[name] = value
    return found


def _known(parts: Sequence[Sequence[Asked]], table: Table) -> None:
    """Refuse an option of another release."""
    every = Table.of_all()
    for option in (option for options in parts for option in options):
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
        raise UserError("this submission cannot be explained", why=str(error), exit_code=USAGE) from None


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
    return chosen[-1] if chosen else here()
