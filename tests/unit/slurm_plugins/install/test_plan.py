"""Plans: of which steps an installation is made, for each kind of site and host; nothing is changed to find out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gsub.cli import main
from slurm_plugins.install import engine
from slurm_plugins.install.desired import bare, hooked
from slurm_plugins.install.job_submit import is_chained
from slurm_plugins.install.plan import Plan
from slurm_plugins.install.steps import Answer, Command, Prove, Put, Reconfigure, Rehearse
from tests.unit.slurm_plugins.install.place import CONF, LIBEXEC, SITE_LUA, Place
from tests.unit.slurm_plugins.install.test_apply import BOTH, CONTROLLER, NODE


def puts(plan: Plan, suffix: str = "") -> dict[str, Put]:
    return {
        str(step.path): step
        for step in plan.steps
        if isinstance(step, Put) and str(step.path).endswith(suffix)
    }


def after(plan: Plan, path: Path | str = CONF) -> str:
    return puts(plan)[str(path)].content.decode()


@pytest.mark.parametrize("roles", [NODE, CONTROLLER, BOTH])
def test_a_plan_changes_nothing(roles):
    place = Place()
    before = place.host.tree()
    assert place.plan(roles).steps
    assert place.host.tree() == before
    assert not place.host.changes


def test_a_node_gets_files_that_slurm_does_not_know_of():
    plan = Place().plan(NODE)
    assert {f"{LIBEXEC}/prolog", f"{LIBEXEC}/epilog"} <= puts(plan).keys()
    assert str(CONF) not in puts(plan)
    assert not any(isinstance(step, Reconfigure | Prove | Rehearse) for step in plan.steps)


def test_a_controller_is_changed_in_an_order_that_is_harmless_wherever_it_ends():
    plan = Place(systemd=True).plan(CONTROLLER, nodes_ready=True)
    order = [
        next(i for i, step in enumerate(plan.steps) if found(step))  # type: ignore[no-untyped-call]
        for found in (
            lambda s: isinstance(s, Command) and s.argv[0] == "useradd",
            lambda s: isinstance(s, Put) and s.path.name == "gsub.lua",
            lambda s: isinstance(s, Put) and s.path.name == "site.toml",
            lambda s: isinstance(s, Put) and s.path.name == "gsubd.service",
            lambda s: isinstance(s, Command) and s.argv[-1] == "gsubd.service",
            lambda s: isinstance(s, Answer),
            lambda s: isinstance(s, Rehearse),
            lambda s: isinstance(s, Put) and s.path.name == "job_submit.lua",
            lambda s: isinstance(s, Put) and s.path == CONF,
            lambda s: isinstance(s, Reconfigure),
            lambda s: isinstance(s, Prove),
        )
    ]
    assert order == sorted(order)
    assert isinstance(plan.steps[-1], Prove)


def test_hooks_wait_for_the_nodes():
    place = Place()
    plan = place.plan(CONTROLLER)
    assert "Prolog=" not in after(plan)
    assert any("n1, n2" in wait for wait in plan.waits)
    place.service.nodes = frozenset({"n1"})
    assert any("heard of n2;" in wait for wait in place.plan(CONTROLLER).waits)
    place.service.nodes = frozenset({"n1", "n2"})
    plan = place.plan(CONTROLLER)
    assert "Prolog=/usr/bin/tru[ez]" in after(plan)
    assert not plan.waits


def test_hooks_stay_when_the_service_is_silent_later():
    place = Place()
    place.service.nodes = frozenset({"n1", "n2"})
    place.install(CONTROLLER)
    place.service.nodes = None
    again = place.plan(CONTROLLER)
    assert not again.steps
    assert not again.waits


@pytest.mark.parametrize(
    ("said", "lines", "file"),
    [
        ("", ["Prolog=/usr/bin/tru[ez]"], "/usr/bin/truz"),
        ("Prolog=/etc/slurm/prolog.sh", ["Prolog=/etc/slurm/prolog.s[hz]"], "/etc/slurm/prolog.sz"),
        ("PROLOG = /a/p # ours", ["Prolog=/a/[pz]", "#gsub:was# PROLOG = /a/p # ours"], "/a/z"),
        ("Prolog=/etc/slurm/prolog.d/*", [], "/etc/slurm/prolog.d/90-gsub"),
        ("Prolog=/etc/slurm/prolog.d/*.sh", [], "/etc/slurm/prolog.d/90-gsub.sh"),
        ("Prolog=/a/first\nProlog=/a/last", ["Prolog=/a/las[tz]"], "/a/lasz"),
    ],
)
def test_a_prolog_of_the_sites_own_stays(said, lines, file):
    place = Place(conf=said + "\n")
    place.host.folder("/etc/slurm/prolog.d")
    place.host.folder("/a")
    plan = place.plan(BOTH, nodes_ready=True)
    assert file in puts(plan)
    ours = [line.removesuffix("  #gsub#") for line in after(plan).splitlines()]
    assert all(line in ours for line in lines)
    if not lines:
        assert not any(
            line.startswith("Prolog=/usr") or line.startswith("#gsub:was# Prolog") for line in ours
        )


@pytest.mark.parametrize("said", ["prolog.sh", "/etc/slurm/prolog.d/[0-9][0-9]-site", "/a/blitz"])
def test_a_prolog_that_ours_cannot_be_put_beside_is_told(said):
    place = Place(conf=f"Prolog={said}\n")
    plan = place.plan(CONTROLLER, nodes_ready=True)
    assert f"Prolog={said}\n" in after(plan)
    assert "#gsub:was# Prolog" not in after(plan)
    assert any(said in note and "24.05" in note for note in plan.notes)


def test_several_lines_of_24_05_all_stay():
    place = Place(conf="Prolog=/a/one\nProlog=/a/two\n", release="slurm 24.11.5")
    place.host.folder("/a")
    text = after(place.plan(BOTH, nodes_ready=True))
    assert "Prolog=/a/on[ez]  #gsub#\nProlog=/a/two  #gsub#\n" in text


def test_one_program_as_prolog_and_epilog_gets_two_of_ours():
    hooks = [hooked(key, ("/a/both",), LIBEXEC) for key in ("Prolog", "Epilog")]
    assert hooks[0].file != hooks[1].file
    assert hooks[0].lines != hooks[1].lines


def test_a_strangers_file_is_not_written_over():
    place = Place(conf="Prolog=/etc/slurm/prolog\n")
    place.host.put("/etc/slurm/proloz", "#!/bin/sh\n# the site's\n", mode=0o755)
    plan = place.plan(BOTH, nodes_ready=True)
    assert "/etc/slurm/proloz" not in puts(plan)
    assert any("/etc/slurm/proloz is not gsub's" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [("", "Alloc"), ("X11", "X11,Alloc"), ("alloc", None), ("Contain,X11", None), ("Serial", "Serial,Alloc")],
)
def test_prolog_flags_keep_theirs(flags, wanted):
    place = Place(conf=f"PrologFlags={flags}\n" if flags else "")
    text = after(place.plan(BOTH, nodes_ready=True))
    assert (
        (f"PrologFlags={wanted}  #gsub#" in text)
        if wanted
        else ("PrologFlags" not in text.replace(f"PrologFlags={flags}\n", ""))
    )


def test_job_submit_plugins_keep_theirs():
    place = Place(conf="JobSubmitPlugins=throttle,require_timelimit\n")
    plan = place.plan(CONTROLLER)
    assert "JobSubmitPlugins=throttle,require_timelimit,lua  #gsub#" in after(plan)
    rehearsed = next(step for step in plan.steps if isinstance(step, Rehearse))
    assert rehearsed.plugins == "throttle,require_timelimit,lua"


def test_the_sites_rules_are_chained():
    place = Place(conf="JobSubmitPlugins=lua\n", lua=SITE_LUA)
    content = puts(place.plan(CONTROLLER))["/etc/slurm/job_submit.lua"].content
    assert content.endswith(SITE_LUA)
    assert is_chained(content)


def test_rules_that_slurm_does_not_load_are_not_brought_into_force():
    place = Place(lua=SITE_LUA)
    plan = place.plan(CONTROLLER)
    assert not any(isinstance(step, Rehearse | Reconfigure) for step in plan.steps)
    assert str(CONF) not in puts(plan)
    assert any("its rules would come into force" in wait for wait in plan.waits)


def test_compiled_rules_are_left_alone():
    place = Place(conf="JobSubmitPlugins=lua\n", lua=b"\x1bLuaQ")
    plan = place.plan(CONTROLLER)
    assert any("compiled" in wait for wait in plan.waits)
    assert str(CONF) not in puts(plan)


def test_a_slurmctld_that_is_down_gets_files_only():
    place = Place(up=False)
    plan = place.plan(CONTROLLER)
    assert f"{LIBEXEC}/gsub.lua" in puts(plan)
    assert not any(isinstance(step, Rehearse | Reconfigure | Prove) for step in plan.steps)
    assert any("slurmctld does not answer" in wait for wait in plan.waits)


def test_the_key_is_changed_in_the_file_where_it_stands():
    place = Place(conf="Include hooks.conf\n")
    place.host.put("/etc/slurm/hooks.conf", b"Prolog=/etc/slurm/prolog\n")
    plan = place.plan(BOTH, nodes_ready=True)
    assert "Prolog=/etc/slurm/prolo[gz]" in after(plan, "/etc/slurm/hooks.conf")
    assert "Prolog=" not in after(plan)


def test_the_site_file_says_observe_and_what_slurm_says():
    place = Place(conf="AuthInfo=ttl=60,socket=/run/m.sock\nTopologyPlugin=topology/tree\n")
    place.host.put("/etc/slurm/topology.conf", b"SwitchName=s Nodes=n[1-2]\n")
    text = puts(place.plan(CONTROLLER))["/etc/gsub/site.toml"].content.decode()
    for line in (
        'cluster = "lab"',
        'mode = "observe"',
        'url = "http://10.0.0.1:6831"',
        'munge_socket = "/run/m.sock"',
        'file = "/etc/slurm/topology.conf"',
    ):
        assert line in text.splitlines()


def test_nodes_and_controller_write_the_same_site_file():
    place = Place()
    on = [puts(place.plan(roles))["/etc/gsub/site.toml"].content for roles in (NODE, CONTROLLER)]
    assert on[0] == on[1]


def test_a_site_file_that_is_there_is_the_sites():
    place = Place()
    place.host.put("/etc/gsub/site.toml", b'cluster = "other"\n', mode=0o640)
    assert "/etc/gsub/site.toml" not in puts(place.plan(BOTH))


def test_a_site_file_with_a_byte_order_mark_is_one():
    place = Place()
    place.host.put("/etc/gsub/site.toml", b'\xef\xbb\xbfcluster = "lab"\n', mode=0o640)
    assert not any("cannot be used" in note for note in place.plan(BOTH).notes)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("SlurmctldParameters=enable_configless\n", "configless"),
        ("SlurmctldHost=spare\n", "backup controller spare"),
        ("TaskProlog=/etc/slurm/task\n", "TaskProlog=/etc/slurm/task stays"),
        ("", "port 6831"),
        ("", "copy it to all of them"),
    ],
)
def test_what_others_must_do_is_told(conf, words):
    assert any(words in note for note in Place(conf=conf).plan(CONTROLLER).notes)


def test_task_prolog_only_when_asked_for():
    # A TaskProlog that is missing on a node fails each of its jobs, on all three releases.
    place = Place()
    assert "TaskProlog" not in after(place.plan(BOTH, nodes_ready=True))
    assert f"TaskProlog={LIBEXEC}/task_prolog" in after(place.plan(BOTH, nodes_ready=True, task_prolog=True))


def test_users_are_made_as_asked():
    plan = Place().plan(CONTROLLER, uid=890)
    argvs = [step.argv for step in plan.steps if isinstance(step, Command)]
    assert ("groupadd", "--system", "--gid", "890", "gsub") in argvs
    assert any(argv[:4] == ("useradd", "--system", "--uid", "890") for argv in argvs)
    assert ("usermod", "--append", "--groups", "slurm", "gsub") in argvs


def test_units_of_a_package_are_left_to_it():
    place = Place(systemd=True)
    place.host.put("/usr/lib/systemd/system/gsubd.service", b"[Unit]\n")
    assert not any(path.endswith("gsubd.service") for path in puts(place.plan(CONTROLLER)))
    assert any(
        step.argv[-1] == "gsubd.service" for step in place.plan(CONTROLLER).steps if isinstance(step, Command)
    )


def test_units_run_this_environments_programs():
    place = Place(systemd=True)
    plan = place.plan(NODE, bin=Path("/srv/gsub/bin"))
    assert (
        b"ExecStart=/srv/gsub/bin/gsub-noded" in puts(plan)["/etc/systemd/system/gsub-noded.service"].content
    )


def test_a_prefix_keeps_to_itself():
    place = Place(systemd=True)
    plan = place.plan(BOTH, prefix=Path("/trial"), nodes_ready=True)
    outside = [path for path in puts(plan) if not path.startswith("/trial/")]
    assert sorted(outside) == ["/etc/slurm/job_submit.lua", "/etc/slurm/slurm.conf"]
    assert f"Prolog={bare(Path('/trial/libexec/prolog'))}" in after(plan)
    assert b"SPOOL=/trial/spool RUN=/trial/run-noded" in puts(plan)["/trial/libexec/prolog"].content
    assert not any(step.argv[0] == "systemctl" for step in plan.steps if isinstance(step, Command))


@pytest.mark.parametrize("name", ["prolog!", "prolog^", "prolog\\", "pro\\log"])
def test_a_program_whose_name_a_pattern_would_read_otherwise_is_left_alone(name):
    found = hooked("Prolog", (f"/etc/slurm/{name}",), LIBEXEC)
    assert (found.how, found.lines) == ("not", ())


def test_slurm_is_not_given_a_pattern_that_fits_another_file_of_the_sites():
    place = Place(conf="Prolog=/etc/slurm/prolog\nEpilog=/etc/slurm/epilog\n")
    place.host.put("/etc/slurm/proloz", b"#!/bin/sh\nexit 1\n", mode=0o755)
    plan = place.plan(BOTH, nodes_ready=True)
    assert "\nProlog=/etc/slurm/prolog\n" in after(plan)
    assert "prolo[gz]" not in after(plan)
    assert "epilo[gy]" in after(plan)
    assert any("/etc/slurm/proloz is not gsub's" in note for note in plan.notes)


def test_job_submit_lua_is_known_by_its_long_name():
    place = Place(conf="JobSubmitPlugins=job_submit/lua\n", lua=SITE_LUA)
    plan = place.plan(CONTROLLER)
    assert is_chained(puts(plan)["/etc/slurm/job_submit.lua"].content)
    assert str(CONF) not in puts(plan)
    assert not any("does not load it" in wait for wait in plan.waits)


@pytest.mark.parametrize("command", ["install", "upgrade", "rollback"])
def test_a_prefix_of_others_is_refused(tmp_path, capsys, command):
    """With /var, a rollback would remove /var/spool."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "spool").mkdir()
    argv = [
        "admin",
        command,
        "--plan",
        "--role=node",
        f"--prefix={tmp_path}",
        f"--slurm-conf={tmp_path}/slurm.conf",
    ]
    assert main(argv) == 2
    told = capsys.readouterr()
    assert "no folder of gsub's own" in told.err
    assert "spool" not in told.out


def test_without_slurm_conf_a_node_still_gets_its_files():
    place = Place()
    place.host.lose(CONF)
    plan = place.plan(NODE)
    assert f"{LIBEXEC}/prolog" in puts(plan)
    assert any("no site file" in note for note in plan.notes)


def test_a_configless_node_reads_its_copy():
    place = Place()
    place.host.put("/run/slurm/conf/slurm.conf", place.content(CONF))
    place.host.lose(CONF)
    assert "/etc/gsub/site.toml" in puts(place.plan(NODE))


def test_what_was_asked_for_is_remembered():
    place = Place()
    place.install(CONTROLLER, task_prolog=True, nodes_ready=True, service_url="http://a:1")
    wish = engine.remembered(replace(place.wish(CONTROLLER), nodes_ready=True), place.journal().asked())
    assert wish.task_prolog
    assert wish.service_url == "http://a:1"
