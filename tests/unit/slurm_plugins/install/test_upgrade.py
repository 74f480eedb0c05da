"""Upgrades: the new version's parts take the old ones' place when they were seen to work, else the old ones stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_plugins.install import desired, layout
from slurm_plugins.install.host import Ran
from slurm_plugins.install.rehearse import Rehearsal
from slurm_plugins.install.steps import Command, Programs, Put, Rehearse
from tests.unit.slurm_plugins.install.fakes import Killed
from tests.unit.slurm_plugins.install.place import CONF, LIBEXEC, SITE_LUA, Place
from tests.unit.slurm_plugins.install.test_apply import BOTH, CONTROLLER, LUA, NODE, place
from tests.unit.slurm_plugins.install.test_rollback import tree

NEW = b"-- a later version\n"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called on, gsub's files are those of a later version."""

    def begin() -> None:
        part = layout.part
        monkeypatch.setattr(desired, "part", lambda package, name: part(package, name) + NEW)

    return begin


def shim(here: Place) -> dict[str, bytes]:
    return {name: here.content(LIBEXEC / name) for name in here.host.names(LIBEXEC)}


def test_install_leaves_another_version_to_upgrade(newer):
    here = place("rules")
    here.install(BOTH, nodes_ready=True)
    before = shim(here)
    newer()
    plan = here.plan(BOTH, nodes_ready=True, version="2.0")
    assert not plan.steps
    assert any("gsub admin upgrade" in wait for wait in plan.waits)
    assert shim(here) == before


def test_upgrade_replaces_all_of_it_after_a_rehearsal(newer):
    here = place("rules")
    here.install(BOTH, nodes_ready=True)
    newer()
    plan = here.plan(BOTH, upgrade=True, version="2.0")
    kinds = [type(step) for step in plan.steps]
    assert kinds.index(Programs) < kinds.index(Rehearse) < kinds.index(Put)
    touched = here.host.entries[LUA].mtime
    assert here.install(BOTH, upgrade=True, version="2.0").ok
    assert all(content.endswith(NEW) for content in shim(here).values())
    assert int(here.host.entries[LUA].mtime) > int(touched)
    assert not here.plan(BOTH, upgrade=True, version="2.0").steps


def test_slurm_loads_the_shim_again_within_the_same_second(newer):
    here = place("rules")
    here.install(CONTROLLER)
    newer()
    here.host.now = float(int(here.host.now)) + 0.2
    here.host.entries[LUA].mtime = here.host.now - 0.1
    here.now = here.host.now
    before = here.host.entries[LUA].mtime
    here.install(CONTROLLER, upgrade=True, version="2.0")
    assert int(here.host.entries[LUA].mtime) > int(before)


@pytest.mark.parametrize("broken", ["rehearsal", "program", "submission"])
def test_what_does_not_work_leaves_the_old_version_in_place(newer, broken):
    here = place("rules")
    here.install(BOTH, nodes_ready=True)
    before, old = tree(here), shim(here)
    newer()
    match broken:
        case "rehearsal":
            here.rehearsal = Rehearsal("broken", "syntax error in gsub.lua")
        case "program":
            here.programs = Ran(1, "", "ModuleNotFoundError: msgspec")
        case "submission":
            here.host.answer(
                "sbatch --test-only",
                lambda *_: Ran(1, "", "no") if shim(here)["gsub.lua"].endswith(NEW) else Ran(0, "", "fine"),
            )
    done = here.install(BOTH, upgrade=True, version="2.0")
    assert not done.ok
    assert shim(here) == old
    assert {path: entry for path, entry in tree(here).items() if "gsub-install" not in path} == {
        path: entry for path, entry in before.items() if "gsub-install" not in path
    }
    # Before anything was replaced, or all of it back again.
    assert (done.back is None) == (broken != "submission")


def test_a_service_that_does_not_come_up_brings_the_old_files_back(newer):
    here = place("systemd")
    here.install(CONTROLLER)
    old = shim(here)
    newer()
    here.service.up = False
    done = here.install(CONTROLLER, upgrade=True, version="2.0")
    assert "gsubd does not answer" in done.why
    assert shim(here) == old


def test_services_are_started_again_for_a_new_version_alone(newer):
    here = place("systemd")
    here.install(BOTH, nodes_ready=True)
    plan = here.plan(BOTH, upgrade=True, version="2.0")
    restarted = [step.argv[-1] for step in plan.steps if isinstance(step, Command) and "restart" in step.argv]
    assert restarted == ["gsubd.service", "gsub-noded.service"]
    here.install(BOTH, upgrade=True, version="2.0")
    assert not here.plan(BOTH, upgrade=True, version="2.0").steps


@pytest.mark.slow
@pytest.mark.parametrize("then", ["upgrade", "install", "rollback"])
def test_killed_at_any_change(newer, then):
    at = 0
    while True:
        here = place("rules")
        clean = tree(here)
        here.install(BOTH, nodes_ready=True)
        with pytest.MonkeyPatch.context() as patch:
            part = layout.part
            patch.setattr(desired, "part", lambda package, name, part=part: part(package, name) + NEW)
            here.host.killed_before = len(here.host.changes) + at
            try:
                here.install(BOTH, upgrade=True, version="2.0")
                return
            except Killed:
                here.host.killed_before = None
            at += 2 if then == "upgrade" else 4
            if then == "rollback":
                assert here.rollback(BOTH).ok
                assert tree(here) == clean
                continue
            done = here.install(BOTH, nodes_ready=True, upgrade=then == "upgrade", version="2.0")
            assert done.ok, done
            assert not here.journal().unproven()
            if then == "upgrade":
                assert all(content.endswith(NEW) for content in shim(here).values())


def test_rollback_after_an_upgrade_is_what_was_before_gsub(newer):
    here = place("hooks")
    before = tree(here)
    here.install(BOTH, nodes_ready=True)
    newer()
    here.install(BOTH, upgrade=True, version="2.0")
    assert here.rollback(BOTH).ok
    assert tree(here) == before


def test_half_a_file_is_never_there(newer):
    here = place("rules")
    here.install(CONTROLLER)
    old = shim(here)
    newer()
    seen = []
    here.host.on_change = lambda what, path: seen.append(shim(here))
    here.install(CONTROLLER, upgrade=True, version="2.0")
    assert seen
    assert all(files[name] in (content, content + NEW) for files in seen for name, content in old.items())
    assert Path(LUA).parent == CONF.parent
    assert here.content(LUA).endswith(SITE_LUA)


def test_without_slurmctld_nothing_is_replaced(newer):
    here = place("rules")
    here.install(BOTH, nodes_ready=True)
    old = shim(here)
    newer()
    here.up = False
    plan = here.plan(BOTH, upgrade=True, version="2.0")
    assert not plan.steps
    assert any("slurmctld does not answer" in wait for wait in plan.waits)
    assert shim(here) == old


def test_hooks_of_a_node_are_not_taken_back_by_a_later_failure(newer):
    here = place("hooks")
    here.install(NODE)
    newer()
    assert here.install(NODE, upgrade=True, version="2.0").ok
    assert not here.journal().unproven()
    here.refuses = "Invalid configuration"
    assert not here.install(BOTH, nodes_ready=True, version="2.0").ok
    assert here.content(LIBEXEC / "prolog").endswith(NEW)
