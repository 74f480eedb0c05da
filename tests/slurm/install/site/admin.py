"""The site's administrator: types `gsub admin ...` on the controller's host and on nodes, runs the daemons."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from site_configs.devcluster import config, gsubd
from site_configs.devcluster.machine import SYSTEM_PATH
from tests.slurm.install.site.dressed import Site
from tests.slurm.install.site.stream import Stream, wait_for

CONTROLLER: Final = "controller"


@dataclass(slots=True)
class Admin:
    """Does to a site what its administrator would; `windows` are the times at which slurmctld was bothered by it."""

    site: Site
    stream: Stream
    windows: list[tuple[float, float, bool]] = field(
        default_factory=list
    )  # the last: slurmctld ended by our own hand
    took: dict[str, float] = field(default_factory=dict)

    # --- typing -----------------------------------------------------------------------------------------------------

    @property
    def env(self) -> dict[str, str]:
        """What an administrator's shell has: nothing of the development cluster's own installation."""
        return {
            "PATH": f"{self.site.cluster.paths.venv}/bin:{SYSTEM_PATH}",
            "SLURM_CONF": str(self.site.cluster.paths.slurm_conf),
            "GSUB_SITE": str(self.site.prefix / "etc/site.toml"),
            "HOME": "/root",
            "GSUB_SETTLE_SECONDS": "4",
            "LANG": "C.UTF-8",
        }

    def argv(self, *words: str) -> list[str]:
        """`gsub admin WORDS` for this installation, whose ports are its own."""
        conf = f"--slurm-conf={self.site.cluster.paths.slurm_conf}"
        own = f"127.0.0.1:{self.site.cluster.ports.gsubd}"
        places = {"doctor": (conf, f"--metrics=http://{own}"), "mode": (f"--metrics={own}",)}.get(
            words[0], (conf,)
        )
        program = f"{self.site.cluster.paths.venv}/bin/gsub"
        return [program, "admin", words[0], f"--prefix={self.site.prefix}", *places, *words[1:]]

    def type(self, *words: str, on: str = CONTROLLER, code: int | None = 0) -> str:
        """Type `gsub admin WORDS`; what it says. Raises AssertionError: another exit code (None: any)."""
        with self.window():
            started = time.monotonic()
            if on == CONTROLLER:
                done = self.site.cluster.run(self.argv(*words), env=self.env, timeout=180)
            else:
                done = self.site.run_on(on, self.argv(*words), self.env)
            self.took[f"{' '.join(words)} ({on})"] = time.monotonic() - started
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, (
            f"gsub admin {' '.join(words)}: {done.returncode}\n{said}"
        )
        assert "Traceback" not in said, said
        return said

    def killed(self, *words: str, when: Callable[[], bool]) -> bool:
        """Type it, and kill -9 it as soon as `when`; whether it was still at work."""
        with self.window():
            child = self.site.cluster.popen(
                self.argv(*words),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            deadline = time.monotonic() + 120
            while child.poll() is None and not when():
                assert time.monotonic() < deadline, "it neither ends nor gets there"
                time.sleep(0.002)
            met = child.poll() is None
            if met:
                os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            return met

    def journal_lines(self) -> int:
        """How much installing has written down."""
        journal = self.site.prefix / "install/journal.jsonl"
        return journal.read_bytes().count(b"\n") if journal.exists() else 0

    @contextmanager
    def window(self, *, ended: bool = False) -> Iterator[None]:
        """A time in which clients of slurmctld may be cut off."""
        begin = time.time()
        try:
            yield
        finally:
            # a client that waited meanwhile may be answered, or told, somewhat later
            self.windows.append((begin - 1, time.time() + 5, ended))

    # --- daemons ----------------------------------------------------------------------------------------------------

    def restart_slurmctld(self, *, kill: bool = False) -> None:
        """In order, under the stream; or by kill -9, once what it acknowledged is on its disk."""
        if not kill:
            with self.window(ended=True):
                self.site.cluster.restart("slurmctld")
            return
        self.stream.pause()
        with self.window(ended=True):
            self.site.kill_slurmctld()
        self.stream.resume()

    def write_site_file(self) -> None:
        """The site file, on every host: several clusters share this machine, so ports and sockets are their own."""
        paths = self.site.cluster.paths
        text = config.site_toml(replace(self.site.cluster.spec, gsub=True), paths, self.site.cluster.ports)
        prefix = self.site.prefix
        for ours, theirs in (
            (paths.decision_socket, prefix / "run/decision.sock"),
            (paths.gsub_state, prefix / "state"),
        ):
            text = text.replace(str(ours), str(theirs))
        for place in (prefix, *map(self.site.disk, self.site.nodes)):
            (place / "etc").mkdir(exist_ok=True)
            (place / "etc/site.toml").write_text(text)

    def start_gsubd(self) -> None:
        """As its unit does it."""
        cluster, prefix = self.site.cluster, self.site.prefix
        argv = [
            f"{cluster.paths.venv}/bin/gsubd",
            f"--site={prefix}/etc/site.toml",
            f"--socket={prefix}/run/decision.sock",
            f"--state={prefix}/state",
            f"--listen=127.0.0.1:{cluster.ports.gsubd}",
            f"--api=127.0.0.1:{cluster.ports.api}",
        ]
        self.site.launch("gsubd", cluster.rootfs.argv(argv, user=cluster.daemon_user(gsubd.USER)))
        wait_for("gsubd", lambda: gsubd.answers(cluster.ports) and gsubd.keeps(cluster.ports))

    def restart_gsubd(self) -> None:
        """As systemd does it."""
        self.stop("gsubd")
        self.start_gsubd()

    def start_agents(self) -> None:
        """As their units do it."""
        prefix = self.site.prefix
        for node in self.site.nodes:
            argv = [
                f"{self.site.cluster.paths.venv}/bin/gsub-noded",
                f"--site={prefix}/etc/site.toml",
                f"--node={node}",
                f"--run={prefix}/run-noded",
                f"--spool={prefix}/spool",
                f"--slurmd-spool={self.site.root}/spool/{node}",
            ]
            self.site.start_agent(node, argv)

    def stop(self, *names: str) -> None:
        """Stop daemons."""
        for name in names:
            self.site.cluster.stop(name)

    # --- looking ----------------------------------------------------------------------------------------------------

    def decisions(self, mode: str = "") -> list[dict[str, Any]]:
        """What gsubd decided so far, in that mode."""
        found = []
        for file in sorted((self.site.prefix / "state").glob("decisions.jsonl*")):
            found += [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        return [each for each in found if each["kind"] == "decision" and mode in ("", each["mode"])]

    def more_decisions(self, mode: str, count: int = 2) -> None:
        """Wait until this many more have been made in that mode."""
        want = len(self.decisions(mode)) + count
        wait_for(f"decisions in {mode}", lambda: len(self.decisions(mode)) >= want)

    def files(self) -> list[str]:
        """All that lies below gsub's prefix, on all hosts."""
        places = [self.site.prefix, *map(self.site.disk, self.site.nodes)]
        return sorted(str(path) for place in places for path in place.rglob("*") if not path.is_dir())

    # --- gsub's own package -----------------------------------------------------------------------------------------

    @contextmanager
    def other_package(self, change: Callable[[Path], None]) -> Iterator[None]:
        """Another version of gsub in the place of the one that is there, as a package's upgrade puts it, for a while.

        `change` gets the folder of its sources.
        """
        src = self.site.cluster.paths.src
        fresh, old = src.with_name("src.other"), src.with_name("src.before")
        shutil.copytree(src, fresh)
        change(fresh)
        src.rename(old)
        fresh.rename(src)
        try:
            yield
        finally:
            shutil.rmtree(src)
            old.rename(src)


def newer(version: str, remark: str) -> Callable[[Path], None]:
    """Makes a package another version, with another shim that does the same."""

    def change(src: Path) -> None:
        about = src / "gsub/__init__.py"
        about.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', about.read_text()))
        shim = src / "slurm_plugins/lua/gsub.lua"
        shim.write_text(f"-- {remark}\n{shim.read_text()}")

    return change
