"""Rollback: the host is as it was, after whatever happened in between."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_plugins.install import engine
from slurm_plugins.install.host import Stat
from slurm_plugins.install.steps import Reconfigure, Remove
from tests.properties import examples
from tests.unit.slurm_plugins.install.fakes import Killed
from tests.unit.slurm_plugins.install.place import CONF, LIBEXEC, SITE_LUA, Place
from tests.unit.slurm_plugins.install.test_apply import BOTH, CONTROLLER, LUA, NODE, SITES, STRIDES, place


def tree(here: Place) -> dict[str, Any]:
    """All of it but the store's folder and users' numbers."""
    return {path: entry for path, entry in here.host.tree().items() if path != "/var/lib/gsub"}


@pytest.mark.parametrize("roles", [NODE, CONTROLLER, BOTH])
@pytest.mark.parametrize("site", SITES)
def test_everything_is_as_it_was(site, roles):
    here = place(site)
    before = tree(here)
    here.install(roles, nodes_ready=True)
    assert tree(here) != before
    assert here.rollback(roles).ok
    assert tree(here) == before
    assert not here.active
    assert here.loaded == place(site).loaded
    assert not here.rollback_plan(roles).steps


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
def test_after_an_installation_that_was_killed_at_any_change(site):
    before = tree(place(site))
    whole = place(site)
    whole.install(BOTH, nodes_ready=True)
    for at in range(0, len(whole.host.changes), STRIDES.get(site, 11)):
        here = place(site)
        here.host.killed_before = at
        with pytest.raises(Killed):
            here.install(BOTH, nodes_ready=True)
        here.host.killed_before = None
        done = here.rollback(BOTH)
        assert done.ok, done
        assert tree(here) == before, f"killed before change {at}"
        assert here.loaded == place(site).loaded


@pytest.mark.slow
@pytest.mark.parametrize("site", ["rules", "hooks"])
def test_a_rollback_that_was_killed_at_any_change_goes_on(site):
    before = tree(place(site))
    here = place(site)
    here.install(BOTH, nodes_ready=True)
    kept = copy.deepcopy((here.host.entries, here.host.users, here.host.members))
    loaded, at = here.loaded, len(here.host.changes)
    here.rollback(BOTH)
    for killed in range(0, len(here.host.changes) - at, 4):
        again = place(site)
        again.host.entries, again.host.users, again.host.members = copy.deepcopy(kept)
        again.loaded = loaded
        again.host.killed_before = killed
        with pytest.raises(Killed):
            again.rollback(BOTH)
        again.host.killed_before = None
        assert again.rollback(BOTH).ok
        assert tree(again) == before, f"killed before change {killed}"


def test_slurm_lets_go_before_any_file_goes():
    here = place("hooks")
    here.install(BOTH, nodes_ready=True)
    plan = here.rollback_plan(BOTH)
    told = next(i for i, step in enumerate(plan.steps) if isinstance(step, Reconfigure))
    gone = [i for i, step in enumerate(plan.steps) if isinstance(step, Remove)]
    assert told < min(gone)
    assert str(CONF) in plan.steps[0].line()


@pytest.mark.parametrize("lost", [LIBEXEC, "/usr/libexec/gsub/chain.lua", "/etc/gsub", "/var/spool/gsub"])
def test_files_of_ours_that_are_gone_already_do_not_matter(lost):
    here = place("rules")
    before = tree(here)
    here.install(BOTH, nodes_ready=True)
    here.host.lose(lost)
    assert here.rollback(BOTH).ok
    assert tree(here) == before


@pytest.mark.parametrize("site", SITES)
def test_without_the_journal_our_parts_are_found_all_the_same(site):
    here = place(site)
    before = tree(here)
    here.install(BOTH, nodes_ready=True)
    here.host.lose("/var/lib/gsub-install")
    assert here.rollback(BOTH).ok
    # Users and empty folders of the host's own cannot be told from ours then.
    assert {
        path: entry for path, entry in tree(here).items() if path in before or entry[0] != "folder"
    } == before


def test_what_an_admin_changed_since_stays():
    here = place("rules")
    here.install(BOTH, nodes_ready=True)
    here.host.put(CONF, "# first\n" + here.text() + "MaxJobCount=5\n")
    here.host.put(LUA, here.content(LUA) + b"-- last\n")
    done = here.rollback(BOTH)
    assert done.ok
    assert here.text() == "# first\n" + place("rules").text() + "MaxJobCount=5\n"
    assert here.host.read(LUA) == SITE_LUA + b"-- last\n"


def test_a_changed_job_submit_of_ours_stays_with_what_was_written_into_it():
    here = place("nothing")
    here.install(CONTROLLER)
    here.host.put(LUA, here.content(LUA).replace(b"  return slurm.SUCCESS", b"  return 2028", 1))
    here.rollback(CONTROLLER)
    assert b"2028" in here.content(LUA)
    assert b"chain.lua" not in here.content(LUA)


def test_a_site_file_that_was_changed_is_kept():
    here = place("nothing")
    here.install(CONTROLLER)
    here.host.put("/etc/gsub/site.toml", b'cluster = "lab"\noperators = ["ada"]\n')
    assert here.rollback(CONTROLLER).ok
    assert here.content(Path("/var/lib/gsub-install/site.toml")).endswith(b'["ada"]\n')
    assert here.host.stat(Path("/etc/gsub")) is None


def test_with_slurmctld_down_only_its_files_go_back():
    here = place("rules")
    before = tree(here)
    here.install(BOTH, nodes_ready=True)
    here.up = False
    plan = here.rollback_plan(BOTH)
    assert here.rollback(BOTH).ok
    assert plan.waits
    assert (here.text(), here.host.read(LUA)) == (place("rules").text(), SITE_LUA)
    assert here.host.read(LIBEXEC / "prolog")
    here.up = True
    here.load()
    # The nodes' slurmd have not heard of it yet.
    assert any(isinstance(step, Reconfigure) for step in here.rollback_plan(BOTH).steps)
    assert here.rollback(BOTH).ok
    assert tree(here) == before


def test_a_node_keeps_its_hooks_while_slurm_runs_them():
    here = place("hooks")
    here.install(BOTH, nodes_ready=True)
    plan = here.rollback_plan(NODE)
    assert not plan.steps
    assert "slurmctld's host first" in plan.waits[0]
    here.rollback(CONTROLLER)
    assert here.rollback(NODE).ok
    assert not here.left()


def test_a_slurmctld_that_does_not_let_go_keeps_the_files():
    here = place("nothing")
    here.install(BOTH, nodes_ready=True)
    here.refuses = "slurm_reconfigure error: Access denied"
    done = here.rollback(BOTH)
    assert "Access denied" in done.why
    assert here.host.read(LIBEXEC / "prolog")
    here.refuses = ""
    assert here.rollback(BOTH).ok
    assert not here.left()


def test_hooks_that_were_placed_by_hand_before_come_back():
    here = place("nothing")
    here.host.put(LIBEXEC / "prolog", b"#!/bin/sh\n# by hand\n", mode=0o755)
    before = tree(here)
    here.install(NODE)
    assert here.host.read(LIBEXEC / "prolog") != b"#!/bin/sh\n# by hand\n"
    here.rollback(NODE)
    assert tree(here) == before


def test_records_go_only_when_asked_for():
    here = place("nothing")
    here.install(CONTROLLER)
    here.host.put("/var/lib/gsub/store.db", b"records", uid=990)
    here.rollback(CONTROLLER)
    assert here.host.users["gsub"] == 990
    assert here.host.read(Path("/var/lib/gsub/store.db")) == b"records"
    here.install(CONTROLLER)
    here.rollback(CONTROLLER, records=True)
    assert not here.left()


def test_the_group_that_was_joined_is_left():
    here = place("nothing")
    here.install(CONTROLLER)
    assert "slurm" in here.host.members["gsub"]
    here.rollback(CONTROLLER)
    assert "slurm" not in here.host.members["gsub"]


_ROWS = st.lists(
    st.sampled_from(
        [
            b"Prolog=/etc/slurm/prolog",
            b"  epilog = /etc/slurm/epilog   # ours",
            b"JobSubmitPlugins=lua",
            b"JOBSUBMITPLUGINS=a,lua",
            b"PrologFlags=X11",
            b"# Prolog=/not/this",
            b"",
            b"\t",
            b"PartitionName=p Nodes=ALL",
            b"MailProg=/bin/\xff",
            b"LaunchParameters=a,\\",
            b"b",
        ]
    ),
    max_size=8,
)


@settings(max_examples=examples(60), deadline=None)
@given(rows=_ROWS, end=st.sampled_from([b"\n", b"\r\n"]), last=st.booleans(), lua=st.binary(max_size=60))
def test_install_and_rollback_leave_every_byte(rows, end, last, lua):
    here = Place()
    content = here.text().encode().replace(b"\n", end) + end.join(rows) + (end if last else b"")
    here.host.put(CONF, content)
    here.host.put(LUA, lua)
    here.load()
    here.install(BOTH, nodes_ready=True)
    here.rollback(BOTH)
    assert here.host.read(CONF) == content
    assert here.host.read(LUA) == lua


def test_a_rollback_covers_all_that_was_installed_here():
    here = place("rules")
    before = tree(here)
    here.install(NODE)
    here.install(CONTROLLER)
    wish = engine.covering(here.wish(NODE), here.journal())
    assert wish.roles == BOTH
    here.rollback(wish.roles)
    assert tree(here) == before


@pytest.mark.parametrize("journal", [True, False])
def test_what_was_there_before_gsub_stays(journal):
    here = place("hooks")
    here.host.put("/etc/slurm/proloz", b"#!/bin/sh\n# the site's own\n", mode=0o755)
    here.host.put("/etc/gsub/site.toml", b'cluster = "lab"\n')
    before = tree(here)
    here.install(BOTH, nodes_ready=True)
    if not journal:
        here.host.lose("/var/lib/gsub-install")
    assert here.rollback(BOTH).ok
    assert here.content("/etc/slurm/proloz") == b"#!/bin/sh\n# the site's own\n"
    if journal:
        assert tree(here) == before
    else:  # it cannot be told whose it was: it is kept where it is told
        assert here.content("/var/lib/gsub-install/site.toml") == b'cluster = "lab"\n'


def test_hooks_that_slurm_conf_names_by_hand_are_not_run_twice_nor_taken_away():
    here = place("nothing")
    here.host.put(CONF, here.text() + f"Prolog={LIBEXEC}/prolog\n")
    here.load()
    here.install(BOTH, nodes_ready=True)
    assert here.text().count("Prolog=") == 1
    done = here.rollback(BOTH)
    assert f"still has {LIBEXEC}/" in done.why
    assert here.content(LIBEXEC / "prolog")


def test_what_an_admin_changed_between_two_installs_stays():
    """The guide has admins install again when the nodes are there; slurm.conf lives on meanwhile."""
    here = place("nothing")
    here.install(CONTROLLER)
    assert "JobSubmitPlugins=lua" in here.text()
    here.host.put(CONF, "NodeName=n[3-9] CPUs=4\n" + here.text())
    assert here.install(CONTROLLER, nodes_ready=True).ok
    assert "Prolog=" in here.text()
    assert here.rollback(CONTROLLER).ok
    assert here.text() == "NodeName=n[3-9] CPUs=4\n" + place("nothing").text()


def test_what_an_admin_wrote_into_job_submit_before_an_upgrade_stays():
    here = place("rules")
    here.install(CONTROLLER)
    rules = here.content(LUA).replace(b"return slurm.SUCCESS end", b"return 2028 end")
    # As an earlier version had written its line, so that the upgrade writes another.
    here.host.put(LUA, rules.replace(b"chain.lua is cut short", b"chain.lua is short"))
    assert here.install(CONTROLLER, upgrade=True).ok
    assert here.rollback(CONTROLLER).ok
    assert here.content(LUA) == SITE_LUA.replace(b"return slurm.SUCCESS end", b"return 2028 end")


def test_what_an_admin_changed_before_an_install_that_goes_on_and_fails_stays():
    here = place("nothing")
    whole = place("nothing")
    whole.install(CONTROLLER)
    changes = whole.host.changes
    here.host.killed_before = 1 + max(at for at, change in enumerate(changes) if str(CONF) in str(change))
    with pytest.raises(Killed):
        here.install(CONTROLLER)
    here.host.killed_before = None
    assert "JobSubmitPlugins=lua" in here.text()
    here.host.put(CONF, "NodeName=n[3-9] CPUs=4\n" + here.text())
    here.loses = "Prolog"
    here.load()
    assert not here.install(CONTROLLER, nodes_ready=True).ok
    assert here.text() == "NodeName=n[3-9] CPUs=4\n" + place("nothing").text()


def test_a_job_submit_of_ours_that_stays_can_be_read_by_slurmctld():
    here = place("nothing")
    here.install(CONTROLLER)
    here.host.put(LUA, here.content(LUA).replace(b"  return slurm.SUCCESS", b"  return 2028", 1))
    before = here.host.stat(LUA)
    assert here.rollback(CONTROLLER).ok
    after = here.host.stat(LUA)
    assert before is not None and after is not None
    assert (after.mode, after.uid, after.gid) == (before.mode, before.uid, before.gid)


def test_a_job_submit_that_the_sites_own_line_asks_for_stays():
    here = place("nothing")
    here.install(CONTROLLER)
    here.host.put(CONF, here.text() + "JobSubmitPlugins=lua,all_partitions\n")
    assert here.rollback(CONTROLLER).ok
    assert b"slurm_job_submit" in here.content(LUA)
    assert b"chain.lua" not in here.content(LUA)


def test_a_store_that_lies_behind_a_link_of_the_sites_stays():
    here = place("nothing")
    here.host.folder("/data/gsub")
    here.host.put_link("/var/lib/gsub", "/data/gsub")
    here.install(CONTROLLER)
    here.host.put("/data/gsub/store.db", b"records")
    assert not any("a link" in note for note in here.rollback_plan(CONTROLLER).notes)
    told = here.rollback_plan(CONTROLLER, records=True).notes
    assert any("/var/lib/gsub is a link" in note for note in told)
    assert here.rollback(CONTROLLER).ok
    assert (here.host.stat(Path("/var/lib/gsub")) or Stat("other", 0, 0, 0, 0, 0)).kind == "link"
    assert here.content("/data/gsub/store.db") == b"records"
