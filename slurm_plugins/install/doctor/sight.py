"""What doctor looks at: each thing once, when a check first asks for it, and in whichever thread.

What cannot be told from here raises UnseenError with the reason, so that a check is only about what is there.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from site_configs.hostlist import HostlistError, expand
from site_configs.site import SiteError, parse_site
from site_configs.site_model import Site
from site_configs.topology import Topologies, TopologyError
from slurm_plugins.client import inventory
from slurm_plugins.client.errors import SlurmError
from slurm_plugins.client.tables import Unread, read_rows, scontrol_records
from slurm_plugins.client.values import Node
from slurm_plugins.client.versions import Version
from slurm_plugins.install.doctor.check import Role, UnseenError
from slurm_plugins.install.doctor.net import LocalNet, Net, NetError, Page
from slurm_plugins.install.host import Host, HostError, Ran
from slurm_plugins.install.layout import HOOKS, SHIM, Layout
from slurm_plugins.install.slurm_conf import SlurmConf

__all__ = ["COMMAND_SECONDS", "METRICS", "Config", "Question", "Sight", "parse_config", "parse_metrics"]

COMMAND_SECONDS: Final = 10.0
"""What one command or question may take; two that wait for each other fit into a whole run."""
METRICS: Final = "http://127.0.0.1:6830"
"""Where gsubd's own pages are unless it was told otherwise (its --listen)."""

_T = TypeVar("_T")
_NODE_TEXTS: Final = ("Reason", "Comment", "Extra")
_PLAIN: Final = {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""In English, times in seconds since 1970, nothing cut: what the client's decoders read."""
_PROCESSES: Final = ("slurmctld", "slurmd", "gsubd", "gsub-noded", "munged")


@dataclass(frozen=True, slots=True)
class Question:
    """What a run of doctor is asked.

    Parameters
    ----------
    roles: what this host is; empty: found out.
    node: the node's name in Slurm; empty: $SLURMD_NODENAME, or the host's.
    metrics: where gsubd's own pages are.
    programs: gsub's virtual environment, whose files root trusts; None: it is not looked at.
    release: this gsub's version.
    clock: seconds since the epoch.
    """

    roles: tuple[Role, ...] = ()
    node: str = ""
    metrics: str = METRICS
    programs: Path | None = None
    release: str = ""
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Config:
    """What slurmctld says of its configuration (`scontrol show config`), whatever the release.

    >>> config = parse_config("MinJobAge = 300 sec\\nProlog[0] = /a\\nProlog[1] = /b\\nEpilog = (null)\\n")
    >>> config.number("MinJobAge"), config.values("prolog"), config.value("Epilog")
    (300, ('/a', '/b'), '')
    """

    rows: Mapping[str, tuple[str, ...]]

    def values(self, key: str) -> tuple[str, ...]:
        """All values of a key, in any case; empty where it is not set."""
        return self.rows.get(key.lower(), ())

    def value(self, key: str) -> str:
        """The value of a key; "" where it is not set."""
        return next(iter(self.values(key)), "")

    def words(self, key: str) -> tuple[str, ...]:
        """A list with commas, as it is written."""
        return tuple(word.strip() for word in self.value(key).split(",") if word.strip())

    def has(self, key: str, word: str) -> bool:
        """Whether a list holds a word, in any case."""
        return word.lower() in {found.lower() for found in self.words(key)}

    def number(self, key: str) -> int | None:
        """The number that a value begins with ("300 sec"); None where there is none."""
        found = re.match(r"\d+", self.value(key))
        return int(found[0]) if found else None

    def option(self, key: str, name: str) -> str | None:
        """The value of `name=...` in a list such as SchedulerParameters; "" for a bare name, None: not there."""
        for word in self.words(key):
            found, _, value = word.partition("=")
            if found.lower() == name.lower():
                return value
        return None


def parse_config(text: str) -> Config:
    """Read the output of ``scontrol show config``; of a key that stands twice the first counts, but for lists."""
    rows: dict[str, list[str]] = {}
    for key, place, value in re.findall(r"(?m)^([A-Za-z]\w*)(\[\d+\])?\s*= ?(.*)$", text):
        shown = value.strip()
        if shown in ("(null)", "N/A"):
            shown = ""
        if shown and (place or key.lower() not in rows):
            rows.setdefault(key.lower(), []).append(shown)
        else:
            rows.setdefault(key.lower(), [])
    return Config({key: tuple(values) for key, values in rows.items()})


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus' text format: a sample's name with its labels -> its value."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            try:
                found[name] = float(value)
            except ValueError:
                continue
    return found


@dataclass
class _Cell:
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: bool = False
    value: object = None
    error: Exception | None = None


class Sight:
    """A host, its cluster and its gsub as they are now. For any number of threads.

    Every method may raise UnseenError, and those that read files HostError.
    """

    def __init__(
        self, host: Host, layout: Layout, question: Question | None = None, net: Net | None = None
    ) -> None:
        self.host = host
        self.layout = layout
        self.question = question or Question()
        self.net = net or LocalNet()
        self._cells: dict[object, _Cell] = {}
        self._lock = threading.Lock()

    def _once(self, key: object, make: Callable[[], _T]) -> _T:
        with self._lock:
            cell = self._cells.setdefault(key, _Cell())
        with cell.lock:
            if not cell.done:
                try:
                    cell.value = make()
                except (UnseenError, HostError) as error:
                    cell.error = error
                cell.done = True
        if cell.error is not None:
            raise UnseenError(str(cell.error))
        return cast(_T, cell.value)

    # --- files ------------------------------------------------------------------------------------------------------

    def text(self, path: Path) -> str | None:
        """A file's text, bytes that are none as surrogates; None: there is no such file."""
        found = self._once(("read", path), lambda: self.host.read(path))
        return None if found is None else found.decode(errors="surrogateescape")

    @property
    def is_root(self) -> bool:
        """Whether all can be read."""
        return self.host.euid() == 0

    # --- the host ---------------------------------------------------------------------------------------------------

    @property
    def processes(self) -> frozenset[str]:
        """Which of Slurm's, MUNGE's and gsub's daemons run on this host."""

        def found() -> frozenset[str]:
            names = set()
            for name in self.host.names(Path("/proc")):
                if name.isdecimal():
                    try:
                        comm = self.host.read(Path("/proc", name, "comm"))
                    except HostError:
                        continue  # it has ended meanwhile
                    names.add((comm or b"").decode(errors="replace").strip())
            return frozenset(names & set(_PROCESSES))

        return self._once("processes", found)

    @property
    def has_systemd(self) -> bool:
        """Whether systemd runs this host."""
        return self.host.stat(Path("/run/systemd/system")) is not None

    def unit(self, name: str) -> Path | None:
        """Where a unit of ours lies; None: systemd has none of that name."""
        places = [self.layout.units]
        if self.layout.units == Path(
            "/etc/systemd/system"
        ):  # else all is below a prefix, and packages are not it
            places += [Path("/usr/lib/systemd/system"), Path("/lib/systemd/system")]
        return next((place / name for place in places if self.host.stat(place / name) is not None), None)

    @property
    def roles(self) -> tuple[Role, ...]:
        """What this host is: as was said, else by what runs here or is configured for it."""
        return self.question.roles or self._once("roles", self._roles)

    @property
    def known_roles(self) -> tuple[Role, ...]:
        """The roles, without waiting: empty where they were not found out in time."""
        cell = self._cells.get("roles")
        return self.question.roles or (
            cast(tuple[Role, ...], cell.value) if cell and cell.done and cell.value else ()
        )

    def _roles(self) -> tuple[Role, ...]:
        found: list[Role] = []
        if "slurmctld" in self.processes or self.host.name in self._controllers():
            found.append("controller")
        if "slurmd" in self.processes or self._names_here():
            found.append("node")
        return tuple(found) or ("login",)

    def _controllers(self) -> tuple[str, ...]:
        """The hosts of slurmctld, up to the first dot."""
        try:
            named = self.config.values("SlurmctldHost")
        except UnseenError:
            named = self._stated("SlurmctldHost")
        return tuple(re.split(r"[(.]", host)[0] for host in named)

    def _names_here(self) -> tuple[str, ...]:
        """The nodes that Slurm has on this host."""
        here = self.host.name
        try:
            return tuple(
                node.name for node in self.nodes if here in (node.name, (node.hostname or "").split(".")[0])
            )
        except UnseenError:
            names: set[str] = set()
        for value in self._stated("NodeName"):
            with suppress(HostlistError):
                names.update(expand(value))
        return (here,) if here in names else ()

    def _stated(self, key: str) -> tuple[str, ...]:
        """What this host's slurm.conf says of a key; nothing where it has none that can be read."""
        try:
            return () if self.conf is None else self.conf.values(key)
        except UnseenError:
            return ()

    @property
    def node(self) -> str:
        """The node's name in Slurm."""
        if self.question.node:
            return self.question.node
        here = self._once("names here", self._names_here)
        return here[0] if len(here) == 1 else os.environ.get("SLURMD_NODENAME", "") or self.host.name

    # --- Slurm ------------------------------------------------------------------------------------------------------

    def slurm(self, *argv: str) -> Ran:
        """Run one of Slurm's commands that only read, in plain English; its failure is the caller's to judge."""

        def run() -> Ran:
            program, *rest = argv
            folder = self._slurm_bin()
            env = dict(_PLAIN)
            if self.host.stat(self.layout.slurm_conf) is not None:
                env["SLURM_CONF"] = str(self.layout.slurm_conf)
            path = f"{folder}/{program}" if folder else program
            return self.host.run([path, *rest], timeout=COMMAND_SECONDS, env=env)

        return self._once(("slurm", argv), run)

    def _slurm_bin(self) -> str:
        try:
            return self.site.slurm.bin
        except UnseenError:
            return ""

    def asked(self, *argv: str, who: str = "slurmctld") -> str:
        """What such a command prints."""
        ran = self.slurm(*argv)
        if not ran.ok:
            raise UnseenError(f"{who} does not tell: {ran.trouble}")
        return ran.out

    @property
    def config(self) -> Config:
        """slurmctld's configuration."""

        def read() -> Config:
            config = parse_config(self.asked("scontrol", "show", "config"))
            if not config.value("SLURM_VERSION"):
                raise UnseenError("slurmctld does not tell: no SLURM_VERSION in its configuration")
            return config

        return self._once("config", read)

    @property
    def release(self) -> Version:
        """slurmctld's release."""
        try:
            return Version.parse(self.config.value("SLURM_VERSION"))
        except SlurmError as problem:
            raise UnseenError(str(problem)) from problem

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes."""

        def read() -> tuple[Node, ...]:
            said = self.asked("scontrol", "--oneliner", "--all", "show", "node")
            try:
                found = scontrol_records(said, "NodeName", _NODE_TEXTS)
                return tuple(read_rows("node", found, "NodeName", inventory.node, Unread()))
            except SlurmError as problem:
                raise UnseenError(str(problem)) from problem

        return self._once("nodes", read)

    @property
    def conf(self) -> SlurmConf | None:
        """slurm.conf on this host; None where it has none, as without configuration of its own."""

        def read() -> SlurmConf | None:
            if self.host.stat(self.layout.slurm_conf) is None:
                return None
            return SlurmConf.read(self.host, self.layout.slurm_conf)

        return self._once("conf", read)

    @property
    def slurm_user(self) -> tuple[str, int]:
        """SlurmUser: name and uid."""
        found = re.fullmatch(r"(.*)\((\d+)\)", self.config.value("SlurmUser"))
        if not found:
            raise UnseenError("slurmctld does not tell its SlurmUser")
        return found[1], int(found[2])

    # --- gsub -------------------------------------------------------------------------------------------------------

    @property
    def site_text(self) -> str | None:
        """The site file's text; None: there is none."""
        return self.text(self.layout.site)

    @property
    def site(self) -> Site:
        """The site."""

        def read() -> Site:
            text = self.site_text
            if text is None:
                raise UnseenError(f"there is no site file {self.layout.site}")
            try:
                return parse_site(text, str(self.layout.site))
            except SiteError as problem:
                raise UnseenError(f"the site file cannot be used ({problem.problem})") from problem

        return self._once("site", read)

    def topologies(self) -> Topologies | None:
        """The topology file that the site names, for Slurm's nodes; None: it names none. Raises TopologyError."""
        from site_configs import topology_conf, topology_yaml

        file = self.site.topology.file
        if not file:
            return None
        text = self.text(Path(file))
        if text is None:
            raise TopologyError("there is no such file", "Check topology.file of the site file.", file=file)
        if file.endswith((".yaml", ".yml")):
            return topology_yaml.parse(text, file, [node.name for node in self.nodes])
        one = topology_conf.parse(text, file, str(Path(file).parent))
        return Topologies({one.name: one}, one.name)

    @property
    def job_submit(self) -> str | None:
        """job_submit.lua; None: there is none."""
        return self.text(self.layout.job_submit)

    @property
    def has_shim(self) -> bool:
        """Whether any part of the shim is on this host."""
        there = any(self.host.stat(self.layout.libexec / name) for name in SHIM)
        return there or self.layout.libexec.name in (self.job_submit or "")

    @property
    def has_hooks(self) -> bool:
        """Whether any of the hooks is on this host, or named in Slurm's configuration."""
        if any(self.host.stat(self.layout.libexec / name) for name in HOOKS.values()):
            return True
        try:
            return any(
                str(self.layout.libexec) in value for key in HOOKS for value in self.config.values(key)
            )
        except UnseenError:
            return False

    @property
    def has_service(self) -> bool:
        """Whether the service is on this host, running or not."""
        return any(self._service())

    def _service(self) -> Iterator[bool]:
        yield "gsubd" in self.processes
        yield self.unit("gsubd.service") is not None
        yield self.host.stat(self.layout.state) is not None
        yield self.host.stat(self.layout.site) is not None

    @property
    def has_agent(self) -> bool:
        """Whether the agent is on this host, running or not."""
        if self.unit("gsub-noded.service") is not None:
            return True
        return any(self.host.stat(path) for path in (self.layout.spool, self.layout.run_noded))

    def page(self, url: str) -> Page:
        """An open page of the service. Raises NetError, which is no UnseenError: silence is a finding."""
        found = self._once(("page", url), lambda: self._net(lambda: self.net.page(url, COMMAND_SECONDS)))
        return self._answer(found)

    def ask(self, target: str) -> Page:
        """A question to the service in our name. Raises NetError."""
        site = self.site
        found = self._once(
            ("ask", target), lambda: self._net(lambda: self.net.ask(site, target, COMMAND_SECONDS))
        )
        return self._answer(found)

    @staticmethod
    def _net(ask: Callable[[], Page]) -> Page | NetError:
        try:
            return ask()
        except NetError as error:
            return error

    @staticmethod
    def _answer(found: Page | NetError) -> Page:
        if isinstance(found, NetError):
            raise NetError(found.kind, str(found))
        return found

    @property
    def metrics(self) -> dict[str, float]:
        """gsubd's metrics."""
        try:
            page = self.page(f"{self.question.metrics}/metrics")
        except NetError as error:
            raise UnseenError(f"gsubd does not answer: {error}") from error
        return parse_metrics(page.body.decode(errors="replace"))

    @property
    def told_nodes(self) -> Sequence[Mapping[str, Any]]:
        """The nodes that the service knows, as JSON has them: a newer service may tell more of them than we know."""
        import json

        try:
            page = self.ask("/v1/nodes")
        except NetError as error:
            raise UnseenError(f"the service does not tell of its nodes: {error}") from error
        if page.status == 403:
            raise UnseenError("the service tells of its nodes to root and to operators only")
        try:
            rows = json.loads(page.body)["nodes"] if page.status == 200 else None
        except (ValueError, LookupError, TypeError):
            rows = None
        if not isinstance(rows, list):
            raise UnseenError(f"the service does not tell of its nodes: it answers with status {page.status}")
        return [row for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str)]
