"""The .deb on a bare Debian 12 and 13: installs without a network, leaves Slurm alone, and purge leaves nothing."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsub import __version__
from tests.packages import slurm
from tests.packages.bare import BareHost, listing
from tests.packages.conftest import NEXT, Built

needs_chroots = pytest.mark.needs("chroots")
SUITES = ("bookworm", "trixie")
PACKAGES = ("gsub", "gsub-service", "gsub-node")
UNITS = ("gsubd", "gsub-act", "gsub-noded")
OF_OTHERS = (
    # apt's, dpkg's and passwd's own notes of what they did
    "var/lib/dpkg/status-old", "var/log/dpkg.log", "var/log/apt", "var/cache/apt", "var/lib/apt", "var/cache/debconf",
    "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-",
    # those of ldconfig, and of systemd's trigger, which are made again at any time
    "var/cache/ldconfig", "run/systemd",
    # Slurm's state and munge's, the job's, and where the packages lay
    "var/lib/slurm", "var/log/slurm", "run/slurmctld.pid", "run/slurmd.pid", "run/munge", "var/lib/munge",
    "var/log/munge", "root/packages", "proc", "sys",
)  # fmt: skip
"""Left out of the comparison."""

pytestmark = [pytest.mark.root, needs_chroots]


@pytest.fixture(params=SUITES)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BareHost]:
    with BareHost(request.param, tmp_path) as made:
        slurm.set_up(made)
        yield made


def install(host: BareHost, packages: dict[str, Path], *names: str) -> str:
    """What apt said. There is no network: what the packages need lies in apt's cache."""
    wanted = [packages[name] for name in names or PACKAGES]
    host.copy(*wanted, to="/root/packages")
    paths = " ".join(f"/root/packages/{path.name}" for path in wanted)
    done = host.run(f"apt-get -q -y install {paths}")
    return done.stdout + done.stderr


def status(host: BareHost, package: str) -> str:
    """As dpkg has it: `installed`, `config-files`...; empty when it knows nothing of it."""
    return host.run(f"dpkg-query -W -f '${{db:Status-Status}}' {package}", check=False).stdout


def purge(host: BareHost, *names: str) -> str:
    done = host.run(f"apt-get -q -y purge {' '.join(names or PACKAGES)} && apt-get -q -y autoremove --purge")
    return done.stdout + done.stderr


def compare(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """The paths that are not as they were."""
    paths = sorted(before.keys() | after.keys())
    return {
        path: (before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)
    }


def check_installed(host: BareHost) -> None:
    """Users, folders, owners, libraries and units of all three packages."""
    assert host.run("gsub --version").stdout.strip() == f"gsub {__version__}"
    assert host.run(f"dpkg --verify {' '.join(PACKAGES)}").stdout == ""
    assert "gsub:x:890:890:" in host.run("getent passwd gsub gsub-act").stdout
    assert "slurm" in host.run("id -nG gsub").stdout.split()
    owners = "stat -c '%U:%G %a' /var/lib/gsub /var/spool/gsub /var/spool/gsub/new /run/gsub-noded /run/gsub-noded/new"
    assert host.run(owners).stdout.splitlines() == [
        "gsub:gsub 750", "root:root 700", "root:root 700", "root:root 755", "root:root 700",
    ]  # fmt: skip
    others = "find /opt/gsub /usr/bin/gsub ( ! -user root -o ! -group root -o -perm /022 ) ! -type l"
    assert host.run(others.replace("(", "'('").replace(")", "')'")).stdout == ""
    # every library that the wheels bring finds what it needs on this release
    missing = "find /opt/gsub -name '*.so*' -type f -exec ldd {} + 2>&1 | grep 'not found'"
    assert host.run(missing, check=False).stdout == ""
    for program in ("gsub", "gsubd", "gsub-noded", "gsub-act"):
        assert host.run(f"/opt/gsub/bin/{program} --help").stdout
    paths = " ".join(f"/usr/lib/systemd/system/{unit}.service" for unit in UNITS)
    assert host.run(f"systemd-analyze verify --man=no {paths}").stderr == ""
    exposed = exposures(host, paths)
    assert exposed.keys() == set(UNITS)
    assert exposed["gsubd"] < 2.0 > exposed["gsub-act"]
    enabled = host.root / "etc/systemd/system/multi-user.target.wants"
    assert {path.name for path in enabled.glob("gsub*")} == {"gsubd.service", "gsub-noded.service"}
    # a user's Python, or one that sets PYTHONPATH, gets nothing in
    (host.root / "tmp/click.py").write_text("raise SystemExit(9)\n")
    assert host.run("cd /tmp && PYTHONPATH=/tmp gsub --version", user=slurm.USER).returncode == 0
    (host.root / "tmp/click.py").unlink()


def exposures(host: BareHost, paths: str) -> dict[str, float]:
    """What systemd-analyze says of how much a unit may do, 0 to 10."""
    said = host.run(f"systemd-analyze security --offline=true --no-pager {paths}").stdout
    return {
        name: float(level) for name, level in re.findall(r"exposure level for (\S+)\.service: ([\d.]+)", said)
    }


def start_unit(host: BareHost, name: str) -> None:
    """Its program, as its user, in the folders that systemd makes for it."""
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(host.root / f"usr/lib/systemd/system/{name}.service")
    service = unit["Service"]
    user = service.get("User", "root")
    if "RuntimeDirectory" in service:
        host.run(f"install -d -o {user} -g {user} /run/{service['RuntimeDirectory']}")
    env = slurm.EMULATED if name == "gsub-noded" else {}
    host.start(name, service["ExecStart"].split(), user=user if user != "root" else None, env=env)


def admin(host: BareHost, words: str, *, code: int = 0) -> str:
    """What `gsub admin WORDS` said; it must end with `code`."""
    done = host.run(f"gsub admin {words}", check=False, timeout=300)
    assert done.returncode == code, f"gsub admin {words}\n{done.stdout}{done.stderr}\n{host.tails()}"
    return done.stdout


def hooks_in_place(host: BareHost) -> bool:
    """Whether `install` has nothing left to wait for; the service hears of a node when its agent reports."""
    done = host.run("gsub admin install --yes", check=False)
    return done.returncode == 0 and "!!" not in done.stdout


def errors(host: BareHost) -> list[str]:
    """What doctor finds that is wrong."""
    said = json.loads(host.run("gsub admin doctor --json", check=False).stdout)
    return [f"{one['check']}: {one['seen']}" for one in said["findings"] if one["level"] == "error"]


def test_from_nothing_to_a_cluster_with_gsub_and_back(host: BareHost, built: Built):
    slurm.start(host)
    slurm.install_driver(host)
    slurm.run_job(host)
    before = listing(host.root, OF_OTHERS)

    said = install(host, built[host.suite])
    assert "gsub admin install --plan" in said  # what to do next
    check_installed(host)
    assert slurm.run_job(host)
    admin(host, "install --yes")
    for unit in ("gsubd", "gsub-noded"):
        start_unit(host, unit)
    host.wait("gsub's hooks in slurm.conf", lambda: hooks_in_place(host))
    assert "Prolog=" in (host.root / "etc/slurm/slurm.conf").read_text()
    assert errors(host) == []
    admin(host, f"selftest --partition gpu --user {slurm.USER} --yes --output /root/packages/selftest.json")
    assert slurm.node_state(host) == "idle"

    for unit in ("gsub-noded", "gsubd"):
        host.stop(unit)
    admin(host, "rollback --yes --settle 1")
    # the store outlives the package, not its purge
    host.run(f"apt-get -q -y remove {' '.join(PACKAGES)}")
    assert (host.root / "var/lib/gsub/store.db").exists()
    assert not (host.root / "opt/gsub/bin").exists()
    purge(host)
    assert compare(before, listing(host.root, OF_OTHERS)) == {}
    assert slurm.run_job(host)


@pytest.mark.parametrize("host", SUITES[1:], indirect=True)
def test_a_login_node_and_a_compute_node_get_what_they_need_and_a_sites_own_user_stays(
    host: BareHost, built: Built
):
    host.run("groupadd --system --gid 777 gsub && useradd --system --uid 777 --gid gsub gsub")
    install(host, built[host.suite], "gsub")
    assert host.run("gsub --version").returncode == 0
    assert not list(host.root.glob("usr/lib/systemd/system/gsub*"))
    conf = host.root / "etc/slurm/slurm.conf"
    whole = conf.read_text()
    conf.write_text(whole + "Prolog=/usr/libexec/gsub/prolo[g]\n")  # which a login node does not run
    host.run("apt-get -q -y remove gsub")
    conf.write_text(whole)
    install(host, built[host.suite], "gsub", "gsub-node")
    assert not (host.root / "usr/lib/systemd/system/gsubd.service").exists()
    assert "lua-posix" not in host.run("dpkg-query -W -f '${Package}\\n'").stdout.split()
    assert (host.root / "usr/libexec/gsub/prolog").exists()
    assert host.run("id -u gsub").stdout.strip() == "777"
    purge(host, "gsub", "gsub-node")
    assert host.run("id -u gsub").stdout.strip() == "777"
    assert not (host.root / "usr/libexec/gsub").exists()


@pytest.mark.parametrize("host", SUITES[:1], indirect=True)
def test_a_package_does_not_go_while_slurm_names_it(host: BareHost, built: Built):
    install(host, built[host.suite])
    etc = host.root / "etc/slurm"
    for path, line in (
        (etc / "slurm.conf", "Prolog=/usr/libexec/gsub/prolo[g]\n"),
        (etc / "slurm.conf", "# >>> gsub: a comment\nProlog=/usr/bin/tru[ez] #gsub#\n# <<< gsub\n"),
        (etc / "hooks.conf", "  Epilog=/usr/libexec/gsub/epilog.d/*\n"),
        (etc / "job_submit.lua", 'pcall(dofile, "/usr/libexec/gsub/chain.lua")\n'),
    ):
        before = path.read_text() if path.exists() else ""
        path.write_text(before + line)
        for verb in ("remove", "purge"):
            done = host.run(f"apt-get -q -y {verb} {' '.join(PACKAGES)}", check=False)
            assert done.returncode != 0
            assert f"/etc/slurm/{path.name} still names gsub" in done.stdout + done.stderr
            assert "gsub admin rollback" in done.stdout + done.stderr
        path.write_text(before)
    assert {status(host, package) for package in PACKAGES} == {"installed"}
    assert host.run("gsub --version").returncode == 0
    # what is commented out names nothing
    for path, comment in ((etc / "slurm.conf", "#gsub:was# "), (etc / "job_submit.lua", "-- ")):
        path.write_text((path.read_text() if path.exists() else "") + f"{comment}/usr/libexec/gsub/prolog\n")
    purge(host)
    assert {status(host, package) for package in PACKAGES} == {""}


def _has_new(folder: Path) -> bool:
    """Whether dpkg has unpacked a file there; a folder may go while it is looked at."""
    try:
        return any(folder.rglob("*.dpkg-new"))
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("host", SUITES[1:], indirect=True)
def test_an_upgrade_under_a_running_job_and_one_that_breaks_leave_slurm_alone(host: BareHost, built: Built):
    slurm.start(host)
    install(host, built[host.suite])
    job = host.run(
        "sbatch --parsable --output=/dev/null --chdir=/tmp --gpus=1 --wrap 'sleep 600'", user=slurm.USER
    ).stdout.strip()
    host.wait("the job", lambda: slurm.job_state(host, job) == "RUNNING")
    conf = (host.root / "etc/slurm/slurm.conf").read_bytes()

    later = built.later(host.suite)
    host.copy(*later.values(), to="/root/packages")
    paths = " ".join(f"/root/packages/{later[name].name}" for name in PACKAGES)
    environment = host.root / "opt/gsub"

    def unharmed() -> bool:
        still = slurm.job_state(host, job) == "RUNNING" and slurm.node_state(host) == "mix"
        return still and (host.root / "etc/slurm/slurm.conf").read_bytes() == conf

    # dpkg ends in the middle of its work, as when the power goes
    host.start("dpkg", ["dpkg", "--unpack", *paths.split()])
    host.wait("dpkg at work", lambda: _has_new(environment))
    host.stop("dpkg", signal.SIGKILL)
    assert unharmed()

    # a script of the new package fails
    host.run(f"dpkg --unpack {paths}")
    script = host.root / "var/lib/dpkg/info/gsub.postinst"
    whole = script.read_text()
    script.write_text("#!/bin/sh\nexit 1\n")
    assert host.run("dpkg --configure -a", check=False).returncode != 0
    assert unharmed()
    script.write_text(whole)

    host.run("dpkg --configure -a")
    assert host.run("gsub --version").stdout.strip() == f"gsub {NEXT}"
    assert host.run(f"dpkg --verify {' '.join(PACKAGES)}").stdout == ""
    assert unharmed()
    host.run(f"scancel {job}")
    assert slurm.run_job(host)


@pytest.mark.parametrize("host", SUITES[1:], indirect=True)
def test_an_upgrade_on_a_disk_that_is_full_leaves_the_version_that_was_there(host: BareHost, built: Built):
    host.mount("tmpfs", "/opt", "size=200m")
    install(host, built[host.suite])
    used = shutil.disk_usage(f"/proc/{host.pid}/root/opt").used
    host.mount("tmpfs", "/opt", f"remount,size={used + (10 << 20)}")
    later = built.later(host.suite)
    host.copy(*later.values(), to="/root/packages")
    paths = " ".join(f"/root/packages/{later[name].name}" for name in PACKAGES)
    done = host.run(f"dpkg --install {paths}", check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    host.run("dpkg --configure -a", check=False)
    assert host.run("gsub --version").stdout.strip() == f"gsub {__version__}"
    assert host.run("/opt/gsub/bin/gsubd --help").returncode == 0
