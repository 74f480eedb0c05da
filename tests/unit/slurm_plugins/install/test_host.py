"""This machine, as installing changes it: whole files, or what the next run sweeps away."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugins.install.host import LocalHost, sweep


def killed_before_the_name(change: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a change in a child that is killed when all is written but the name."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        monkeypatch.setattr(Path, "replace", die)
        change()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    host = LocalHost()
    (tmp_path / "slurm.conf").write_text("the site's\n")
    others = {".slurm.conf.swp", ".gsub-notes", "gsub-abcdefgh", "slurm.conf"}
    for name in others - {"slurm.conf"}:
        (tmp_path / name).write_text("the site's\n")
    killed_before_the_name(lambda: host.write(tmp_path / "slurm.conf", b"half", mode=0o644), monkeypatch)
    killed_before_the_name(lambda: host.link(tmp_path / "hook", "elsewhere"), monkeypatch)
    left = {path.name for path in tmp_path.iterdir()} - others
    assert len(left) == 2
    assert (tmp_path / "slurm.conf").read_text() == "the site's\n"
    sweep(host, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == others


@pytest.mark.root
def test_files_of_others_are_left(tmp_path: Path):
    theirs = tmp_path / ".slurm.conf.gsub-abcdefgh"
    theirs.write_text("")
    os.chown(theirs, 12345, 12345)
    sweep(LocalHost(), tmp_path)
    assert theirs.exists()
