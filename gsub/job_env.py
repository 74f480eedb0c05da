"""The environment that sbatch sends along with a job: what `--export` lets through, and what sbatch adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gsub.script import Asked

__all__ = ["effective", "job_environment"]

_MEMORY: Final = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"})
_SHARING: Final = frozenset({"exclusive", "oversubscribe"})


def effective(options: Sequence[Asked]) -> dict[str, str | None]:
    """The options that count, by name, in the order in which they were set.

    Amounts of memory exclude each other, and so do the ways to share a node: memory typed in the script or on the
    command line sets aside that of the environment, of the ways to share the later one stands.
    """
    aside: set[str] = set()
    of_environment = {option.name for option in options if option.from_environment}
    if any(option.name in _MEMORY - of_environment for option in options):
        aside.update(of_environment & _MEMORY)
    sharing = [option.name for option in options if option.name in _SHARING]
    if of_environment.intersection(sharing):
        aside.update(sharing[:-1])
    return {option.name: option.value for option in options if option.name not in aside}


def job_environment(
    options: Sequence[Asked], environ: Mapping[str, str], added: Mapping[str, str]
) -> dict[str, str]:
    """The variables of the job's batch script.

    SLURM_* variables travel whatever `--export` says (sbatch(1)); `added` are those that sbatch writes itself.
    """
    asked = {option.name: option.value for option in options}
    export = asked.get("export")
    words = export.split(",") if export else []
    if not words or words[0].upper() == "ALL":
        sent = dict(environ)
    else:
        named = {word for word in words if "=" not in word}
        sent = {
            name: value
            for name, value in environ.items()
            if name.startswith(("SLURM_", "SPANK_")) or name in named
        }
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            sent[name] = value
    return {**sent, **added}
