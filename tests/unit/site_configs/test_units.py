"""The units for systemd: it understands every line, and none of them makes an agent hang or blind."""

from __future__ import annotations

import configparser
import subprocess
from pathlib import Path

import pytest

from tests.paths import REPOSITORY
from tests.requirements import require

UNITS = REPOSITORY / "site_configs/systemd"
SERVICES = sorted(unit.name for unit in UNITS.glob("*.service"))
# Each of these gives a service a mount namespace of its own (systemd.exec(5)), or a list of devices it may open.
MAKE_A_NAMESPACE = {
    "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateMounts", "ProtectKernelTunables",
    "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectProc", "ProcSubset",
    "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "BindPaths", "RootDirectory", "TemporaryFileSystem",
}  # fmt: skip
LIMIT_DEVICES = {"DevicePolicy", "DeviceAllow", "ProtectClock", "PrivateDevices"}


@pytest.fixture(scope="session")
def systemd() -> None:
    """systemd's tools; a container often has none."""
    require("systemd")


def keys(name: str) -> set[str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return set(parser["Service"])


def verified(folder: Path, name: str, text: str) -> str:
    """What systemd has to say about a unit whose program is there; nothing when it is well."""
    program = folder / name.removesuffix(".service")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = folder / name
    unit.write_text(text.replace("/opt/gsub/bin/", f"{folder}/"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    return done.stdout + done.stderr + (f"exit {done.returncode}" if done.returncode else "")


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize("name", SERVICES)
def test_systemd_finds_nothing_wrong(tmp_path, name):
    text = (UNITS / name).read_text()
    assert verified(tmp_path, name, text) == ""
    # and it would have told
    assert "NoNewPrivilegs" in verified(tmp_path, name, text.replace("NoNewPrivileges", "NoNewPrivilegs"))


def test_there_is_a_unit_for_each_daemon():
    assert SERVICES == ["gsub-act.service", "gsub-noded.service", "gsubd.service"]


def test_the_agent_can_be_started_where_a_file_server_hangs_and_sees_devices_that_come_late():
    assert not keys("gsub-noded.service") & (MAKE_A_NAMESPACE | LIMIT_DEVICES)


@pytest.mark.parametrize("name", SERVICES)
def test_a_daemon_comes_back_whatever_ended_it(name):
    text = (UNITS / name).read_text()
    for line in ("Restart=always", "StartLimitIntervalSec=0", "RestartPreventExitStatus=2", "Type=notify"):
        assert f"\n{line}\n" in text
    assert "\nWatchdogSec=" in text


@pytest.mark.usefixtures("systemd")
@pytest.mark.root
def test_folders_and_users_are_what_systemd_takes(tmp_path):
    """In a root of its own: what systemd-tmpfiles and systemd-sysusers make of our files."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/group").write_text("root:x:0:\n")
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    for tool, option, file in (
        ("systemd-sysusers", (), "gsubd.sysusers.conf"),
        ("systemd-sysusers", (), "gsub-act.sysusers.conf"),
        ("systemd-tmpfiles", ("--create",), "gsub-noded.tmpfiles.conf"),
    ):
        done = subprocess.run(
            [tool, f"--root={tmp_path}", *option, UNITS / file], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    users = (tmp_path / "etc/passwd").read_text()
    assert "gsub:x:890:890:" in users  # on every host the same
    assert "gsub-act:x:" in users
    assert (
        "slurm" not in (tmp_path / "etc/group").read_text()
    )  # Slurm's to make, with the number that a site gives it
    for folder in ("var/spool/gsub", "var/spool/gsub/new"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
