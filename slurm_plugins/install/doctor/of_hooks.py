"""Checks of Prolog, Epilog and TaskProlog: what Slurm runs on a node, and drains it for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_plugins.install.doctor.check import (
    HOSTS,
    NODE,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.rights import real, weakness
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.layout import HOOKS, part

__all__ = ["CHECKS"]

_MARK: Final = "GSUB_HOOK=1"
"""Stands in what gsub's prolog and epilog write, whatever the release."""
_PATTERN: Final = re.compile(r"[*?\[]")
_PLACES: Final = re.compile(r"\b(SPOOL|RUN|OFF)=\S*")
"""The folders in the line of a hook that begins with them; they differ by installation."""


def _named(sight: Sight, key: str) -> tuple[str, ...]:
    """What Slurm's configuration names: paths and patterns. While slurmctld is silent, what slurm.conf says."""
    try:
        return sight.config.values(key)
    except UnseenError:
        if sight.conf is None:
            raise
        return sight.conf.values(key)


def _scripts(sight: Sight, value: str) -> tuple[Path, ...]:
    """The files that a value of Prolog or Epilog stands for on this host, in the order in which Slurm runs them."""
    if not value.startswith("/"):
        return ()  # handed out by slurmctld, and the site's
    path = Path(value)
    if not _PATTERN.search(value):
        return (path,)
    names = fnmatch.filter(sight.host.names(path.parent), path.name)
    return tuple(path.parent / name for name in sorted(names, reverse=True) if not name.startswith("."))


def _ours(sight: Sight, key: str, script: Path) -> bool:
    """Whether a script is gsub's hook: itself, a link to it, or a copy under a name that a pattern fits."""
    hook = sight.layout.libexec / HOOKS[key]
    if hook in (script, _straight(real(sight.host, script))):
        return True
    try:
        return _MARK in (sight.text(script) or "")
    except UnseenError:
        return False


def _straight(path: Path) -> Path:
    """Without its `..`, as a link from prolog.d has one."""
    parts: list[str] = []
    for step in path.parts:
        if step == "..":
            parts.pop()
        else:
            parts.append(step)
    return Path(*parts)


def _called(sight: Sight) -> Iterator[Said]:
    if not sight.has_hooks:
        yield warning("gsub's hooks are not installed: no job is recorded", "gsub admin install --plan")
        return
    for key in ("Prolog", "Epilog"):
        values = _named(sight, key)
        if any(_names_ours(sight, key, value) for value in values):
            yield ok(f"{key}={', '.join(values)} runs gsub's")
        elif "node" not in sight.roles and any(_PATTERN.search(value) for value in values):
            yield unknown(f"whether {key}={', '.join(values)} runs gsub's is seen on a node")
        else:
            told = f"{key}={', '.join(values)} does" if values else f"{key} is not set: Slurm does"
            told = f"{told} not run gsub's hook, which is in {sight.layout.libexec}"
            # A package brings the hooks before anybody has Slurm run them; the shim comes with that.
            yield error(told) if sight.has_shim else warning(told)
    task = _named(sight, "TaskProlog")
    if not task:
        yield ok("TaskProlog is not set: jobs are not told how often they were requeued")
    elif Path(task[0]) == sight.layout.libexec / HOOKS["TaskProlog"]:
        yield ok("TaskProlog is gsub's")
    else:
        yield ok(f"TaskProlog={task[0]} is the site's; it stays, and gsub's is left out")


def _names_ours(sight: Sight, key: str, value: str) -> bool:
    scripts = _scripts(sight, value)
    return any(_ours(sight, key, script) for script in scripts)


def _runnable(sight: Sight) -> Iterator[Said]:
    host = sight.host
    fine = 0
    for key in ("Prolog", "Epilog", "TaskProlog"):
        for value in _named(sight, key):
            if not value.startswith("/"):
                yield ok(f"{key}={value} is handed out by slurmctld")
                continue
            scripts = _scripts(sight, value)
            if not scripts:
                yield error(f"{key}={value} names no file on this node", _remedy(key, value))
            for script in scripts:
                stat = host.stat(real(host, script))
                if stat is None:
                    yield error(
                        f"{key}: {script} is not there: the next job drains the node",
                        _remedy(key, value),
                    )
                elif stat.kind != "file":
                    yield error(f"{key}: {script} is no file", _remedy(key, value))
                elif not stat.mode & 0o111 or (key == "TaskProlog" and not stat.mode & 0o001):
                    yield error(
                        f"{key}: {script} is not executable (mode {stat.mode:04o}): the next job drains the node",
                        f"chmod 0755 {script}",
                    )
                elif why := weakness(host, script):
                    yield error(
                        f"{key}: {why}: root runs {script}", "chown root:root and chmod go-w what is named"
                    )
                else:
                    fine += 1
    if fine:
        yield ok(f"{fine} scripts are there and can be run")


def _remedy(key: str, value: str) -> str:
    return f"put it back (gsub's by gsub admin install --role node), or take {key}={value} out of slurm.conf first"


def _whole(sight: Sight) -> Iterator[Said]:
    missing: list[Path] = []
    other: list[Path] = []
    for key, name in HOOKS.items():
        own = sight.layout.libexec / name
        beside = [
            script
            for value in _named(sight, key)
            for script in _scripts(sight, value)
            if script != own and key != "TaskProlog" and _ours(sight, key, script)
        ]
        for path in (own, *beside):
            found = sight.host.read(path)
            if found is None:
                missing.append(path)
            elif _general(found) != _general(part("prolog_epilog", name)):
                other.append(path)
    if len(missing) == len(HOOKS) and not other:
        return
    if missing:
        yield error(f"missing: {', '.join(map(str, missing))}", "gsub admin install --role node")
    if other:
        yield warning(f"not as this gsub has them: {', '.join(map(str, other))}")
    if not missing and not other:
        yield ok(f"{len(HOOKS)} hooks, whole, of this gsub")


def _general(hook: bytes) -> str:
    """A hook without the folders of its installation."""
    lines = hook.decode(errors="replace").splitlines(keepends=True)
    return "".join(_PLACES.sub(r"\1", line) if line.startswith("SPOOL=") else line for line in lines)


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "hooks-called",
        "hooks",
        "Slurm's Prolog and Epilog run gsub's hooks, alone or beside the site's own.",
        "gsub admin install --plan, then gsub admin install",
        _called,
        HOSTS,
    ),
    Check(
        "hooks-run",
        "hooks",
        "Each script that Prolog, Epilog and TaskProlog name is on this node, can be run, and only root can change it. "
        "A Prolog or Epilog that cannot be run drains the node.",
        "put the script back, or take its line out of slurm.conf, before the next job starts here",
        _runnable,
        NODE,
    ),
    Check(
        "hook-files",
        "hooks",
        "gsub's hooks are whole, and those of this gsub.",
        "gsub admin upgrade --plan, then gsub admin upgrade",
        _whole,
        HOSTS,
    ),
)
