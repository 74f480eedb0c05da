"""The packages on a Debian that is booted: systemd starts the units, watches them and gives them their sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.packages import slurm
from tests.packages.booted import SLURM, BootedHost, booted, idle, unified
from tests.packages.conftest import Built
from tests.releases import can_make_chroots
from tests.waiting import wait_until

OURS = ("gsubd", "gsub-noded")

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not can_make_chroots() or unified() is None, reason="nothing can be booted here"),
]


@pytest.fixture(params=["bookworm", "trixie"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BootedHost]:
    with booted(request.param, tmp_path) as made:
        yield made


def main_pid(host: BootedHost, unit: str) -> int:
    return int(host.run(f"systemctl show --property=MainPID --value {unit}").stdout)


def is_another(host: BootedHost, unit: str, pid: int) -> bool:
    return main_pid(host, unit) not in (0, pid)


def up(host: BootedHost) -> bool:
    return all(host.unit(unit) == "active" for unit in OURS)


def decides(host: BootedHost) -> bool:
    """Whether gsubd answers, with what Slurm has in view."""
    ask = "import urllib.request as r; r.urlopen('http://127.0.0.1:6830/healthz', timeout=2)"
    return host.run(f'/opt/gsub/bin/python3 -c "{ask}"', check=False).returncode == 0


def put_on(host: BootedHost) -> None:
    """Install as the guide has it: hooks last, when the node has been heard of."""
    host.run("gsub admin install --yes")
    host.wait("the node to be heard of", lambda: not waiting(host), 120)
    host.run("gsub admin install --yes")
    idle(host)
    host.wait("slurmd to run the hooks", lambda: hooked(host))


def waiting(host: BootedHost) -> bool:
    """Whether the service has yet to hear of a node."""
    return "heard" in host.run("gsub admin install --plan").stdout


def hooked(host: BootedHost) -> bool:
    """Whether a job is seen on the node: slurmd takes a new configuration a moment after slurmctld."""
    job = slurm.run_job(host)
    with suppress(AssertionError):
        return wait_until(lambda: host.run(f"gsub usage {job}", check=False).returncode == 0, 5)
    return False


def recorded(host: BootedHost) -> str:
    """Run a job; wait for its record, and return what is told of it."""
    job = slurm.run_job(host)
    told = ""

    def ended() -> bool:
        nonlocal told
        told = host.run(f"gsub usage {job}", check=False).stdout
        return "COMPLETED" in told

    try:
        host.wait(f"the record of job {job}", ended, 90)
    except AssertionError as error:
        raise AssertionError(
            f"{error}\n{told}\n{host.journal('gsub-noded')}\n{host.journal('gsubd')}"
        ) from None
    return told


def test_from_nothing_to_observe_through_a_crash_a_hang_and_a_power_cut_and_off_again(
    host: BootedHost, built: Built
):
    conf = (host.root / "etc/slurm/slurm.conf").read_bytes()
    host.copy(*built[host.suite].values(), to="/root/packages")
    host.run("apt-get -q -y install /root/packages/*.deb")
    host.wait("gsubd and gsub-noded", lambda: up(host))
    host.wait("decisions", lambda: decides(host))
    assert host.unit("gsub-act") == "inactive"  # not before the site says enforce
    assert host.run("gsub admin doctor --json", check=False).returncode in (0, 1)

    put_on(host)
    assert "1 GPU" in recorded(host)
    host.run("systemctl restart slurmctld")
    idle(host)

    # killed: begun anew; hung: its watchdog has it killed, and begun anew
    for signal in ("KILL", "STOP"):
        before = main_pid(host, "gsubd")
        host.run(f"kill -{signal} {before}")
        host.wait(f"a new gsubd after SIG{signal}", partial(is_another, host, "gsubd", before))
        host.wait("decisions", lambda: decides(host))
    host.run(f"kill -KILL {main_pid(host, 'gsub-noded')}")
    host.wait("a new gsub-noded", lambda: up(host))
    assert "1 GPU" in recorded(host)

    host.power_cut()
    host.wait("Slurm and gsub after the power cut", lambda: up(host) and slurm.node_state(host) == "idle", 90)
    assert "1 GPU" in recorded(host)

    host.run("gsub admin rollback --yes")
    assert (host.root / "etc/slurm/slurm.conf").read_bytes() == conf
    host.run("apt-get -q -y purge gsub gsub-service gsub-node")
    host.run(f"systemctl restart {SLURM}")
    idle(host)
    assert slurm.run_job(host)
    left = host.run(
        "find / -xdev -name '*gsub*' -not -path '/proc/*' -not -path '/root/*' -not -path '/var/cache/apt/*'"
    )
    assert [line for line in left.stdout.splitlines() if "/systemd" not in line] == []


@pytest.mark.parametrize("host", ["trixie"], indirect=True)
def test_the_units_stop_in_good_order(host: BootedHost, built: Built):
    host.copy(*built[host.suite].values(), to="/root/packages")
    host.run("apt-get -q -y install /root/packages/*.deb")
    host.wait("gsubd and gsub-noded", lambda: up(host))
    for unit in OURS:
        host.run(f"systemctl stop {unit}", timeout=30)
        assert host.run(f"systemctl show --property=Result --value {unit}").stdout.strip() == "success"
    assert host.run("pgrep -f [/]opt/gsub/bin", check=False).stdout == ""
    assert not (host.root / "run/gsub/decision.sock").exists()
