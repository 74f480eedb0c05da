"""The environment that sbatch sends along with a job: what `--export` lets through, and what sbatch adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gsub.script import Asked

__all__ = ["effective", "job_environment"]

# Options of which one counts
_ONE_OF: Final = (
    frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    frozenset({"exclusive", "oversubscribe"}),
)


def effective(options: Sequence[Asked]) -> dict[str, str | None]:
    """The options that count, by name, in the order in which they were set.

    Of options that exclude each other, those typed in the script or on the command line set aside those of the
    environment.
    """
    typed = {option.name for option in options if not option.from_environment}
    aside = {name for group in _ONE_OF if group & typed for name in group - typed}
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
