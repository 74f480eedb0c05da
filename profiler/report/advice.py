"""From a page of shadows to the one line of the site file that turns on the stage with the best evidence. Pure.

`mode = "enforce"` turns on all stages at once, but for those that the site file holds back by a key of their own
(HOLDS). So the line is told with what else it would turn on, and with the keys that keep off what has no evidence for
it; where it would turn on what did harm and cannot be held back, there is no line.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from profiler.report.shadow import Shadow
from profiler.report.shadow_values import Stage
from site_configs.site_model import Mode, Partition, Site

__all__ = ["HOLDS", "Advice", "Hold", "advice"]

HOLDS: Final = {
    # A slowdown would not do: one that was measured of a workload goes before the site's
    "topology": ("locality", 'max_wait = "0 s"'),
    "sensitivity": ("policy", 'sensitivity = "off"'),
    "resubmission": ("resubmit", "enabled = false"),
}
"""Stages with a key of their own: table and line that keep it off where the mode is enforce."""
SMOKE: Final = "smoke"
"""The stage that does not hang on the mode: a key of its own turns it on."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A line that keeps a stage off, and why that is wise. `hits` enforce today, and lose the stage by it."""

    stage: str
    table: str
    line: str
    why: str
    hits: tuple[str, ...] = ()

    @property
    def everywhere(self) -> bool:
        """Whether it holds for the whole site."""
        return not self.table.startswith("partitions.")


@dataclass(frozen=True, slots=True)
class Advice:
    """What to write into the site file: `line` in `[table]`, or with `command`. `stage` None: nothing yet, and `why`.

    `first` are lines to be written before it, or stages come with it that have no evidence for them; `comes_with` are
    such stages that cannot be held back, and did no harm that is known. `keep` are the partitions and accounts that
    state a mode of their own, which the line does not change. `waits` says, stage by stage, for what evidence waits.
    """

    stage: str | None
    why: str
    table: str = ""
    line: str = ""
    command: str = ""
    first: tuple[Hold, ...] = ()
    comes_with: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def advice(page: Shadow, site: Site | None) -> Advice:
    """What the page speaks for. `site` None: it is taken to observe."""
    scope = "the site" if page.partition is None else f"partition {page.partition}"
    acts = [one for one in page.stages if one.jobs and one.name != SMOKE]
    good = [one for one in page.stages if one.verdict == "for"]
    waits = tuple(f"{one.name}: {one.why}" for one in page.stages if one.verdict == "open" and one.jobs)
    worst = next((one for one in acts if one.verdict == "against" and not _can_hold(one)), None)
    no = ""
    mode, rollout = _mode(page.partition, site)
    if mode == "enforce" and rollout == 100:
        no = f"{scope} enforces already: nothing is to be turned on"
    elif worst is not None:
        no = f"enforce would also turn on {worst.name}, which no key holds back, and of that: {worst.why}"
    if no:
        good = [one for one in good if one.name == SMOKE]
    if not good:
        none = "no stage has evidence for it yet" if acts else "nothing would have been changed yet"
        return Advice(None, no or none, waits=waits)
    best = max(good, key=lambda one: (one.sure, one.name))
    if best.name == SMOKE:
        return Advice(SMOKE, best.why, "smoke", next(iter(best.changes)), waits=waits)
    table = "policy" if page.partition is None else f"partitions.{_key(page.partition)}"
    option = "" if page.partition is None else f" --partition {shlex.quote(page.partition)}"
    return Advice(
        stage=best.name,
        why=best.why,
        table=table,
        line='mode = "enforce"' if mode != "enforce" else "rollout = 100",
        command=f"gsub admin mode enforce{option}" + (" --rollout 100" if mode == "enforce" else ""),
        first=_first(page, acts, site),
        comes_with=tuple(one.name for one in acts if one.verdict == "open" and not _can_hold(one)),
        keep=() if page.partition is not None or site is None else _keep(site),
        waits=waits,
    )


def _first(page: Shadow, acts: Sequence[Stage], site: Site | None) -> tuple[Hold, ...]:
    found = []
    for one in acts:
        if one.verdict == "for" or not _can_hold(one):
            continue
        where: list[str | None] = [None]
        if HOLDS[one.name][0] == "locality":
            # What states a mode of its own is not turned on, and needs no line
            own = [scope.name for scope in _own_waits(site) if scope.mode is None]
            where = [None, *own] if page.partition is None else [page.partition]
        found += [_hold(one, partition, site) for partition in where]
    return tuple(found)


def _hold(one: Stage, partition: str | None, site: Site | None) -> Hold:
    """In a partition's table, or (None) in the site's."""
    table, line = HOLDS[one.name]
    if partition is not None:
        table = f"partitions.{_key(partition)}.{table}"
        scopes = [(f"partition {partition}", _mode(partition, site)[0])]
    else:
        spared = [f"partition {scope.name}" for scope in _own_waits(site)] if table == "locality" else []
        stated = [] if site is None else [("the site", site.policy.mode), *_stated(site)]
        scopes = [(name, mode) for name, mode in stated if name not in spared]
    return Hold(one.name, table, line, one.why, tuple(name for name, mode in scopes if mode == "enforce"))


def _own_waits(site: Site | None) -> list[Partition]:
    """Those that wait for locality, and not as the site does."""
    if site is None:
        return []
    return [
        one for one in site.partitions.values() if one.locality.max_wait not in {0, site.locality.max_wait}
    ]


def _can_hold(one: Stage) -> bool:
    """Whether a key keeps it off. Segments of whole blocks are no wait, so that locality.max_wait does not."""
    return one.name in HOLDS and "segment_size" not in one.changes


def _mode(partition: str | None, site: Site | None) -> tuple[Mode, int]:
    """The mode that is in force, and for how many of the users in percent."""
    if site is None:
        return "observe", 100
    stated = site.partitions.get(partition) if partition is not None else None
    if stated is not None and stated.mode is not None:
        return stated.mode, stated.rollout
    return site.policy.mode, site.policy.rollout


def _keep(site: Site) -> tuple[str, ...]:
    return tuple(f"{name} ({mode})" for name, mode in _stated(site))


def _stated(site: Site) -> list[tuple[str, Mode]]:
    """What has a mode of its own."""
    scopes = [(f"partition {one.name}", one.mode) for one in site.partitions.values()]
    scopes += [(f"account {one.name}", one.mode) for one in site.accounts.values()]
    return [(name, mode) for name, mode in scopes if mode is not None]


def _key(name: str) -> str:
    """A name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)
