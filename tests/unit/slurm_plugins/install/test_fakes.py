"""The fake machine does as the real one does: what is tested on it says something about a real host."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from slurm_plugins.install.host import Host, HostError, LocalHost
from tests.unit.slurm_plugins.install.fakes import FakeHost, Killed


def _scene(host: Host, root: Path) -> list[object]:
    """One story of changes; what is seen of it afterwards, without what differs by machine."""
    seen: list[object] = []

    def told(act: Callable[[], object]) -> object:
        try:
            return act()
        except HostError as error:
            return str(error).removeprefix(str(root))

    host.make_folder(root / "a/b", mode=0o700)
    host.write(root / "a/file", b"one", mode=0o640)
    host.write(root / "a/file", b"two", mode=0o600)
    host.link(root / "a/link", "file")
    host.link(root / "a/link", "file")
    host.link(root / "up", "a/b/../file")
    host.link(root / "ring", "ring")
    host.write(root / "a/link", b"three", mode=0o644)
    for name in ("a/file", "a/link", "up", "none", "a/file/x", "a", "ring"):
        seen.append(told(partial(host.read, root / name)))
    for name in ("a", "a/b", "a/file", "a/link", "none"):
        found = host.stat(root / name)
        seen.append(found and (found.kind, found.mode, found.target))
    seen += [host.names(root / "a"), host.names(root / "a/file"), host.names(root / "none")]
    seen += [host.usage(root / "none") is None, host.usage(root / "a") is None]
    seen.append(told(lambda: host.write(root / "none/file", b"", mode=0o644)))
    seen.append(told(lambda: host.write(root / "a/b", b"", mode=0o644)))
    seen.append(told(lambda: host.touch(root / "none")))
    seen.append(told(lambda: host.remove(root / "a")))
    for name in ("a/link", "a/file", "a/b", "a", "up", "ring", "none"):
        host.remove(root / name)
    seen.append(host.names(root))
    return seen


def test_it_does_as_this_machine_does(tmp_path):
    fake = FakeHost(whoami=os.geteuid())
    fake.folder("/r")
    assert _scene(fake, Path("/r")) == _scene(LocalHost(), tmp_path)


@pytest.mark.root
def test_a_folder_behind_a_link_gets_its_owner(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    LocalHost().make_folder(tmp_path / "link", mode=0o750, uid=4711, gid=4712)
    found = LocalHost().stat(tmp_path / "there")
    assert found is not None
    assert (found.mode, found.uid, found.gid) == (0o750, 4711, 4712)


def test_a_command_that_is_missing_or_fails_is_told_as_on_this_machine():
    fake, real = FakeHost(), LocalHost()
    fake.says("sh -c", "x\n", code=3, err="no\n")
    script = ["sh", "-c", "echo x; echo no >&2; exit 3"]
    assert fake.run(script) == real.run(script)
    assert fake.run(["no-such-program"]) == real.run(["no-such-program"])
    assert fake.calls[0].argv == tuple(script)


def test_the_longest_beginning_answers():
    host = FakeHost()
    host.says("scontrol", "any")
    host.says("scontrol show config", "config")
    host.answer("munge", lambda argv, stdin: host.run(["scontrol", *argv[1:], stdin]))
    assert host.run(["scontrol", "show", "config"]).out == "config"
    assert host.run(["scontrol", "show", "node"]).out == "any"
    assert host.run(["munge", "show"], stdin="config").out == "config"


def test_a_kill_stops_before_its_change():
    host = FakeHost(killed_before=1)
    host.write(Path("/one"), b"", mode=0o644)
    with pytest.raises(Killed):
        host.write(Path("/two"), b"", mode=0o644)
    assert host.changes == [("write", Path("/one"))] and host.names(Path("/")) == ("one",)


def test_what_a_disk_refuses_is_not_changed():
    host = FakeHost(refuses={Path("/full"): "No space left on device"})
    host.folder("/full")
    with pytest.raises(HostError, match="/full/x: No space left"):
        host.write(Path("/full/x"), b"", mode=0o644)
    assert host.changes == []


def test_users_and_groups():
    host = FakeHost()
    host.account("slurm", 64030)
    host.account("gsub", 890, "gsub", "slurm")
    assert (host.uid("gsub"), host.user(890), host.groups("gsub")) == (890, "gsub", ("gsub", "slurm"))
    assert (host.uid("none"), host.user(1), host.groups("none")) == (None, None, ())
    assert host.groups("slurm") == ("slurm",)
