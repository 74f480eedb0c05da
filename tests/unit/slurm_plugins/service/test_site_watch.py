"""The site file while gsubd runs, and what systemd is told."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from site_configs.site import SiteError, load_site
from slurm_plugins.service.notify import Notifier
from slurm_plugins.service.site_watch import SiteFile
from tests.unit.slurm_plugins.service.serving import SITE, Serving, question

BAD = 'cluster = "test"\n[policy]\nmode = "enforec"\n'


def put(path: Path, text: str) -> None:
    """Replace a file in one step, as editors and configuration management do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_change_is_taken_when_it_has_stood(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(mode="observe"))
    file = SiteFile(path)
    assert not file.changed()
    put(path, SITE.format(mode="advise"))
    assert not file.changed()  # it may be half written
    assert file.changed()
    assert file.read() and file.taken.site.policy.mode == "advise" and not file.changed()


def test_a_bad_file_leaves_the_one_in_force_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(mode="advise"))
    file = SiteFile(path)
    for text in (BAD, "x = [", BAD):
        put(path, text)
        assert not file.read()
        assert file.taken.site.policy.mode == "advise" and not file.ok
    assert caplog.text.count("not taken") == 1 and "enforec" in caplog.text
    path.unlink()
    assert not file.read() and file.taken.site.policy.mode == "advise"
    put(path, SITE.format(mode="observe"))
    assert file.read() and file.ok
    assert file.taken.site == load_site(path)


@pytest.mark.case("A10")
@pytest.mark.parametrize("change", ["mode", "owner"])
def test_a_file_that_was_made_readable_is_looked_at_again(tmp_path: Path, change: str) -> None:
    """Neither its time nor its size nor its number is another."""
    path = tmp_path / "site.toml"
    path.write_text(SITE.format(mode="advise"))
    path.chmod(0o600)
    file = SiteFile(path)
    if change == "mode":
        path.chmod(0o644)
    else:
        os.chown(path, os.getuid(), os.getgid())
    assert not file.changed() and file.changed()


def test_the_first_one_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(SiteError):
        SiteFile(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text(BAD)
    with pytest.raises(SiteError, match="enforec"):
        SiteFile(tmp_path / "bad.toml")


def test_without_a_file_gsub_observes() -> None:
    file = SiteFile(None)
    assert file.taken.site.mode_for(partition="gpu", account="", uid=0) == "observe"
    assert not file.changed() and file.read()


def test_a_change_of_the_topology_file_counts_too(tmp_path: Path) -> None:
    path, topology = tmp_path / "site.toml", tmp_path / "topology.conf"
    topology.write_text("SwitchName=l1 Nodes=n1\n")
    path.write_text('cluster = "c"\n[topology]\nfile = "topology.conf"\n')
    file = SiteFile(path)
    topology.write_text("SwitchName=l1 Nodes=n[1-2]\n")
    assert [file.changed(), file.changed()] == [False, True]


@pytest.mark.slow
def test_the_service_takes_a_new_file_by_itself_and_keeps_the_old_one_for_a_bad_one(service: Serving) -> None:
    peer = service.peer()
    assert peer.ask()["mode"] == "observe"
    put(service.site, SITE.format(mode="advise"))
    service.wait(lambda: service.daemon.site.taken.site.policy.mode == "advise")
    assert peer.ask()["mode"] == "advise"
    put(service.site, BAD)
    service.wait(lambda: not service.daemon.site.ok)
    assert peer.ask()["mode"] == "advise"
    assert service.metric("gsub_site_file_ok") == 0
    assert service.metric('gsub_site_file_reads_total{result="failed"}') == 1
    put(service.site, SITE.format(mode="enforce"))
    service.do(service.daemon.reload())  # what SIGHUP does: at once
    assert peer.ask()["mode"] == "enforce"
    assert service.metric("gsub_site_file_ok") == 1


def test_a_decision_in_enforce_carries_its_id_and_is_joined_by_it(service: Serving) -> None:
    put(service.site, SITE.format(mode="enforce"))
    service.do(service.daemon.reload())
    peer = service.peer()
    peer.send(question(id=8, env={"SLURM_NNODES": "1"}))
    answer = peer.read()
    assert answer["edits"]["admin_comment"] == f"gsub:{answer['decision']}"
    assert answer["env"]["GSUB_DECISION"] == answer["decision"]


# --- systemd --------------------------------------------------------------------------------------------------------


@pytest.fixture
def systemd(tmp_path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.settimeout(30)
    listening.bind(str(tmp_path / "notify"))
    return listening


def test_systemd_hears(tmp_path: Path, systemd: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"})
    assert notifier.watchdog == 30
    notifier.send("READY=1", "STATUS=x")
    assert systemd.recv(100) == b"READY=1\nSTATUS=x"


def test_an_abstract_socket() -> None:
    name = f"gsub-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(30)
        listening.bind("\0" + name)
        Notifier({"NOTIFY_SOCKET": "@" + name}).send("READY=1")
        assert listening.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"WATCHDOG_USEC": "30000000"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
    ],
)
def test_no_watchdog_unless_it_is_ours(env: dict[str, str]) -> None:
    notifier = Notifier(env)
    assert notifier.watchdog is None
    notifier.send("READY=1")  # nobody listens: no reason to stop
