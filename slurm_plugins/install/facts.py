"""What is asked for (`Wish`), and how the host is (`Facts`): all that a plan is made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

from site_configs.hostlist import HostlistError, expand
from slurm_plugins.install.host import Host, HostError, Stat
from slurm_plugins.install.journal import ABSENT, Journal, State, followed, state_of
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.slurm_conf import SlurmConf, unedit

__all__ = [
    "ROLES",
    "UNITS",
    "Facts",
    "NoRoleError",
    "Role",
    "Seen",
    "Wish",
    "confs",
    "gather",
    "look",
    "roles_of",
    "slurm_env",
    "units_of",
]

Role: TypeAlias = Literal["controller", "node"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

UNITS: Final[Mapping[Role, tuple[str, ...]]] = {
    "controller": ("gsubd.service", "gsub-act.service"),
    "node": ("gsub-noded.service",),
}
PACKAGED: Final = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
"""Where a package places units."""
SYSTEMD: Final = Path("/run/systemd/system")
"""Is there where systemd runs this host (sd_booted(3))."""
TRUE: Final = "/usr/bin/true"
_CONFIGLESS: Final = Path("/run/slurm/conf/slurm.conf")
_HOST: Final = re.compile(r"([^()\s]+)(?:\(([^()\s]+)\))?")


class NoRoleError(Exception):
    """Neither slurmctld nor slurmd belongs to this host, as far as can be told."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for.

    Parameters
    ----------
    bin: the folder of gsub's programs, in its own environment.
    prefixed: all lies below a folder of its own: no systemd, which has one of each unit.
    uid: the number that the user gsub gets where there is none; None: any.
    service_url: what nodes and users connect to; empty: slurmctld's host, port 6831.
    nodes_ready: the admin says that the nodes have the hooks: nobody needs to have heard of them.
    task_prolog: TaskProlog too.
    upgrade: replace what an earlier version placed.
    version: gsub's.
    """

    layout: Layout
    bin: Path
    roles: frozenset[Role]
    prefixed: bool = False
    uid: int | None = None
    service_url: str = ""
    nodes_ready: bool = False
    task_prolog: bool = False
    upgrade: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a path is: through links, but for `link`, which says what the path itself is."""

    state: State
    content: bytes | None = None
    stat: Stat | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """How the host is.

    Parameters
    ----------
    conf: slurm.conf as it is now; None: it cannot be read here.
    original: slurm.conf as it would be without what we put into it.
    seen: the paths that a plan may be about.
    users: of those that a plan may be about, the groups of each that is there. uids: their numbers.
    version: gsub's that is installed, as the journal has it; empty: none.
    running: slurmctld answers.
    release: Slurm's, as `scontrol --version` says.
    several: Slurm takes several lines of Prolog and of Epilog (24.05 and newer).
    folders: whether folders of the site's own that matter are there.
    true: a program that does nothing and is on every host; empty: there is none, or it is not to be used.
    nodes: those of slurm.conf. heard: those of them that the service has heard of; None: it does not say.
    active: units that run.
    ours: paths that are as one of our steps left them.
    unproven: paths that were changed together by an installation that did not end.
    """

    name: str
    euid: int
    conf: SlurmConf | None
    original: SlurmConf | None
    conf_problem: str = ""
    seen: Mapping[Path, Seen] = field(default_factory=dict, hash=False)
    users: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    uids: Mapping[str, int] = field(default_factory=dict, hash=False)
    version: str = ""
    systemd: bool = False
    active: frozenset[str] = frozenset()
    packaged: frozenset[str] = frozenset()
    running: bool = False
    release: str = ""
    several: bool = False
    folders: Mapping[Path, bool] = field(default_factory=dict, hash=False)
    true: str = ""
    nodes: tuple[str, ...] = ()
    heard: frozenset[str] | None = None
    ours: frozenset[Path] = frozenset()
    unproven: frozenset[Path] = frozenset()

    def value(self, key: str) -> str:
        """A key of the site's own slurm.conf; empty: not set."""
        return (self.original.value(key) if self.original else None) or ""

    def values(self, key: str) -> tuple[str, ...]:
        """All lines of a key of the site's own slurm.conf that say something."""
        return tuple(value for value in (self.original.values(key) if self.original else ()) if value)

    def now(self, key: str) -> tuple[str, ...]:
        """All lines of a key of slurm.conf as it is."""
        return tuple(value for value in (self.conf.values(key) if self.conf else ()) if value)

    def submit_plugins(self) -> tuple[str, ...]:
        """The words of the site's own JobSubmitPlugins, as it writes them."""
        return tuple(word for word in self.value("JobSubmitPlugins").replace(",", " ").split() if word)

    def loads_lua(self) -> bool:
        """Whether those have job_submit/lua, which Slurm takes by its short name and by its long one."""
        return any(word.removeprefix("job_submit/") == "lua" for word in self.submit_plugins())

    def controllers(self) -> tuple[tuple[str, str], ...]:
        """(name, address) of slurmctld's hosts, the first and its backups; where no address is said it is the name."""
        said = self.values("SlurmctldHost") or self.values("ControlMachine") + self.values("BackupController")
        hosts = []
        for value in said:
            for one in value.split(",") if "(" not in value else (value,):
                if found := _HOST.fullmatch(one.strip()):
                    hosts.append((found[1], found[2] or found[1]))
        return tuple(hosts)


def slurm_env(host: Host, layout: Layout) -> dict[str, str]:
    """What makes Slurm's commands speak of the cluster that is meant, in English.

    A slurm.conf that is not there is not named: commands wait a minute for it to appear, and on a configless host
    find theirs by themselves.
    """
    there = host.stat(layout.slurm_conf) is not None
    return {"LC_ALL": "C"} | ({"SLURM_CONF": str(layout.slurm_conf)} if there else {})


def units_of(roles: Iterable[Role]) -> tuple[str, ...]:
    """The units of these roles."""
    return tuple(unit for role in ROLES if role in set(roles) for unit in UNITS[role])


def roles_of(host: Host, layout: Layout) -> frozenset[Role]:
    """What runs on this host, or is configured for it.

    Raises
    ------
    NoRoleError: neither.
    """
    found: set[Role] = set()
    for role, daemon in (("controller", "slurmctld"), ("node", "slurmd")):
        if host.run(["pgrep", "-x", daemon]).ok:
            found.add(cast(Role, role))
    conf, original, _ = confs(host, layout)
    facts = Facts(host.name, host.euid(), conf, original)
    if any(name.split(".")[0] == host.name for name, _ in facts.controllers()):
        found.add("controller")
    if (
        original
        and host.run(["scontrol", "show", "aliases", host.name], env=slurm_env(host, layout)).out.strip()
    ):
        found.add("node")
    if not found:
        raise NoRoleError(
            f"neither slurmctld nor slurmd runs on {host.name}, and slurm.conf does not name it"
        )
    return frozenset(found)


def confs(host: Host, layout: Layout) -> tuple[SlurmConf | None, SlurmConf | None, str]:
    """slurm.conf as it is, as it would be without us, and why it cannot be read. A configless node has a copy."""
    trouble = ""
    for path in dict.fromkeys((layout.slurm_conf, _CONFIGLESS)):
        try:
            conf = SlurmConf.read(host, path)
            return conf, SlurmConf.read(cast(Host, _Unedited(host)), path), "; ".join(conf.problems)
        except HostError as error:
            trouble = trouble or str(error)
    return None, None, trouble


class _Unedited:
    """A host whose slurm.conf is as it would be without us."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def read(self, path: Path) -> bytes | None:
        content = self._host.read(path)
        return None if content is None else unedit(content)


def look(host: Host, path: Path, *, follow: bool = True) -> Seen:
    """What a path is. Raises HostError: it is there and cannot be read."""
    own = host.stat(path)
    if own is None:
        return Seen(state_of(host, path))
    link = own.target if own.kind == "link" else ""
    place = followed(host, path) if follow else path
    state = state_of(host, place, follow=False)
    content = host.read(place) if state.kind == "file" else None
    return Seen(state, content, host.stat(place), link)


def gather(
    host: Host,
    wish: Wish,
    journal: Journal,
    paths: Collection[Path] = (),
    *,
    own: bool = False,
) -> Facts:
    """Look at the host, at `paths` too: through links, or, where `own`, at links themselves.

    Whom the service has heard of is not asked here.

    Raises
    ------
    HostError: a path is there and cannot be read, by this user at least.
    """
    conf, original, problem = confs(host, wish.layout)
    paths = {*paths, *(conf.files if conf else ())}
    seen = {path: _seen(host, path, follow=not own) for path in paths}
    release = host.run(["scontrol", "--version"], env=slurm_env(host, wish.layout)).out.strip()
    hooks = [value for key in ("Prolog", "Epilog") for value in (original.values(key) if original else ())]
    parents = {Path(value).parent for value in hooks if value.startswith("/")}
    units = units_of(wish.roles)
    uids = {
        user: uid for user in ("root", "gsub", "gsub-act", "slurm") if (uid := host.uid(user)) is not None
    }
    systemd = not wish.prefixed and host.stat(SYSTEMD) is not None
    return Facts(
        name=host.name,
        euid=host.euid(),
        conf=conf,
        original=original,
        conf_problem=problem,
        seen=seen,
        users={user: host.groups(user) for user in uids},
        uids=uids,
        version=next((entry.version for entry in reversed(journal.entries) if entry.version), ""),
        systemd=systemd,
        active=frozenset(
            unit for unit in units if systemd and host.run(["systemctl", "is-active", "--quiet", unit]).ok
        ),
        packaged=frozenset(
            unit for unit in units if any(host.stat(folder / unit) is not None for folder in PACKAGED)
        ),
        running="controller" in wish.roles and _running(host, wish.layout),
        release=release,
        several=_numbers(release) >= (24, 5),
        folders={
            folder: (found := host.stat(folder)) is not None and found.kind != "file" for folder in parents
        },
        true="" if wish.prefixed or host.stat(Path(TRUE)) is None else TRUE,
        nodes=_nodes(original),
        ours=frozenset(path for path, one in seen.items() if journal.is_ours(path, one.state)),
        unproven=frozenset(journal.unproven()),
    )


def _seen(host: Host, path: Path, *, follow: bool) -> Seen:
    try:
        return look(host, path, follow=follow)
    except HostError:
        if host.euid() == 0:
            raise
        return Seen(ABSENT)  # a plan by somebody who may not look; it says so


def _numbers(release: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _nodes(conf: SlurmConf | None) -> tuple[str, ...]:
    """The nodes that slurm.conf names."""
    names: dict[str, None] = {}
    for value in conf.values("NodeName") if conf else ():
        if value.upper() != "DEFAULT":
            with suppress(HostlistError):
                names |= dict.fromkeys(expand(value))
    return tuple(names)


def _running(host: Host, layout: Layout) -> bool:
    said = host.run(["scontrol", "ping"], env=slurm_env(host, layout))
    return bool(re.search(r"\bUP\b", said.out))
