"""Checks of Slurm itself: its release, its daemons, what they and slurm.conf agree on."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.versions import NEWEST, OLDEST, Version
from slurm_plugins.install.doctor.check import (
    ANYWHERE,
    CONTROLLER,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.sight import COMMAND_SECONDS, Sight
from slurm_plugins.install.doctor.words import some
from slurm_plugins.install.slurm_conf import BEGIN, END

__all__ = ["CHECKS"]

_ORDER: Final = (
    *((20, 2), (20, 11), (21, 8), (22, 5), (23, 2), (23, 11)),
    *((24, 5), (24, 11), (25, 5), (25, 11), (26, 5)),
)
_COMPARED: Final = (
    "ClusterName",
    "JobSubmitPlugins",
    "Prolog",
    "Epilog",
    "TaskProlog",
    "PrologFlags",
    "PrologEpilogTimeout",
    "AuthInfo",
    "GresTypes",
    "TopologyPlugin",
)
"""Keys of slurm.conf that must be the same on a host as in slurmctld."""
_LIST_KEYS: Final = frozenset({"jobsubmitplugins", "prologflags", "authinfo", "grestypes"})


def _slurmctld(sight: Sight) -> Iterator[Said]:
    ran = sight.slurm("scontrol", "ping")
    told = re.findall(r"(?m)^Slurmctld\((.*?)\) at (\S+) is (UP|DOWN)", ran.out)
    if not told:
        if ran.code is None and "not on this machine" in ran.why:
            yield error(
                "Slurm's commands are not on this host",
                "put them on the PATH, or set slurm.bin in the site file",
            )
        else:
            yield error(f"slurmctld does not answer: {ran.trouble or ran.out.strip()}")
        return
    down = [f"{which} at {host}" for which, host, state in told if state == "DOWN"]
    if len(down) == len(told):
        yield error(f"slurmctld does not answer: {', '.join(down)}")
    elif down:
        yield warning(f"slurmctld answers, but not {', '.join(down)}")
    else:
        also = "; a backup runs too: the shim's files go to both hosts" if len(told) > 1 else ""
        yield ok(f"slurmctld answers on {', '.join(host for _, host, _ in told)}{also}")


_PROBE: Final = """
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.pyslurm_client import PyslurmClient
try:
    print(len(PyslurmClient(timeout=20).nodes()))
except SlurmError as error:
    raise SystemExit(str(error))
"""


def _backend(sight: Sight) -> Iterator[Said]:
    backend = sight.site.slurm.backend
    if backend == "commands":
        yield ok("Slurm's commands read nodes and partitions (slurm.backend)")
        return
    conf = sight.layout.slurm_conf
    env = {"SLURM_CONF": str(conf)} if sight.host.stat(conf) is not None else {}
    ran = sight.host.run([sys.executable, "-c", _PROBE], timeout=COMMAND_SECONDS, env=env)
    if ran.ok:
        yield ok(f"pyslurm reads nodes and partitions, {ran.out.strip()} nodes now (slurm.backend)")
    else:
        yield error(f"slurm.backend is pyslurm, which cannot be used here: {ran.trouble}")


def _release(sight: Sight) -> Iterator[Said]:
    release = sight.release
    if release.release < OLDEST.release:
        yield error(f"Slurm {release} is older than gsub can work with")
    elif release.release > NEWEST.release:
        yield warning(
            f"Slurm {release} is newer than gsub was tested with ({NEWEST.major}.{NEWEST.minor:02})"
        )
    else:
        yield ok(f"Slurm {release}")


def _too_old(older: Version, newer: Version) -> bool:
    """Whether a daemon or command lags too far behind slurmctld: two releases are supported, three from 24.11 on."""
    return sum(older.release < step <= newer.release for step in _ORDER) > (
        2 if newer < Version(24, 11) else 3
    )


def _commands(sight: Sight) -> Iterator[Said]:
    said = sight.asked("scontrol", "--version", who="scontrol")
    try:
        here = Version.parse(said)
    except SlurmError as problem:
        raise UnseenError(str(problem)) from problem
    daemon = sight.release
    if here.release > daemon.release:
        yield warning(f"commands here are {here}, newer than slurmctld ({daemon}): that is not supported")
    elif _too_old(here, daemon):
        yield warning(f"commands here are {here}, too old for slurmctld ({daemon})")
    else:
        yield ok(f"commands here are {here}, slurmctld is {daemon}")


def _daemons(sight: Sight) -> Iterator[Said]:
    daemon = sight.release
    wrong: dict[str, list[str]] = {}
    seen: dict[str, int] = {}
    for node in sight.nodes:
        if not node.slurm_version:
            continue  # it has not registered since slurmctld knows of it
        try:
            version = Version.parse(node.slurm_version)
        except SlurmError:
            continue
        seen[node.slurm_version] = seen.get(node.slurm_version, 0) + 1
        if version.release > daemon.release or _too_old(version, daemon):
            wrong.setdefault(node.slurm_version, []).append(node.name)
    for said, names in wrong.items():
        yield warning(f"slurmd {said} does not go with slurmctld {daemon} on {some(names)}")
    if not wrong and seen:
        yield ok(f"slurmd is {', '.join(f'{v} on {n}' for v, n in sorted(seen.items()))} nodes")


def _file(sight: Sight) -> Iterator[Said]:
    conf = sight.conf
    if conf is None:
        configless = sight.config.has("SlurmctldParameters", "enable_configless")
        if "controller" in sight.roles:
            yield error(
                f"there is no {sight.layout.slurm_conf}", "name it: gsub admin doctor --slurm-conf PATH"
            )
        elif configless:
            yield ok("this host has no slurm.conf: it gets its configuration from slurmctld")
        else:
            yield unknown(
                f"there is no {sight.layout.slurm_conf}", "name it: gsub admin doctor --slurm-conf PATH"
            )
        return
    for problem in conf.problems:
        yield error(
            f"slurm.conf cannot be read whole: {problem}", "mend that line: slurmctld would not start again"
        )
    text = conf.files[conf.path]
    begins, ends = (sum(line.startswith(mark) for line in text.splitlines()) for mark in (BEGIN, END))
    if begins != ends or begins > 1:
        yield error(
            f"gsub's block in {conf.path} is torn: {begins} times '{BEGIN.decode()}', {ends} times '{END.decode()}'",
            "gsub admin install --plan, then gsub admin install, writes it anew",
        )
    config = sight.config
    different = []
    for key in _COMPARED:
        file, daemon = conf.values(key), config.values(key)
        if file and not _same(key, file, daemon):
            different.append(
                f"{key} is {', '.join(file)} in the file and {', '.join(daemon) or 'not set'} in slurmctld"
            )
        elif not file and daemon and key.endswith(("rolog", "pilog")):
            different.append(f"{key} is not in the file and {', '.join(daemon)} in slurmctld")
    if different:
        yield warning("; ".join(different))
    elif not conf.problems and begins == ends:
        yield ok(f"{conf.path} says what slurmctld says")


def _same(key: str, file: tuple[str, ...], daemon: tuple[str, ...]) -> bool:
    if key.lower() in ("prolog", "epilog"):
        # Before 24.05 the last line counts, then all: what slurmctld has must be among them
        return bool(daemon) and set(daemon) <= set(file)
    mine, theirs = file[-1], daemon[0] if daemon else ""
    if key.lower() in _LIST_KEYS:
        # slurmctld adds what follows from the rest: Contain brings Alloc, and so on
        return {word.strip().lower() for word in mine.split(",") if word} <= {
            word.strip().lower() for word in theirs.split(",")
        }
    return _plain(mine) == _plain(theirs)


def _plain(value: str) -> str:
    return re.sub(r"\s*sec$", "", value.strip().lower()).removeprefix("topology/")


def _configless(sight: Sight) -> Iterator[Said]:
    if not sight.config.has("SlurmctldParameters", "enable_configless"):
        yield ok("each host has a slurm.conf of its own: a change of it goes to all of them")
        return
    yield ok(
        "slurmctld hands the configuration out: hooks are named by absolute paths and lie on each node; "
        "job_submit.lua stays with slurmctld"
    )


def _nodes(sight: Sight) -> Iterator[Said]:
    by_hook: dict[str, list[str]] = {}
    ours: list[str] = []
    invalid: list[str] = []
    for node in sight.nodes:
        reason = node.reason or ""
        if re.search(r"(?i)\b(prolog|epilog)\b.*(error|fail)", reason):
            by_hook.setdefault(reason, []).append(node.name)
        elif reason.startswith("gsub:"):
            ours.append(node.name)
        elif "INVALID_REG" in node.flags or "INVAL" in node.state_text:
            invalid.append(node.name)
    for reason, names in by_hook.items():
        yield error(
            f"{some(names)}: drained with the reason {reason!r}",
            f"see slurmd's log there, then: scontrol update NodeName={names[0]} State=RESUME",
        )
    if invalid:
        yield warning(
            f"{some(invalid)}: slurmd registers something else than slurm.conf says",
            f"scontrol show node {invalid[0]} | grep Reason",
        )
    if ours:
        yield warning(
            f"{some(ours)}: drained by gsub's health checks", "sinfo -R tells why; see docs/health.md"
        )
    if not (by_hook or invalid or ours):
        yield ok(f"none of {len(sight.nodes)} nodes is drained by a hook")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "slurmctld",
        "slurm",
        "slurmctld and its backups answer (`scontrol ping`). Most other checks rest on that.",
        "systemctl status slurmctld on its host; its log is SlurmctldLogFile",
        _slurmctld,
    ),
    Check(
        "slurm-backend",
        "slurm",
        "What gsub's services read nodes and partitions by (`slurm.backend`), and that it works here.",
        'backend = "commands" under [slurm] in the site file, or install a pyslurm built against this Slurm',
        _backend,
        CONTROLLER,
    ),
    Check(
        "slurm-release",
        "slurm",
        "Slurm is 22.05 to 26.05, the releases that gsub is tested with.",
        "upgrade Slurm; what is newer than gsub knows is read as the newest that it does",
        _release,
    ),
    Check(
        "slurm-commands",
        "slurm",
        "Slurm's commands on this host go with slurmctld: not newer, and not more than two releases older (three from "
        "24.11 on).",
        "install the commands of slurmctld's release on this host",
        _commands,
    ),
    Check(
        "slurmd-versions",
        "slurm",
        "Each node's slurmd goes with slurmctld: not newer, and not more than two releases older (three from 24.11 "
        "on).",
        "upgrade slurmdbd first, then slurmctld, then slurmd",
        _daemons,
        CONTROLLER,
    ),
    Check(
        "slurm-conf",
        "slurm",
        "slurm.conf on this host can be read, gsub's block in it is whole, and the keys that gsub needs say there what "
        "slurmctld says: a node whose file differs runs other hooks.",
        "copy the controller's slurm.conf here, or scontrol reconfigure if this one is newer",
        _file,
        ANYWHERE,
    ),
    Check(
        "configless",
        "slurm",
        "Whether slurmctld hands out the configuration (`enable_configless`): how a change reaches the nodes.",
        "nothing is to be done",
        _configless,
        CONTROLLER,
    ),
    Check(
        "drained-nodes",
        "slurm",
        "No node is drained because a hook failed or gsub's health checks said so, and none registers other "
        "hardware than slurm.conf says.",
        "sinfo -R",
        _nodes,
        CONTROLLER,
    ),
)
