"""From a command line to a smoke job that is ready to be submitted, or to why there is none."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gsub.sbatch_release import sbatch_release
from gsub.smoke import dependency
from gsub.smoke.options import Wish, unasked, wish
from gsub.smoke.request import NoSmokeError, Real, cap_of, environment, first_task, real_job, words

if TYPE_CHECKING:
    from gsub.argv import CommandLine
    from gsub.smoke.passes import Pass
    from gsub.smoke.plan import Mode
    from gsub.smoke.submission import Order
    from site_configs.site_model import Site

__all__ = ["Ready", "prepare"]

_GPUS: Final = frozenset({
    "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "ntasks-per-gpu", "ntasks-per-tres",
    "tres-per-task",
})  # fmt: skip
_TWICE: Final = (
    'its script submits jobs, and would submit them twice (guard that line: [ -n "$GSUB_SMOKE" ] ||)'
)
_UNKNOWN: Final = (24, 11)  # a release to read options by, where sbatch does not tell its own


@dataclass(frozen=True, slots=True)
class Ready:
    """What there is to do about smoke for a submission.

    Parameters
    ----------
    way: how; may be another than was asked for, `note` says why. asked: by the user.
    order: the smoke job; None where there is none: `why` says so, or `passed` is an earlier one that counts.
    price: the line to show before anything is submitted. own: the real job's own dependency.
    """

    way: Mode
    asked: bool
    order: Order | None = None
    why: str = ""
    note: str = ""
    price: str = ""
    passed: Pass | None = None
    own: str = ""


def prepare(
    line: CommandLine, text: bytes, site: Site, environ: Mapping[str, str], folder: str
) -> Ready | None:
    """What is to be done; None for nothing, and nothing to say. Raises UserError for words that clash.

    Parameters
    ----------
    text: the batch script. folder: where Slurm's commands lie; empty for PATH.
    """
    wanted = wish(line, site.smoke)
    if wanted is None and any(setting.name == "--no-smoke" for setting in line.own):
        return None
    try:
        if wanted is not None and not site.smoke.enabled:
            raise NoSmokeError("this site has none (smoke.enabled)")
        if not text.strip():
            raise NoSmokeError("there is no script to try")
        if wanted is None and not _names_gpus(line, text, environ):
            return None
        real = real_job(line, text, environ, sbatch_release(environ, folder) or _UNKNOWN)
        if wanted is None and _is_managed(real, text, site):
            return None
        wanted = wanted or unasked(site.smoke, real.gpus, opted_out=_opted_out(real, environ))
        if wanted is None:
            return None
        return _ready(wanted, real, line, text, site=site, environ=environ, folder=folder)
    except NoSmokeError as error:
        return Ready(wanted.way, wanted.asked, why=str(error)) if wanted is not None else None


def _is_managed(real: Real, text: bytes, site: Site) -> bool:
    """Whether a program manages the job that is left to do so: what fails it hears of by the job itself."""
    from site_configs.clients_table import find_client, is_left_alone

    script = text.decode("utf-8", "replace")
    return is_left_alone(
        site.clients, find_client(site.clients, name=real.name, comment=real.comment, script=script)
    )


def _ready(
    wanted: Wish,
    real: Real,
    line: CommandLine,
    text: bytes,
    *,
    site: Site,
    environ: Mapping[str, str],
    folder: str,
) -> Ready:
    from gsub.preflight.look import submission
    from gsub.smoke import passes
    from gsub.smoke.child import named
    from gsub.smoke.footing import key_of
    from gsub.smoke.otherwise import submits
    from gsub.smoke.plan import Plan, PlanError, encoded
    from gsub.smoke.price import history_of, price_line, seconds_of
    from gsub.smoke.submission import Order, environment_folder, output_of
    from gsub.workload_name import identified

    own = real.options.get("dependency") or ""
    array = first_task(real.options.get("array") or "")
    if real.options.get("array") and not array:
        raise NoSmokeError("the numbers of its array cannot be read")
    nodes = 2 if site.smoke.two_nodes and real.nodes > 1 else 1
    looked = submission(line, text.decode("utf-8", "surrogateescape"), environ, slurm_folder=folder)
    key = key_of(looked, real, nodes=nodes)
    state = environment_folder(environ)
    passed = (
        passes.known(state, key) if state is not None and wanted.way != "only" and not wanted.learn else None
    )
    if passed is not None:
        return Ready(wanted.way, wanted.asked, passed=passed, own=own)
    way, note = _way(wanted.way, own, real)
    history = history_of(site, real.gpus)
    several = real.gpus > 1
    seconds = seconds_of(site, history, several=several, learn=wanted.learn, limit=real.seconds)
    output = output_of(state, real.folder)
    asks, cpus = words(
        real,
        site,
        seconds=seconds,
        nodes=nodes,
        waits=_waits(real, own, array.get("SLURM_ARRAY_TASK_ID", ""), environ),
        drop_after=None if "begin" in real.options or (own and way != "gate") else site.smoke.max_wait,
        output=output,
        cpus=cap_of(site, _partition(real)) if wanted.learn else 0,
    )
    plan = Plan(
        script=text,
        name=real.name if line.script is None else Path(line.script).name,
        args=line.args,
        cwd=real.folder,
        mode=way,
        seconds=seconds,
        gpus=nodes,
        gpus_of_real=real.gpus,
        nodes_of_real=real.nodes,
        outputs=tuple(name for one in ("output", "error") if (name := real.options.get(one))),
        array=array,
        key=key,
        workload=identified(line, text, environ).fingerprints,
        gpu_type=real.gpu_type,
        cluster=site.cluster,
        asked=wanted.asked,
        learn=wanted.learn,
        cpus=cpus,
        state=os.fspath(state) if state is not None else "",
    )
    if submits(named(plan)[1]):
        raise NoSmokeError(_TWICE)
    try:
        encoded(plan)
    except PlanError as error:
        raise NoSmokeError(str(error)) from None
    return Ready(
        way,
        wanted.asked,
        order=Order(asks, plan, environment(environ), own, output, folder),
        note=note,
        price=price_line(seconds, history, nodes=nodes, several=several, learn=wanted.learn),
        own=own,
    )


def _partition(real: Real) -> str:
    """Its partition, the first of several; without one where Slurm puts such jobs, or empty if it does not tell."""
    from gsub.client import connect
    from slurm_plugins.client.errors import SlurmError

    if stated := real.options.get("partition"):
        return stated.split(",")[0]
    try:
        return next((one.name for one in connect().partitions() if one.is_default), "")
    except SlurmError:
        return ""


def _way(way: Mode, own: str, real: Real) -> tuple[Mode, str]:
    if way == "gate" and not dependency.can_be_gated(own):
        return "race", "race, not gate: a dependency with '?' takes no second one"
    if way == "gate" and "begin" in real.options:
        return "race", "race, not gate: a gate with --begin would have no end of its own"
    if way == "gate" and own:
        return (
            way,
            "the gate's time counts from now: if your own dependency takes longer, there is no smoke run",
        )
    return way, ""


def _waits(real: Real, own: str, task: str, environ: Mapping[str, str]) -> str:
    """What the smoke job depends on. Raises NoSmokeError."""
    namesakes: list[int] = []
    if dependency.waits_for_its_name(own):
        from gsub.client import connect
        from slurm_plugins.client.errors import SlurmError

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
            namesakes = [
                job.id for job in connect().jobs(user=user) if job.name == real.name and not job.ended
            ]
        except (SlurmError, KeyError):
            raise NoSmokeError("Slurm does not tell which jobs of that name it waits for") from None
    found = dependency.for_smoke(own, task, sorted(set(namesakes)))
    if found is None:
        raise NoSmokeError("its dependency cannot be another job's")
    return found


def _names_gpus(line: CommandLine, text: bytes, environ: Mapping[str, str]) -> bool:
    """Whether an option can ask for GPUs: cheap, since all submissions of a site may be looked at."""
    from gsub.sbatch_options import Table
    from gsub.script import request

    asked = request(line, text.decode(errors="replace"), environ, Table.of_all())
    return any(_GPUS & {option.name for option in component} for component in asked.components)


def _opted_out(real: Real, environ: Mapping[str, str]) -> bool:
    import re

    return environ.get("GSUB", "").strip().lower() == "off" or "gsub:off" in re.split(
        r"[\s,;]+", real.comment.lower()
    )
