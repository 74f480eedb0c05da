"""The stages of gsub's life on a site, each with what it must bring about; slurmctld is restarted after each."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from site_configs.devcluster import Cluster
from tests.slurm.install.site.admin import Admin, newer
from tests.slurm.install.site.dressed import Hooks, Site
from tests.slurm.install.site.judge import Judge, Verdict, Watch
from tests.slurm.install.site.stream import Stream, wait_for

LEFT: Final = frozenset({"state", "etc", "etc/site.toml"})
"""What rollback leaves below the prefix: the store, and the site file, which gsub did not write here."""


@dataclass(slots=True)
class Life:
    """A site under a stream of jobs, and its administrator."""

    site: Site
    stream: Stream
    admin: Admin
    watch: Watch
    times: dict[str, float] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def on(cls, cluster: Cluster, hooks: Hooks) -> Iterator[Life]:
        """A site with a stream of jobs; whatever happens, its users go home, and gsub's daemons end."""
        site = Site.dress(cluster, hooks)
        stream = Stream(site)
        admin = Admin(site, stream)
        with Watch(site) as watch:
            life = cls(site, stream, admin, watch)
            try:
                stream.begin()
                stream.more()
                yield life
            finally:
                stream.kill()
                admin.stop("gsubd", *(f"noded-{node}" for node in site.nodes))

    @contextmanager
    def stage(self, name: str, *, kill: bool = False, restart: bool = True) -> Iterator[None]:
        """A stage: what is done in it, slurmctld's restart, in order or by kill -9, and some jobs more."""
        started = time.monotonic()
        yield
        if restart:
            self.admin.restart_slurmctld(kill=kill)
        self.stream.more(3)
        self.times[name] = time.monotonic() - started
        print(f"{name}: {self.times[name]:.1f} s")

    def end(self) -> Verdict:
        """The users finish, and all is judged."""
        started = time.monotonic()
        self.stream.end()
        verdict = Judge(self.site, self.stream, self.admin.windows).verdict(*self.watch.faults)
        print(f"end: {time.monotonic() - started:.1f} s; {verdict}")
        for command, took in self.admin.took.items():
            print(f"  gsub admin {command}: {took:.1f} s")
        return verdict

    # --- what a stage must bring about ------------------------------------------------------------------------------

    def untouched(self, *, alone: bool = False) -> None:
        """All that is the site's is as it was, to the byte; `alone`: and nothing else lies there."""
        now = self.site.sums()
        changed = {name: now.get(name) for name, was in self.site.before.items() if now.get(name) != was}
        assert not changed, changed
        assert not alone or now.keys() == self.site.before.keys(), now.keys() - self.site.before.keys()

    def gone(self) -> None:
        """No file of gsub's is left but the store and the site file that was there before."""
        left = []
        for place in (self.site.prefix, *map(self.site.disk, self.site.nodes)):
            names = {str(path.relative_to(place)) for path in place.rglob("*")}
            left += [name for name in names if name not in LEFT and not name.startswith("state/")]
        assert not left, left

    def told(self, word: str, *options: str) -> None:
        """A user who submits is told so by gsub; asked again, since a busy machine's answers come too late at times."""
        argv = ["sbatch", "--parsable", "--hold", "-Alab", "--output=/dev/null", *options, "--wrap=:"]
        cluster = self.site.cluster

        def heard() -> bool:
            done = cluster.run(argv, user="user1")
            if done.returncode == 0:
                cluster.run(["scancel", done.stdout.split(";")[0].strip()])
            return word in done.stderr

        wait_for(f"{word!r} at a submission", heard)

    # --- stages -----------------------------------------------------------------------------------------------------

    def install_nodes(self) -> None:
        """Hooks and agents on every node: nothing calls them yet."""
        for node in self.site.nodes:
            self.admin.type("install", "--role=node", "--yes", on=node)
        self.admin.start_agents()
        self.untouched()

    def install_controller(self) -> None:
        """The service, then the shim and the lines of slurm.conf."""
        self.admin.type("install", "--role=controller", "--nodes-ready", "--yes")

    def rollback(self) -> None:
        """Controller first, so that no hook is called that is not there, then the nodes."""
        self.admin.type("rollback", "--role=controller", "--yes")
        self.untouched()
        self.admin.stop("gsubd", *(f"noded-{node}" for node in self.site.nodes))
        for node in self.site.nodes:
            self.admin.type("rollback", "--role=node", "--yes", on=node)
        self.gone()
        self.untouched(alone=True)

    def killed_install(self, chance: random.Random) -> bool:
        """`install` is killed at a line of its journal; whether it was."""
        lines = self.admin.journal_lines() + chance.randrange(1, 40)
        argv = ("install", "--role=controller", "--nodes-ready", "--yes")
        return self.admin.killed(*argv, when=lambda: self.admin.journal_lines() >= lines)


def no_lua(src: Path) -> None:
    """A package whose shim is no Lua."""
    newer("0.3.0", "broken")(src)
    (src / "slurm_plugins/lua/gsub.lua").write_text("this is no Lua")


def no_service(src: Path) -> None:
    """A package whose service cannot start."""
    newer("0.4.0", "the service is broken")(src)
    (src / "slurm_plugins/service/__main__.py").write_text("raise ImportError('no such library')\n")
