"""The environment that sbatch sends along with a job: what `--export` lets through, and what sbatch adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gsub.script import Asked

__all__ = ["job_environment"]


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
