"""A broken or half-written installation when slurmctld starts: it starts, jobs pass, the site's own rules apply."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from site_configs.devcluster import Cluster, DevClusterError, daemons, supervisor
from site_configs.devcluster.machine import SYSTEM_PATH
from slurm_plugins.install.job_submit import chained, unchained
from slurm_plugins.install.layout import SHIM, Layout
from tests.slurm.decide.conftest import touch
from tests.unit.slurm_plugins.lua.lua import SHIM as SOURCES
from tests.waiting import wait_until

SITE = b"""\
function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.name == "refused" then
    slurm.log_user("site: not this one")
    return slurm.ERROR
  end
  job_desc.comment = "the site was here"
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
"""
READY = "gsub: asked after the site's own slurm_job_submit"
LEFT_OUT = "gsub is left out: "


@dataclass
class Controller:
    """The session's cluster as a site with rules of its own and gsub chained behind them."""

    cluster: Cluster
    libexec: Path
    waiting: str = ""

    @property
    def script(self) -> Path:
        return self.cluster.paths.etc / "job_submit.lua"

    @property
    def layout(self) -> Layout:
        paths = self.cluster.paths
        found = Layout.under(paths.root / "chained", paths.slurm_conf)
        return dataclasses.replace(found, libexec=self.libexec, run=paths.decision_socket.parent)

    def install(self) -> None:
        """The shim's files, whole, and the site's job_submit.lua with our lines."""
        if self.libexec.is_symlink():
            self.libexec.unlink()
        shutil.rmtree(self.libexec, ignore_errors=True)
        self.libexec.mkdir(parents=True)
        for folder in (self.libexec.parent, self.libexec):
            folder.chmod(0o755)
        for name in SHIM:
            shutil.copy(SOURCES / name, self.libexec / name)
            (self.libexec / name).chmod(0o644)
        self.script.write_bytes(chained(SITE, self.layout))

    def restarted(self, more: Mapping[str, str] | None = None) -> str:
        """Restart slurmctld, with `more` in its environment; what it has logged since."""
        log = self.cluster.paths.log / "slurmctld.log"
        before = log.stat().st_size
        self.cluster.stop("slurmctld")
        if more:
            argv, user = daemons.command(
                "slurmctld", self.cluster.spec, self.cluster.paths, self.cluster.ports, ""
            )
            supervisor.ask(
                self.cluster.paths.supervisor_socket,
                op="start",
                name="slurmctld",
                argv=self.cluster.rootfs.argv(argv, user=self.cluster.daemon_user(user)),
                env={"PATH": SYSTEM_PATH, "SLURM_CONF": str(self.cluster.paths.slurm_conf), **more},
                log=str(self.cluster.paths.log / "slurmctld.out"),
            )
        self.cluster.start("slurmctld")  # which waits until it answers, and starts none beside one that runs
        return log.read_bytes()[before:].decode(errors="replace")

    def works(self) -> None:
        """Jobs pass, the site's rules apply, and the job that waited before is still there."""
        sbatch = ["sbatch", "--hold", "--parsable", "--gpus-per-node=1", "--wrap=true"]
        passed = self.cluster.run(sbatch)
        assert passed.returncode == 0, passed.stderr
        refused = self.cluster.run([*sbatch, "--job-name=refused"])
        assert refused.returncode != 0
        assert "site: not this one" in refused.stderr
        jobs = f"{passed.stdout.strip()},{self.waiting}" if self.waiting else passed.stdout.strip()
        seen = self.cluster.run(["squeue", "-h", f"--jobs={jobs}", "--format=%T %k"], check=True).stdout
        assert set(seen.splitlines()) == {"PENDING the site was here"}
        assert len(seen.splitlines()) == jobs.count(",") + 1
        self.waiting = passed.stdout.strip()


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[Controller]:
    found = Controller(cluster, cluster.paths.root / "chained/libexec")
    before = found.script.read_text()
    found.install()
    try:
        log = found.restarted()
        assert READY in log
        assert LEFT_OUT not in log
        found.works()
        yield found
    finally:
        found.script.write_text(before)
        found.restarted()
        cluster.clean()
        shutil.rmtree(found.libexec.parent)


@pytest.mark.all_releases
def test_gsub_is_asked_after_the_site(controller: Controller) -> None:
    controller.install()
    controller.restarted()
    before = len(controller.cluster.decisions())
    controller.works()  # one that passes, and one that the site refuses
    wait_until(lambda: len(controller.cluster.decisions()) > before)
    assert len(controller.cluster.decisions()) == before + 1


def cut(name: str) -> Callable[[Path], None]:
    def broken(libexec: Path) -> None:
        text = (libexec / name).read_bytes()
        (libexec / name).write_bytes(text[: len(text) // 2])

    return broken


def gone(name: str) -> Callable[[Path], None]:
    return lambda libexec: (libexec / name).unlink()


def holds(name: str, text: str) -> Callable[[Path], None]:
    def broken(libexec: Path) -> None:
        (libexec / name).write_text(text)

    return broken


def unreadable(name: str) -> Callable[[Path], None]:
    return lambda libexec: (libexec / name).chmod(0)


def dangling(libexec: Path) -> None:
    shutil.rmtree(libexec)
    libexec.symlink_to("/nonexistent/gsub")


FILES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    # each of them under every Lua: tests/unit/slurm_plugins/lua/test_hook.py
    **{f"{name} is gone": (gone(name), name) for name in ("chain.lua", "gsub.lua", "json.lua")},
    **{f"{name} is cut in half": (cut(name), "lua:") for name in SHIM},
    "a syntax error": (holds("gsub.lua", "function ("), "gsub.lua:1:"),
    "a file of another program": (holds("chain.lua", "\x7fELF"), "chain.lua:1:"),
    "chain.lua cannot be read": (unreadable("chain.lua"), "ermission denied"),
    "gsub.lua cannot be read": (unreadable("gsub.lua"), "ermission denied"),
    "the folder is gone": (shutil.rmtree, "No such file"),
    "the folder is a link to nowhere": (dangling, "No such file"),
    "the folder is closed": (lambda libexec: libexec.chmod(0o700), "ermission denied"),
}


@pytest.mark.all_releases
@pytest.mark.parametrize("broken", FILES)
def test_slurmctld_starts_on_broken_files(controller: Controller, broken: str) -> None:
    fault, sign = FILES[broken]
    if controller.cluster.users == () and "read" in broken:
        pytest.skip("one user only: all files are theirs")
    controller.install()
    try:
        fault(controller.libexec)
        log = controller.restarted()
    finally:
        controller.libexec.chmod(0o755) if controller.libexec.is_dir() else None
    left_out = [line for line in log.splitlines() if LEFT_OUT in line]
    assert len(left_out) == 1
    assert sign in left_out[0]
    assert READY not in log
    controller.works()


@pytest.mark.all_releases
def test_slurmctld_starts_without_a_lua_module(controller: Controller) -> None:
    controller.install()
    log = controller.restarted({"LUA_PATH": "/nonexistent/?.lua", "LUA_CPATH": "/nonexistent/?.so"})
    assert f"{LEFT_OUT}" in log
    assert "module 'posix" in log
    controller.works()


@pytest.mark.all_releases
def test_slurmctld_starts_with_a_module_of_another_lua(controller: Controller) -> None:
    """lua-posix of 5.3 before that of Slurm's own 5.1."""
    modules = controller.cluster.rootfs.root / "usr/lib/x86_64-linux-gnu/lua/5.3"
    other = controller.libexec.parent / "other"
    shutil.copytree(modules, other, dirs_exist_ok=True)
    controller.install()
    log = controller.restarted({"LUA_CPATH": f"{other}/?.so;;"})
    left_out = [line for line in log.splitlines() if LEFT_OUT in line]
    assert len(left_out) == 1
    assert "undefined symbol" in left_out[0]
    controller.works()


@pytest.mark.all_releases
def test_a_mended_shim_is_taken_when_the_script_is_touched(controller: Controller) -> None:
    controller.install()
    (controller.libexec / "gsub.lua").unlink()
    controller.restarted()
    controller.install()
    log = controller.cluster.paths.log / "slurmctld.log"
    before = log.stat().st_size
    touch(controller.script)
    controller.works()
    assert READY in log.read_bytes()[before:].decode(errors="replace")


@pytest.mark.all_releases
@pytest.mark.parametrize("own", [b"function slurm_job_submit(\n", b"return 0\n", SITE + b"error('late')\n"])
def test_what_the_site_breaks_itself_is_as_without_us(controller: Controller, own: bytes) -> None:
    """slurmctld does not start with it, with our lines nor without; it runs again once it is mended."""
    said = []
    try:
        for text in (own, chained(own, controller.layout)):
            controller.script.write_bytes(text)
            log = controller.cluster.paths.log / "slurmctld.log"
            before = log.stat().st_size
            with pytest.raises(DevClusterError, match="ended at once"):
                controller.cluster.restart("slurmctld")
            lines = log.read_bytes()[before:].decode(errors="replace").splitlines()
            said.append([line.partition("] ")[2] for line in lines if "fatal" in line])
        assert unchained(controller.script.read_bytes()) == own
        assert said[0] == said[1] != []
    finally:
        controller.install()
        controller.cluster.start("slurmctld")
    controller.works()
