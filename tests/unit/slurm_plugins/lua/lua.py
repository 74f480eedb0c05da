"""The shim under a Lua of this machine: the interpreters, and a process that stands for slurmctld."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from site_configs.devcluster.machine import locked
from site_configs.devcluster.rootfs import install_packages
from site_configs.devcluster.spec import DevClusterError, cache_home
from tests.paths import REPOSITORY

VERSIONS = ("5.1", "5.2", "5.3", "5.4")
SOURCE = REPOSITORY / "slurm_plugins/lua"
COPY = "SHIM_COPY"
"""Variable that names a copy of the shim to run the tests on; see branches.py."""
SHIM = Path(os.environ.get(COPY, SOURCE))
HARNESS = Path(__file__).with_name("harness.lua")

NO_VAL16, NO_VAL = 0xFFFE, 0xFFFFFFFE
_TEXTS = """account admin_comment array_inx comment cpus_per_tres dependency exc_nodes extra features gres licenses
    mem_per_tres name partition prefer qos req_nodes reservation tres_per_job tres_per_node tres_per_socket
    tres_per_task work_dir"""
_SHORT = """cores_per_socket cpus_per_task ntasks_per_core ntasks_per_node ntasks_per_socket ntasks_per_tres pn_min_cpus
    requeue shared sockets_per_node threads_per_core"""
_LONG = """het_job_offset max_cpus max_nodes min_cpus min_nodes num_tasks pn_min_tmp_disk req_switch time_limit time_min
    wait4switch"""
_FLAGS = "begin_time bitflags contiguous immediate ntasks_per_board segment_size"

# What job_desc of Slurm 22.05 to 26.05 holds: "text", or what a number reads as that is not set (read off a real one).
KINDS: Mapping[str, str | int] = {
    name: kind
    for names, kind in ((_TEXTS, "text"), (_SHORT, NO_VAL16), (_LONG, NO_VAL), (_FLAGS, 0))
    for name in names.split()
}
# These two have no value that means "not set": they read as nil. The kind only says that they are numbers.
MEMORY: Mapping[str, str] = {"min_mem_per_node": "memory", "min_mem_per_cpu": "memory"}


class LuaMissingError(Exception):
    """A Lua, or lua-posix for it, cannot be had on this machine."""


@lru_cache
def environment(version: str) -> Mapping[str, str]:
    """The variables under which `luaX.Y` finds lua-posix. Installs both where root may; raises LuaMissingError."""
    if shutil.which(f"lua{version}") is None or not _works("5.1", {}):
        try:
            install_packages([*(f"lua{v}" for v in VERSIONS), "lua-posix"], say=lambda _: None)
        except DevClusterError as error:
            raise LuaMissingError(str(error)) from None
    for base in ("", str(cache_home() / "trixie"), str(cache_home() / "lua-posix")):
        found = {
            "LUA_CPATH": f"{base}/usr/lib/x86_64-linux-gnu/lua/{version}/?.so;;",
            "LUA_PATH": f"{base}/usr/share/lua/{version}/?.lua;;",
        }
        if _works(version, found):
            return found
        if base.endswith("trixie"):
            _fetch_newer()
    raise LuaMissingError(f"no lua-posix for Lua {version} here")


def _works(version: str, variables: Mapping[str, str]) -> bool:
    needed = ("sys.socket", "poll", "errno", "fcntl", "unistd", "sys.stat", "time")
    code = "".join(f"require('posix.{name}') " for name in needed)
    done = subprocess.run(
        [f"lua{version}", "-e", code], env={**os.environ, **variables}, capture_output=True, check=False
    )
    return done.returncode == 0


def _fetch_newer() -> None:
    """Unpack trixie's lua-posix aside: bookworm's has no build for Lua 5.4."""
    target = cache_home() / "lua-posix"
    cache_home().mkdir(parents=True, exist_ok=True)
    with locked(cache_home() / "lua-posix.lock"), tempfile.TemporaryDirectory() as folder:
        if target.exists():
            return
        here = Path(folder)
        here.chmod(0o755)
        (here / "sources.list").write_text("deb http://deb.debian.org/debian trixie main\n")
        for name in ("state/lists/partial", "cache/archives/partial"):
            (here / name).mkdir(parents=True)
        apt = ["apt-get", "-q", "-o", f"Dir::State={here}/state", "-o", f"Dir::Cache={here}/cache"]
        apt += ["-o", f"Dir::Etc::SourceList={here}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null"]
        apt += ["-o", "APT::Sandbox::User=root", "-o", "Acquire::Check-Valid-Until=false"]
        for command in ([*apt, "update"], [*apt, "download", "lua-posix"]):
            subprocess.run(command, cwd=here, capture_output=True, check=False)
        for package in here.glob("lua-posix_*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, here / "unpacked"], check=True)
            shutil.move(here / "unpacked", target)


def literal(value: Any) -> str:
    """A Python value as a Lua expression; text may be bytes, for those that are no UTF-8."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        return '"' + "".join(chr(b) if chr(b).isalnum() and b < 128 else f"\\{b:03d}" for b in raw) + '"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"[{literal(k)}]={literal(v)}" for k, v in value.items()) + "}"
    return "{" + ",".join(literal(item) for item in value) + "}"


@dataclass(frozen=True)
class Outcome:
    """What slurm_job_submit did. Texts hold one character a byte."""

    rc: int | None
    raised: str | None
    job: dict[str, Any]
    env: dict[str, str] | None
    said: list[str]
    log: list[str]
    writes: list[str]
    seconds: float


@dataclass
class Shim:
    """A Lua process with the shim loaded, as slurmctld holds one."""

    version: str
    folder: Path = SHIM
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        # SIGPIPE stays ignored, as slurmctld has it.
        self.process = subprocess.Popen(
            [f"lua{self.version}", str(HARNESS), str(self.folder / "gsub.lua")],
            env={**os.environ, **environment(self.version)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            restore_signals=False,
        )
        self.order("memory")  # loaded, or said why not

    def order(self, order: str, **values: Any) -> dict[str, Any]:
        text = literal({"order": order, **values}).encode()
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(b"%d\n%s" % (len(text), text))
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "Lua died"
        found: dict[str, Any] = json.loads(line)
        return found

    def setup(self, **options: Any) -> list[str]:
        found: list[str] = self.order("setup", options=options)["log"]
        return found

    def submit(
        self,
        job: Mapping[str, Any],
        *,
        env: Mapping[str, Any] | None = None,
        script: bytes | None = b"#!/bin/sh\ntrue\n",
        uid: int = 1000,
        scripted: bool = False,
        without: Sequence[str] = (),
    ) -> Outcome:
        """Submit a job with these fields of job_desc; `without` names fields that this Slurm does not have."""
        batch = script is not None
        kinds = {name: kind for name, kind in {**KINDS, **MEMORY}.items() if name not in without}
        values = {"user_id": uid, **job, **({"script": script} if batch else {})}
        reply = self.order(
            "submit",
            kinds=kinds,
            job=values,
            env=(env or {}) if batch else None,
            uid=uid,
            scripted=scripted,
        )
        reply["job"].pop("script", None)
        reply["job"].pop("user_id", None)
        return Outcome(
            rc=reply.get("rc"),
            raised=reply.get("raised"),
            job=reply["job"] or {},
            env=reply.get("env"),
            said=reply["said"],
            log=reply["log"],
            writes=reply["writes"],
            seconds=reply["seconds"],
        )

    def request(
        self,
        job: Mapping[str, Any],
        *,
        env: Mapping[str, Any] | None = None,
        script: bytes | None = b"#!/bin/sh\ntrue\n",
        uid: int = 1000,
        identity: int = 1,
        counters: Mapping[str, int] | None = None,
    ) -> bytes:
        """The line that asks about a job."""
        values = {"user_id": uid, **job, **({} if script is None else {"script": script})}
        reply = self.order(
            "request",
            kinds={**KINDS, **MEMORY},
            job=values,
            env=None if script is None else env or {},
            uid=uid,
            id=identity,
            counters=counters or {},
        )
        line: str = reply["line"]
        return line.encode("latin-1")

    def modify(
        self,
        change: Mapping[str, Any],
        record: Mapping[str, Any],
        *,
        uid: int = 1000,
        scripted: bool = False,
        broken: bool = False,
    ) -> dict[str, Any]:
        """What comes of a change of a job: rc, said, log."""
        kinds = {**KINDS, **MEMORY}
        return self.order(
            "modify", kinds=kinds, job=change, record=record, uid=uid, scripted=scripted, broken=broken
        )

    def feed(
        self, lines: Sequence[bytes], job: Mapping[str, Any], *, env: Mapping[str, str] | None
    ) -> list[dict[str, Any]]:
        """What each answer does to a fresh copy of a job: a dict with writes, job, env, and raised or dropped.

        A line holds no newline, and is not empty.
        """
        found: list[dict[str, Any]] = self.order(
            "feed", lines=b"\n".join(lines), kinds={**KINDS, **MEMORY}, job=job, env=env
        )["replies"]
        return found

    def close(self) -> None:
        if self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


@contextlib.contextmanager
def running(version: str, folder: Path = SHIM) -> Iterator[Shim]:
    """A Lua process with the shim, ended at the end."""
    shim = Shim(version, folder)
    try:
        yield shim
    finally:
        shim.close()
