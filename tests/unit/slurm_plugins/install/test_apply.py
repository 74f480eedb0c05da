"""Installing on a host in dictionaries: it ends as planned, goes on where it was killed, and takes back what fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gsub.commands.admin.install import _failed
from slurm_plugins.install import engine
from slurm_plugins.install.facts import Role
from slurm_plugins.install.host import Ran, Stat
from slurm_plugins.install.job_submit import is_chained
from slurm_plugins.install.rehearse import Rehearsal
from tests.unit.slurm_plugins.install.fakes import Killed
from tests.unit.slurm_plugins.install.place import CONF, LIBEXEC, SITE_LUA, Place

NODE: frozenset[Role] = frozenset({"node"})
CONTROLLER: frozenset[Role] = frozenset({"controller"})
BOTH = NODE | CONTROLLER
LUA = CONF.with_name("job_submit.lua")

SITES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "rules": {"conf": "JobSubmitPlugins=lua\n", "lua": SITE_LUA},
    "hooks": {"conf": "Prolog=/etc/slurm/prolog\nEpilog=/etc/slurm/epilog\nPrologFlags=X11\n"},
    "pattern": {"conf": "Prolog=/etc/slurm/prolog.d/*\n"},
    "systemd": {"systemd": True},
    "no end of line": {"conf": "JobSubmitPlugins=lua\nEpilog=/etc/slurm/epilog", "lua": SITE_LUA},
}


def place(site: str = "nothing") -> Place:
    made = Place(**SITES[site])
    for name in ("prolog", "epilog"):
        made.host.put(f"/etc/slurm/{name}", b"#!/bin/sh\nexit 0\n", mode=0o755)
    made.host.folder("/etc/slurm/prolog.d")
    return made


@pytest.mark.parametrize("roles", [NODE, CONTROLLER, BOTH])
@pytest.mark.parametrize("site", SITES)
def test_a_second_run_has_nothing_to_do_and_touches_nothing(site, roles):
    here = place(site)
    assert here.install(roles, nodes_ready=True).ok
    before, changes = here.host.entries.copy(), len(here.host.changes)
    here.host.now += 100
    assert not here.plan(roles, nodes_ready=True).steps
    assert here.install(roles, nodes_ready=True).ok
    assert here.host.entries == before
    assert len(here.host.changes) == changes


STRIDES = {"nothing": 2, "systemd": 5}
"""At which changes we are killed: a step makes three, so that in time each of the three is met."""


@pytest.mark.slow
@pytest.mark.parametrize("roles", [NODE, BOTH])
@pytest.mark.parametrize("site", SITES)
def test_killed_at_any_change_it_goes_on(site, roles):
    whole = place(site)
    whole.install(roles, nodes_ready=True)
    wanted = {path: entry for path, entry in whole.host.tree().items() if "/gsub-install" not in path}
    changes = len(whole.host.changes)
    for at in range(0, changes, STRIDES.get(site, 11)):
        here = place(site)
        here.host.killed_before = at
        with pytest.raises(Killed):
            here.install(roles, nodes_ready=True)
        here.host.killed_before = None
        assert here.install(roles, nodes_ready=True).ok, f"killed before change {at}"
        found = {path: entry for path, entry in here.host.tree().items() if "/gsub-install" not in path}
        assert found == wanted, f"killed before change {at}"
        assert here.loaded == whole.loaded, f"killed before change {at}: slurmctld was not told"
        assert not here.journal().unproven()


def killed_when_slurm_conf_is_changed(here: Place) -> None:
    here.host.on_change = lambda what, path: setattr(here.host, "killed_before", 0) if path == CONF else None
    with pytest.raises(Killed):
        here.install(BOTH, nodes_ready=True)
    here.host.on_change = here.host.killed_before = None


def test_an_installation_that_was_killed_is_proven_by_the_next():
    here = place("hooks")
    killed_when_slurm_conf_is_changed(here)
    assert here.loaded["Prolog"] == ("/etc/slurm/prolog",)
    assert here.install(BOTH, nodes_ready=True).ok
    assert here.loaded["Prolog"] == ("/etc/slurm/prolo[gz]",)


def test_an_installation_that_was_killed_and_cannot_be_proven_is_taken_back():
    here = place("hooks")
    before = here.text()
    killed_when_slurm_conf_is_changed(here)
    assert here.text() != before
    here.refuses = "Invalid configuration"
    done = here.install(BOTH, nodes_ready=True)
    assert "Invalid configuration" in done.why
    assert here.text() == before
    assert here.host.read(LUA) is None


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        ({"refuses": "Invalid configuration"}, "Invalid configuration"),
        ({"loses": "JobSubmitPlugins"}, "JobSubmitPlugins=nothing, not lua"),
        ({"loses": "Prolog"}, "Prolog=nothing"),
    ],
)
def test_what_cannot_be_proven_is_taken_back(breaks, words):
    here = place("nothing")
    before = here.text()
    for name, value in breaks.items():
        setattr(here, name, value)
    done = here.install(BOTH, nodes_ready=True)
    assert words in done.why
    assert done.back
    assert here.text() == before
    assert here.host.read(LUA) is None
    assert here.host.read(LIBEXEC / "gsub.lua")
    for name in breaks:
        setattr(here, name, "")
    assert here.install(BOTH, nodes_ready=True).ok


def test_interrupted_before_the_proof_it_is_taken_back():
    here = place("hooks")
    before = here.text()

    def interrupt(*_: object) -> Ran:
        here.host.answer("scontrol reconfigure", lambda *_: here._reconfigure())
        raise KeyboardInterrupt

    here.host.answer("scontrol reconfigure", interrupt)
    done = here.install(BOTH, nodes_ready=True)
    assert done.why == "it was interrupted"
    assert done.back
    assert here.text() == before
    assert here.host.read(LUA) is None


def test_submissions_that_fail_afterwards_take_it_back():
    here = place("rules")

    def chained() -> bool:
        return is_chained(here.content(LUA))

    here.host.answer(
        "sbatch --test-only", lambda *_: Ran(1, "", "lua: no") if chained() else Ran(0, "", "fine")
    )
    done = here.install(CONTROLLER)
    assert "lua: no" in done.why
    assert here.host.read(LUA) == SITE_LUA


def test_what_slurm_conf_still_names_stays_where_it_cannot_be_put_back():
    here = place("nothing")
    here.loses = "JobSubmitPlugins"

    def full(_: str, path: Path) -> None:
        if path == CONF:
            here.host.refuses[CONF] = "No space left on device"

    here.host.on_change = full
    done = here.install(CONTROLLER)
    assert not done.ok
    assert "JobSubmitPlugins=lua" in here.text()
    assert b"slurm_job_submit" in here.content(LUA)  # without it slurmctld would not start again
    assert any("slurm.conf could not be put back" in line for line in done.left)
    told = _failed(done, here.plan(CONTROLLER))
    assert "not as it was" in told.what
    assert told.why.startswith("/etc/slurm/slurm.conf could not be put back")
    here.host.on_change = None
    here.host.refuses.clear()
    assert here.rollback(CONTROLLER).ok
    assert here.host.read(LUA) is None
    assert "JobSubmitPlugins" not in here.text()


def test_a_rollback_that_fails_does_not_say_that_slurm_was_not_touched():
    here = place("rules")
    here.install(CONTROLLER)
    plan = here.rollback_plan(CONTROLLER)
    here.refuses = "no"
    done = here.rollback(CONTROLLER)
    assert here.content(LUA) == SITE_LUA
    told = _failed(done, plan)
    assert "not touched" not in told.what
    assert told.what.startswith("rollback did not work; 1 of ")


def test_submissions_that_failed_before_prove_nothing():
    here = place("rules")
    here.host.says("sbatch --test-only", code=1, err="sbatch: error: root has no account, at 12:34")
    assert here.install(CONTROLLER).ok


def test_a_complaint_in_slurmctlds_log_takes_it_back():
    here = place("rules")
    here.host.put("/var/log/slurmctld.log", b"old: gsub is left out: long ago\n")
    show = here._config
    here.host.answer(
        "scontrol show config", lambda *_: Ran(0, show().out + "SlurmctldLogFile = /var/log/slurmctld.log\n")
    )
    here.host.says("tail -c +33", "job_submit/lua: gsub is left out: posix")
    done = here.install(CONTROLLER)
    assert "gsub is left out: posix" in done.why
    assert here.host.read(LUA) == SITE_LUA


def test_slurm_is_not_touched_after_a_rehearsal_that_failed():
    here = place("rules")
    here.rehearsal = Rehearsal("left out", "lua-posix is missing", "apt-get install lua-posix")
    before = here.text()
    done = here.install(CONTROLLER)
    assert (done.why, done.remedy, done.back) == ("lua-posix is missing", "apt-get install lua-posix", None)
    assert (here.text(), here.host.read(LUA)) == (before, SITE_LUA)
    assert not here.host.ran("scontrol", "reconfigure")


def test_what_is_rehearsed_is_what_is_put_in_place():
    here = place("rules")
    here.install(CONTROLLER)
    (candidate,) = here.rehearsed
    assert candidate.job_submit == here.host.read(LUA)
    assert candidate.plugins == "lua"
    assert all(here.host.read(LIBEXEC / name) == content for name, content in candidate.shim.items())


def test_a_service_that_does_not_come_up_keeps_slurm_out_of_it():
    here = place("systemd")
    here.service.up = False
    done = here.install(CONTROLLER)
    assert "gsubd does not answer" in done.why
    assert not here.host.ran("scontrol", "reconfigure")
    assert "gsub" not in here.text()


def test_a_file_that_somebody_changes_meanwhile_is_not_written_over():
    here = place("nothing")
    wish = here.wish(CONTROLLER)
    found = engine.planned(here.host, wish, here.journal(), here.around())
    here.host.put(CONF, here.text() + "# a new line\n")
    done = engine.install(here.host, wish, here.journal(), here.around(), found)
    assert "changed by somebody meanwhile" in done.why
    assert here.text().endswith("# a new line\n")
    assert here.host.read(LUA) is None


def test_a_slurm_conf_that_a_file_server_hides_is_not_taken_for_none(monkeypatch):
    here = place("nothing")
    wish = here.wish(CONTROLLER)
    found = engine.planned(here.host, wish, here.journal(), here.around())
    stat = here.host.stat
    monkeypatch.setattr(here.host, "stat", lambda path: None if path == CONF else stat(path))
    before = here.text()
    assert not engine.install(here.host, wish, here.journal(), here.around(), found).ok
    monkeypatch.undo()
    assert here.text() == before
    here.rollback(CONTROLLER)
    assert here.text() == before


def test_modes_and_owners_of_slurms_files_stay():
    here = place("rules")
    for path in (CONF, LUA):
        here.host.entries[path] = replace(here.host.entries[path], mode=0o640, uid=64030, gid=77)
    here.install(CONTROLLER)
    assert {here.host.tree()[str(path)][2:] for path in (CONF, LUA)} == {(0o640, 64030, 77)}


def test_a_linked_slurm_conf_stays_a_link():
    here = place("nothing")
    here.host.put("/shared/slurm.conf", here.text())
    here.host.lose(CONF)
    here.host.put_link(CONF, "/shared/slurm.conf")
    before = here.text()
    here.install(CONTROLLER)
    assert (here.host.stat(CONF) or Stat("other", 0, 0, 0, 0, 0)).kind == "link"
    assert here.text() != before
    here.rollback(CONTROLLER)
    assert (here.host.stat(CONF) or Stat("other", 0, 0, 0, 0, 0)).kind == "link"
    assert here.text() == before


def test_a_disk_that_is_full_is_told_and_hurts_nothing():
    here = place("rules")
    before = here.text()
    here.host.refuses[LIBEXEC / "wire.lua"] = "No space left on device"
    done = here.install(CONTROLLER)
    assert "No space left" in done.why
    assert (here.text(), here.host.read(LUA)) == (before, SITE_LUA)


def test_owners_and_modes_of_folders():
    here = place("nothing")
    here.install(BOTH)
    tree = here.host.tree()
    assert {
        path: tree[path][2:4]
        for path in (
            "/var/lib/gsub",
            "/var/spool/gsub",
            "/var/spool/gsub/new",
            "/run/gsub-noded",
            "/var/lib/gsub-install",
            "/run/gsub",
        )
    } == {
        "/var/lib/gsub": (0o750, 990),
        "/var/spool/gsub": (0o700, 0),
        "/var/spool/gsub/new": (0o700, 0),
        "/run/gsub-noded": (0o755, 0),
        "/var/lib/gsub-install": (0o700, 0),
        "/run/gsub": (0o755, 990),
    }


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path):
    with pytest.raises(engine.LockError, match="No such file"), engine.alone(tmp_path, tmp_path / "run"):
        pass


def test_a_name_that_cannot_be_written_down_stops_before_slurm_is_touched():
    here = place("nothing")
    own = Path("/etc/s\udcf6/prolog")
    here.host.put(CONF, here.text().encode() + b"Prolog=/etc/s\xf6/prolog\n")
    here.host.put(own, b"#!/bin/sh\n", mode=0o755)
    here.load()
    done = here.install(BOTH, nodes_ready=True)
    assert "no UTF-8" in done.why
    assert (done.back, here.host.read(LUA)) == (None, None)


def test_two_at_once_do_not_meet(tmp_path: Path):
    with (
        engine.alone(tmp_path / "keep", tmp_path),
        pytest.raises(engine.BusyError),
        engine.alone(tmp_path / "keep", tmp_path),
    ):
        pass
    with engine.alone(tmp_path / "other", tmp_path), engine.alone(tmp_path / "keep", tmp_path):
        pass
    assert not list(tmp_path.iterdir())
