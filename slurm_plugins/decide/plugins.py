"""The stages of a site: whatever is installed beside gsub under the entry point group ``gsub.stages``.

They run after gsub's own and before `limits`, in the order of their names. One that cannot be used is left out and
reported: a site's mistake costs its own stage, never the service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from slurm_plugins.decide.stage import Stage

__all__ = ["GROUP", "all_stages", "load", "ordered"]

GROUP: Final = "gsub.stages"
_LAST: Final = "limits"  # what it refuses, it refuses with all changes made
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


def all_stages() -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """gsub's stages and the site's, in the order in which they run, and what was wrong with any of the site's."""
    from slurm_plugins.decide.stages import STAGES

    theirs, problems = load(taken=[stage.name for stage in STAGES])
    return ordered(STAGES, theirs), problems


def ordered(own: Sequence[Stage], theirs: Iterable[Stage]) -> tuple[Stage, ...]:
    """Where the site's stages go among gsub's."""
    last = tuple(stage for stage in own if stage.name == _LAST)
    return (*(stage for stage in own if stage.name != _LAST), *theirs, *last)


def load(
    taken: Iterable[str] = (), found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """The site's stages by name, and a line for each that cannot be used.

    Parameters
    ----------
    taken: names that are not free: gsub's own.
    found: None for what is installed.
    """
    names = set(taken)
    stages: list[Stage] = []
    problems: list[str] = []
    if found is None:
        found = entry_points(group=GROUP)
    for point in sorted(found, key=lambda point: (point.name, point.value)):
        try:
            stage = _made(point)
        # An import may raise anything, and may say sys.exit().
        except (Exception, SystemExit) as error:
            problems.append(_problem(point, f"{type(error).__name__}: {error}"))
            continue
        if stage.name in names:
            problems.append(_problem(point, f"there is another stage called {stage.name}: name it otherwise"))
            continue
        names.add(stage.name)
        stages.append(stage)
    return tuple(sorted(stages, key=lambda stage: stage.name)), tuple(problems)


def _made(point: EntryPoint) -> Stage:
    """A stage of the class that an entry point names. Raises whatever the import does, TypeError for no stage."""
    named = point.load()
    if not (isinstance(named, type) and issubclass(named, Stage)):
        raise TypeError("want a class derived from slurm_plugins.decide.stage.Stage")
    if not _NAME.fullmatch(getattr(named, "name", "")):
        raise TypeError("want name = a word of small letters, digits and _ in the class")
    return named()  # an abstract one raises TypeError here


def _problem(point: EntryPoint, why: str) -> str:
    text = f"stage {point.name} ({point.value}) is left out: {why}"
    return "".join(char if char.isprintable() else " " for char in text)[:400]
