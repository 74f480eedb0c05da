"""A host in dictionaries with a Slurm that behaves: what the engine's tests install on and roll back from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm_plugins.install import engine
from slurm_plugins.install.apply import Done
from slurm_plugins.install.around import Around
from slurm_plugins.install.facts import SYSTEMD, Role, Wish
from slurm_plugins.install.host import Ran
from slurm_plugins.install.journal import Journal
from slurm_plugins.install.layout import Layout
from slurm_plugins.install.plan import Plan
from slurm_plugins.install.rehearse import Candidate, Rehearsal
from slurm_plugins.install.slurm_conf import SlurmConf
from tests.unit.slurm_plugins.install.fakes import FakeHost

CONF: Final = Path("/etc/slurm/slurm.conf")
LIBEXEC: Final = Path("/usr/libexec/gsub")
SITE_LUA: Final = b"function slurm_job_submit(j, p, u) return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"
_BASE: Final = "ClusterName=Lab\nSlurmctldHost=ctl(10.0.0.1)\nNodeName=n[1-2] CPUs=4\nSlurmUser=slurm\n"
_KEYS: Final = ("Prolog", "Epilog", "TaskProlog", "PrologFlags", "JobSubmitPlugins")


@dataclass
class FakeService:
    """gsubd: whether it answers, and whom it has heard of."""

    up: bool = True
    nodes: frozenset[str] | None = None

    def decides(self, host: str, port: int) -> bool:
        return self.up

    def heard(self, site: object) -> frozenset[str] | None:
        return self.nodes


@dataclass
class Place:
    """The host, and what is around it."""

    conf: str = ""
    lua: bytes | None = None
    up: bool = True
    systemd: bool = False
    release: str = "slurm-wlm 22.05.8"
    host: FakeHost = field(default_factory=FakeHost)
    service: FakeService = field(default_factory=FakeService)
    rehearsal: Rehearsal = field(default_factory=lambda: Rehearsal("fine", "it works"))
    refuses: str = ""
    """What slurmctld says to a reconfigure; empty: it does it."""
    loses: str = ""
    """A key that slurmctld does not take over."""
    now: float = 1_800_000_000.0
    loaded: dict[str, tuple[str, ...]] = field(default_factory=dict)
    rehearsed: list[Candidate] = field(default_factory=list)
    programs: Ran = field(default_factory=lambda: Ran(0))

    def __post_init__(self) -> None:
        host = self.host
        host.put(CONF, _BASE + self.conf)
        if self.lua is not None:
            host.put(CONF.with_name("job_submit.lua"), self.lua)
        host.put("/usr/bin/true", b"\x7fELF", mode=0o755)
        for folder in ("/etc/systemd/system", "/etc/tmpfiles.d", "/run", "/var/lib", "/etc/slurm"):
            host.folder(folder)
        if self.systemd:
            host.folder(SYSTEMD)
        host.account("slurm", 64030, "slurm")
        self.load()
        host.says("scontrol --version", self.release)
        host.answer(
            "scontrol ping", lambda *_: Ran(0, f"Slurmctld(primary) at ctl is {'UP' if self.up else 'DOWN'}")
        )
        host.answer("scontrol show config", lambda *_: self._config())
        host.answer("scontrol reconfigure", lambda *_: self._reconfigure())
        host.answer("sbatch --test-only", lambda *_: Ran(0, "", "sbatch: Job 7 to start at 12:00"))
        host.answer("groupadd", lambda argv, _: Ran(0))
        host.answer("useradd", self._useradd)
        host.answer("usermod", self._usermod)
        host.answer("gpasswd", self._gpasswd)
        host.answer("userdel", self._userdel)
        host.says("groupdel")
        host.answer("id -g", lambda argv, _: Ran(0, str(self.host.users[argv[-1]])))
        host.answer("systemctl", self._systemctl)
        host.answer("rm", self._rm)
        host.answer(("/opt/gsub/bin/gsubd", "--help"), lambda *_: self.programs)
        host.answer(("/opt/gsub/bin/gsub-noded", "--help"), lambda *_: self.programs)

    # --- Slurm, systemd, users ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """slurmctld starts, or takes slurm.conf anew."""
        conf = SlurmConf.read(self.host, CONF)
        self.loaded = {key: conf.values(key) for key in _KEYS if key != self.loses}

    def _config(self) -> Ran:
        if not self.up:
            return Ran(1, "", "Unable to contact slurm controller")
        lines = [
            f"{key:24}= {value}" for key, values in self.loaded.items() for value in values or ("(null)",)
        ]
        return Ran(0, "\n".join(lines) + "\n")

    def _reconfigure(self) -> Ran:
        if not self.up:
            return Ran(1, "", "Unable to contact slurm controller")
        if self.refuses:
            return Ran(1, "", self.refuses)
        self.load()
        return Ran(0)

    def _useradd(self, argv: tuple[str, ...], _: str) -> Ran:
        if argv[-1] in self.host.users:
            return Ran(9, "", "it is there")
        number = int(argv[argv.index("--uid") + 1]) if "--uid" in argv else 990
        self.host.account(argv[-1], number, argv[-1])
        return Ran(0)

    def _usermod(self, argv: tuple[str, ...], _: str) -> Ran:
        self.host.members[argv[-1]] = (*self.host.members[argv[-1]], "slurm")
        return Ran(0)

    def _gpasswd(self, argv: tuple[str, ...], _: str) -> Ran:
        kept = tuple(group for group in self.host.members.get("gsub", ()) if group != "slurm")
        self.host.members["gsub"] = kept
        return Ran(0)

    def _userdel(self, argv: tuple[str, ...], _: str) -> Ran:
        self.host.users.pop("gsub", None)
        self.host.members.pop("gsub", None)
        return Ran(0)

    def _rm(self, argv: tuple[str, ...], _: str) -> Ran:
        self.host.lose(argv[-1])
        return Ran(0)

    active: set[str] = field(default_factory=set)

    def _systemctl(self, argv: tuple[str, ...], _: str) -> Ran:
        match argv[1:]:
            case ("is-active", "--quiet", unit):
                return Ran(0 if unit in self.active else 3)
            case ("enable", "--now", unit):
                self.active.add(unit)
            case ("disable", "--now", unit):
                self.active.discard(unit)
        return Ran(0)

    # --- the engine ---------------------------------------------------------------------------------------------------

    def around(self) -> Around:
        def rehearse(host: object, layout: object, candidate: Candidate) -> Rehearsal:
            self.rehearsed.append(candidate)
            return self.rehearsal

        return Around(self.service, rehearse, now=self.clock, sleep=self._sleep, settle=15.0)

    def clock(self) -> float:
        return self.now

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.host.now += seconds

    def wish(self, roles: frozenset[Role], prefix: Path | None = None, **said: Any) -> Wish:
        layout = Layout(CONF) if prefix is None else Layout.under(prefix, CONF)
        values = {"bin": Path("/opt/gsub/bin"), "version": "1.0", "prefixed": prefix is not None, **said}
        return Wish(layout, roles=roles, **values)

    def journal(self, wish: Wish | None = None) -> Journal:
        keep = Layout(CONF).keep if wish is None else wish.layout.keep
        return Journal(self.host, keep, self.clock)

    def plan(self, roles: frozenset[Role], **said: Any) -> Plan:
        wish = self.wish(roles, **said)
        return engine.planned(self.host, wish, self.journal(wish), self.around())

    def install(self, roles: frozenset[Role], **said: Any) -> Done:
        wish = self.wish(roles, **said)
        journal = self.journal(wish)
        return engine.install(
            self.host, wish, journal, self.around(), engine.planned(self.host, wish, journal, self.around())
        )

    def rollback_plan(self, roles: frozenset[Role], *, records: bool = False, **said: Any) -> Plan:
        wish = self.wish(roles, **said)
        return engine.rolled_back(self.host, wish, self.journal(wish), self.around(), records=records)

    def rollback(self, roles: frozenset[Role], *, records: bool = False, **said: Any) -> Done:
        wish = self.wish(roles, **said)
        journal = self.journal(wish)
        found = engine.rolled_back(self.host, wish, journal, self.around(), records=records)
        return engine.rollback(self.host, wish, journal, self.around(), found)

    def text(self, path: Path = CONF) -> str:
        return self.content(path).decode()

    def content(self, path: Path | str) -> bytes:
        found = self.host.read(Path(path))
        assert found is not None, f"{path} is not there"
        return found

    def left(self) -> list[str]:
        """What of gsub is anywhere on the host, but for the store's folder."""
        return [
            path for path in self.host.tree() if re.search(r"gsub|tru[yz]$", path) and path != "/var/lib/gsub"
        ]
