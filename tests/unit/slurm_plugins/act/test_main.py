"""gsub-act as it is started: what is wrong with its configuration is said at once, with exit code 2."""

from __future__ import annotations

import grp
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugins.act import __main__ as act
from slurm_plugins.act.ask import Hand, new
from tests.unit.slurm_plugins.act.test_rights import CONFIG

SITE = 'cluster = "lab"\n[policy]\nmode = "enforce"\n[service]\nuser = "{user}"\n'
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    """Put back what the daemon sets in its process: the handler of SIGTERM, and the log."""
    root = logging.getLogger()
    before, handlers, level = signal.getsignal(signal.SIGTERM), root.handlers[:], root.level
    yield
    signal.signal(signal.SIGTERM, before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site, and commands of a Slurm in which this user is an operator."""
    (tmp_path / "site.toml").write_text(SITE.format(user="root"))
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "config").write_text(CONFIG.format(accounting="accounting_storage/none", version="22.05.8"))
    # Who is SlurmUser may act where it is said; without slurmdbd nobody else may
    us = (tmp_path / "config").read_text().replace("64030", str(os.geteuid()))
    (tmp_path / "config").write_text(us)
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {tmp_path}/config\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    return [f"--site={folder}/site.toml", f"--socket={folder}/act.sock", f"--state={folder}/state", *more]


def start(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Start it where it cannot run, and return what it said."""
    assert act.main(arguments(folder, *more)) == 2
    said = capsys.readouterr().err
    assert not (folder / "act.sock").exists()
    return said


def set_user(folder: Path, monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    """Let this process be another user as far as Slurm's rights go."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)


def test_without_a_site_file_there_is_nothing_to_do(folder, capsys, monkeypatch):
    assert act.main([f"--site={folder}/none.toml"]) == 2
    assert "none.toml" in capsys.readouterr().err
    monkeypatch.setattr(act, "find_site", lambda: None)
    assert act.main([f"--socket={folder}/act.sock", f"--state={folder}/state"]) == 2
    assert "there is no site file" in capsys.readouterr().err


def test_root_is_refused_with_what_to_do(folder, capsys, monkeypatch):
    set_user(folder, monkeypatch, 0)
    said = start(folder, capsys)
    assert "gsub-act may not act here" in said and "does not run as root" in said


def test_a_user_without_rights_is_refused_with_what_to_do(folder, capsys, monkeypatch):
    set_user(folder, monkeypatch, 4242)
    said = start(folder, capsys)
    assert "only SlurmUser and root may act" in said and "--as-slurm-user" in said


def test_another_clusters_site_file_is_refused(folder, capsys, monkeypatch):
    set_user(folder, monkeypatch, 64030)
    (folder / "config").write_text(
        CONFIG.format(accounting="(null)", version="22.05.8").replace("Lab", "other")
    )
    said = start(folder, capsys, "--as-slurm-user")
    assert "the site file is of cluster lab" in said and "slurmctld is that of other" in said


def test_a_user_of_gsubd_that_is_not_there_is_named(folder, capsys, monkeypatch):
    set_user(folder, monkeypatch, 64030)
    (folder / "config").write_text(CONFIG.format(accounting="(null)", version="22.05.8"))
    (folder / "site.toml").write_text(SITE.format(user="nobody-here"))
    assert "there is no user nobody-here here" in start(folder, capsys, "--as-slurm-user")


def test_it_serves_until_sigterm_though_slurm_is_away(folder):
    """A Slurm that does not answer yet is asked again later."""
    (folder / "config").write_text("slurm_load_ctl_conf error: Unable to contact slurm controller\n")
    group = grp.getgrgid(os.getegid()).gr_name
    process = subprocess.Popen(
        [sys.executable, "-m", "slurm_plugins.act", *arguments(folder, f"--group={group}", "--verbose")],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        said = wait_for(process, "answering on")
        assert "what Slurm lets us do is not known yet" in said
        with Hand(folder / "act.sock") as hand:
            answer = hand.ask(new("hold", "7", cluster="lab", why="a test", by="v-00000000"))
            assert answer.result != "done"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert "ended" in process.stderr.read()
    finally:
        process.kill()
        process.wait()
    assert not (folder / "act.sock").exists()


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read its log until it says this."""
    assert process.stderr
    said, deadline = "", time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while text not in said:
            assert selector.select(deadline - time.monotonic()), said
            line = process.stderr.readline()
            assert line, said
            said += line
    return said
