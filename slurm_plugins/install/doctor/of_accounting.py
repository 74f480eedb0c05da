"""Checks of Slurm's accounting, which remembers what slurmctld has forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slurm_plugins.install.doctor.check import CONTROLLER, Check, Said, error, ok, unknown, warning
from slurm_plugins.install.doctor.sight import Sight

__all__ = ["CHECKS"]


def _stored(sight: Sight) -> bool:
    return sight.config.value("AccountingStorageType").removeprefix("accounting_storage/") == "slurmdbd"


def _slurmdbd(sight: Sight) -> Iterator[Said]:
    if not _stored(sight):
        yield warning(
            "there is no accounting: what became of a job is known for MinJobAge only, and limits are not enforced"
        )
        return
    ran = sight.slurm("sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster")
    if ran.code is None and "not on this machine" in ran.why:
        yield unknown("sacctmgr is not on this host: whether slurmdbd answers is not known")
    elif not ran.ok:
        yield error(f"slurmdbd does not answer: {ran.trouble}", "systemctl status slurmdbd on its host")
    else:
        name = sight.config.value("ClusterName")
        if name.lower() not in {line.strip().lower() for line in ran.out.splitlines()}:
            yield error(
                f"slurmdbd does not know the cluster {name}", f"sacctmgr --immediate add cluster {name}"
            )
        else:
            yield ok("slurmdbd answers, and knows this cluster")


def _tres(sight: Sight) -> Iterator[Said]:
    if not _stored(sight):
        return
    tracked = {word.lower() for word in sight.config.words("AccountingStorageTRES")}
    if any(word.startswith("gres/gpu") for word in tracked):
        yield ok("GPUs are counted")
    else:
        yield warning("AccountingStorageTRES has no gres/gpu: Slurm does not write down who held GPUs")


_WANTED: Final = {
    "job_comment": "what users wrote into --comment",
    "job_script": "the script, from which a job can be submitted again",
    "job_env": "the environment, without which the script may not do the same",
}


def _flags(sight: Sight) -> Iterator[Said]:
    if not _stored(sight):
        return
    missing = [flag for flag in _WANTED if not sight.config.has("AccountingStoreFlags", flag)]
    if missing:
        yield warning(
            f"not kept in accounting: {'; '.join(f'{_WANTED[flag]} ({flag})' for flag in missing)}",
            f"AccountingStoreFlags={','.join(_WANTED)} in slurm.conf, then scontrol reconfigure",
        )
    else:
        yield ok("comments, scripts and environments of jobs are kept")


def _enforce(sight: Sight) -> Iterator[Said]:
    if not _stored(sight):
        return
    enforced = sight.config.words("AccountingStorageEnforce")
    if not enforced or "none" in {word.lower() for word in enforced}:
        yield ok("no limits are enforced (AccountingStorageEnforce)")
    else:
        yield ok(f"enforced: {', '.join(enforced)}; gsub raises nothing above them")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "slurmdbd",
        "accounting",
        "Slurm has accounting, slurmdbd answers, and it knows this cluster. Without it a job's end is known only as "
        "long as slurmctld remembers it.",
        "AccountingStorageType=accounting_storage/slurmdbd in slurm.conf; see Slurm's accounting guide",
        _slurmdbd,
        CONTROLLER,
    ),
    Check(
        "accounting-gpus",
        "accounting",
        "`AccountingStorageTRES` has gres/gpu, so that Slurm writes down who held GPUs, and can limit them.",
        "AccountingStorageTRES=gres/gpu in slurm.conf (beside what is there), then restart slurmctld",
        _tres,
        CONTROLLER,
    ),
    Check(
        "accounting-flags",
        "accounting",
        "`AccountingStoreFlags` keeps scripts, environments and comments: what a job is submitted again from.",
        "AccountingStoreFlags=job_comment,job_script,job_env in slurm.conf, then scontrol reconfigure",
        _flags,
        CONTROLLER,
    ),
    Check(
        "accounting-limits",
        "accounting",
        "What `AccountingStorageEnforce` enforces; told, never wrong.",
        "nothing is to be done",
        _enforce,
        CONTROLLER,
    ),
)
