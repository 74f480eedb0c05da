"""Doctor itself: what hangs, lies or is not to be seen costs its own answer; nothing is changed; words and codes."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsub.cli import main
from slurm_plugins.install.doctor import CHECKS, GROUPS, Check, reference
from slurm_plugins.install.doctor.check import ANYWHERE, ok
from slurm_plugins.install.doctor.elf import ElfError, needed
from slurm_plugins.install.doctor.rights import weakness
from slurm_plugins.install.doctor.run import examine
from slurm_plugins.install.doctor.sight import Sight, parse_config, parse_metrics
from slurm_plugins.install.host import Ran
from slurm_plugins.install.job_submit import chained
from tests.paths import REPOSITORY
from tests.properties import examples
from tests.unit.slurm_plugins.install.doctor_site import RELEASES, Scene, elf, healthy
from tests.unit.slurm_plugins.install.fakes import FakeHost

DOCS = REPOSITORY / "docs" / "doctor.md"
READS = {"scontrol", "sdiag", "sacctmgr", "munge", "unmunge", "luac5.4", "timedatectl", "systemctl"}


def _levels(scene: Scene, **options: object) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in scene.diagnose(**options):
        found.setdefault(one.level, set()).add(one.check)
    return found


# --- it only reads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_nothing_is_changed_and_nothing_is_asked_twice(release):
    scene = healthy(release)
    before = scene.host.tree()
    scene.diagnose()
    assert scene.host.changes == [] and scene.host.tree() == before
    asked = [(call.argv, call.stdin) for call in scene.host.calls]
    assert len(set(asked)) == len(asked)
    assert {Path(argv[0]).name for argv, _ in asked} <= READS
    told = [argv for argv, _ in asked if argv[0] in ("scontrol", "sacctmgr")]
    assert all({"show", "ping", "--version"} & set(argv) for argv in told)


def test_a_byte_order_mark_does_not_break_the_site_file():
    scene = healthy(RELEASES[-1])
    text = scene.host.read(scene.layout.site) or b""
    scene.host.put(str(scene.layout.site), b"\xef\xbb\xbf" + text)
    assert Sight(scene.host, scene.layout, scene.question, scene.net).site.cluster


# --- what it is not shown, and what hangs -----------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_a_dead_slurmctld_is_one_error_and_the_rest_is_unknown(release):
    scene = healthy(release)
    dead = Ran(1, "", "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n")
    for command in ("scontrol show config", "scontrol --oneliner", "sdiag"):
        scene.host.answer(command, dead)
    scene.host.says("scontrol ping", "Slurmctld(primary) at ctl is DOWN\n")
    found = _levels(scene)
    assert found["error"] == {"slurmctld"}
    assert "min-job-age" in found["unknown"] and "hook-files" in found["ok"]
    said = next(one for one in scene.diagnose(only=["min-job-age"]))
    assert "Unable to contact slurm controller" in said.seen


def test_without_slurm_commands_or_service_nothing_fails():
    scene = healthy(RELEASES[0])
    scene.host.answers.clear()
    scene.net.pages.clear()
    scene.net.answers.clear()
    for one in scene.diagnose():
        assert "this check failed" not in one.seen, one


def test_what_hangs_costs_its_own_answer_and_no_more_than_the_time_given():
    scene = healthy(RELEASES[-1])
    free = threading.Event()

    def hang(argv: tuple[str, ...], stdin: str) -> Ran:
        free.wait(30)
        return Ran(None, why="killed")

    scene.host.answer("munge", hang)
    scene.host.answer("scontrol --oneliner --all show node", hang)
    began = time.monotonic()
    try:
        findings = scene.diagnose(seconds=1.0)
    finally:
        free.set()
    assert time.monotonic() - began < 5
    late = {one.check for one in findings if "hangs" in one.seen}
    assert {"munge", "drained-nodes", "gres"} <= late
    assert {one.level for one in findings if one.check == "min-job-age"} == {"ok"}


def test_a_host_that_hangs_while_it_is_found_out_what_it_is_is_looked_at_as_all_of_them():
    scene = healthy(RELEASES[0])
    free = threading.Event()

    def hang(argv: tuple[str, ...], stdin: str) -> Ran:
        free.wait(30)
        return Ran(None, why="killed")

    for path in [path for path in scene.host.entries if path.name == "comm"]:
        scene.host.lose(path.parent)
    for argv in list(scene.host.answers):
        if argv[0] == "scontrol":
            scene.host.answers[argv] = hang
    began = time.monotonic()
    try:
        checks = {one.check for one in scene.diagnose(seconds=0.6)}
    finally:
        free.set()
    assert time.monotonic() - began < 5
    assert {"shim-files", "agent"} <= checks


@pytest.mark.parametrize("release", RELEASES)
def test_an_ordinary_user_is_told_of_no_fault_that_is_none(release):
    scene = healthy(release)
    scene.host.whoami = 1000
    # What the kernel hides from such a user looks like nothing
    for folder in (scene.layout.spool, scene.layout.keep, scene.layout.state):
        scene.host.unreadable[folder] = "Permission denied"
        for path in [path for path in scene.host.entries if folder in path.parents]:
            scene.host.entries.pop(path)
    scene.net.answers.clear()
    assert not {one.check for one in scene.diagnose() if one.level in ("warning", "error")}
    assert "spool-poison" in _levels(scene)["unknown"]


def test_what_a_host_is_comes_from_slurm_conf_while_slurmctld_is_silent():
    scene = healthy(RELEASES[0])
    for argv in [argv for argv in scene.host.answers if argv[0] == "scontrol"]:
        del scene.host.answers[argv]
    _only(scene)
    assert Sight(scene.host, scene.layout, scene.question, scene.net).roles == ("controller",)
    scene.host.name = "n2"
    assert Sight(scene.host, scene.layout, scene.question, scene.net).roles == ("node",)
    scene.host.unreadable[scene.layout.slurm_conf] = "Permission denied"
    assert Sight(scene.host, scene.layout, scene.question, scene.net).roles == ("login",)


def test_unreadable_files_are_unknown():
    scene = healthy(RELEASES[0])
    for path in (scene.layout.slurm_conf, scene.layout.site, scene.layout.job_submit):
        scene.host.unreadable[path] = "Permission denied"
    found = _levels(scene)
    assert {"slurm-conf", "site-file", "job-submit-lua"} <= found["unknown"]
    assert not any("this check failed" in one.seen for one in scene.diagnose())


def test_a_check_that_fails_hides_no_other(monkeypatch):
    def broken(sight: Sight):
        yield ok("so far so good")
        raise ZeroDivisionError("by zero")

    table = (
        Check("broken", "slurm", "", "", broken, ANYWHERE),
        Check("fine", "slurm", "", "", lambda _: [ok("well")], ANYWHERE),
    )
    monkeypatch.setattr("slurm_plugins.install.doctor.run.CHECKS", table)
    scene = healthy(RELEASES[0])
    first, second, third = examine(Sight(scene.host, scene.layout, scene.question, scene.net))
    assert (first.level, third.level, third.seen) == ("ok", "ok", "well")
    assert second.level == "unknown" and "ZeroDivisionError" in second.seen


@pytest.mark.slow
@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_whatever_files_and_commands_hold_nothing_fails_and_nothing_steers_a_terminal(data):
    scene = healthy(RELEASES[-1])
    texts = st.one_of(
        st.binary(max_size=200),
        st.sampled_from(
            [
                b"\x1b]0;owned\x07\x1b[2J",
                b"Prolog = \x1b[31m\n",
                b"[" * 5000,
                b"\xff\xfe\0",
                b"a=" + b"9" * 5000,
            ]
        ),
    )
    files = sorted(path for path, entry in scene.host.entries.items() if entry.kind == "file")
    for path in data.draw(st.lists(st.sampled_from(files), max_size=8, unique=True)):
        scene.host.entries[path].content = data.draw(texts)
    for argv in data.draw(st.lists(st.sampled_from(sorted(scene.host.answers)), max_size=4, unique=True)):
        scene.host.answers[argv] = Ran(
            data.draw(st.sampled_from([0, 1])), data.draw(texts).decode(errors="replace")
        )
    for one in scene.diagnose():
        assert "this check failed" not in one.seen, one
        assert (one.seen + one.remedy).isprintable()


@pytest.mark.slow
def test_ten_thousand_nodes_are_looked_at_in_seconds():
    scene = healthy(RELEASES[-1])
    asked = ("scontrol", "--oneliner", "--all", "show", "node")
    said = scene.host.answers[asked]
    assert isinstance(said, Ran)
    line = next(line for line in said.out.splitlines() if line.startswith("NodeName=n1 "))
    names = [f"m{number}" for number in range(10_000)]
    rows = (re.sub(r"\bn1\b", name, line) for name in names)
    scene.host.answers[asked] = replace(said, out="\n".join(rows) + "\n")
    scene.told_nodes([{"name": name, "heard": scene.question.clock()} for name in names[:5000]])
    began = time.monotonic()
    findings = scene.diagnose(only=["nodes-heard", "topology", "slurmd-versions"])
    assert time.monotonic() - began < 20
    heard = next(one for one in findings if one.check == "nodes-heard")
    assert "m[5000-9999] (5000)" in heard.seen


# --- what a host is ---------------------------------------------------------------------------------------------------


def _only(scene: Scene, *daemons: str) -> None:
    for path, entry in list(scene.host.entries.items()):
        if path.name == "comm" and entry.content.decode().strip() not in daemons:
            scene.host.lose(path.parent)


@pytest.mark.parametrize(
    ("name", "daemons", "roles"),
    [
        (None, ("slurmctld", "slurmd"), ("controller", "node")),
        ("elsewhere", ("slurmctld",), ("controller",)),
        ("elsewhere", ("slurmd",), ("node",)),
        ("n2", (), ("node",)),
        ("elsewhere", (), ("login",)),
    ],
)
def test_what_a_host_is_comes_from_what_runs_there_or_is_configured_for_it(name, daemons, roles):
    scene = healthy(RELEASES[0])
    scene.host.name = name or scene.host.name
    _only(scene, *daemons)
    assert Sight(scene.host, scene.layout, scene.question, scene.net).roles == roles


def test_a_login_host_is_asked_only_what_concerns_it():
    scene = healthy(RELEASES[0])
    scene.host.name = "login1"
    _only(scene)
    made = {one.check for one in scene.diagnose()}
    assert "keeper-trust" in made and not made & {"agent", "shim-files", "store"}


def test_before_gsub_is_installed_its_parts_are_missing_and_nothing_is_broken():
    scene = healthy(RELEASES[0])
    for path in (
        scene.layout.libexec,
        scene.layout.site,
        scene.layout.state,
        scene.layout.run,
        scene.layout.spool,
    ):
        scene.host.lose(path)
    scene.host.lose(scene.layout.run_noded)
    scene.host.lose(scene.layout.job_submit)
    _only(scene, "slurmctld", "slurmd", "munged")
    for key in ("JobSubmitPlugins", "Prolog", "Epilog", "TaskProlog"):
        scene.config(key, None)
    scene.net.pages.clear()
    del scene.host.users["gsub"]
    found = _levels(scene)
    assert "error" not in found
    assert {"service-user", "job-submit-plugin", "hooks-called", "agent", "site-file", "service"} <= found[
        "warning"
    ]


# --- its parts --------------------------------------------------------------------------------------------------------


def test_a_chained_site_is_well_and_its_socket_is_read():
    scene = healthy(RELEASES[0])
    site = b"-- ours\nfunction slurm_job_submit() return 0 end\nfunction slurm_job_modify() return 0 end\nreturn 0\n"
    scene.host.put(scene.layout.job_submit, chained(site, scene.layout))
    only = ["job-submit-lua", "decision-socket"]
    assert set(_levels(scene, only=only)) == {"ok"}
    scene.host.put(scene.layout.job_submit, chained(site, replace(scene.layout, run=Path("/run/other"))))
    assert _levels(scene, only=only)["error"] == {"decision-socket"}


def test_a_prolog_folder_with_a_link_to_ours_is_ours():
    scene = healthy(RELEASES[0])
    folder = scene.layout.libexec / "prolog.d"
    scene.host.put_link(folder / "90-gsub", "../prolog")
    scene.host.put("/etc/slurm/prolog", "#!/bin/sh\n", mode=0o755)
    scene.host.put_link(folder / "50-site", "/etc/slurm/prolog")
    scene.config("Prolog", f"{folder}/*")
    found = scene.diagnose(only=["hooks-called", "hooks-run"])
    assert {one.level for one in found} == {"ok"}
    scene.host.entries[Path("/etc/slurm/prolog")].mode = 0o644
    (bad,) = [one for one in scene.diagnose(only=["hooks-run"]) if one.level == "error"]
    assert "50-site is not executable" in bad.seen


def test_a_copy_beside_the_sites_own_prolog_is_ours():
    scene = healthy(RELEASES[0])
    scene.host.put("/etc/slurm/prolog", "#!/bin/sh\n", mode=0o755)
    copy = Path("/etc/slurm/proloz")
    scene.host.put(copy, scene.host.read(scene.layout.libexec / "prolog") or b"", mode=0o755)
    scene.config("Prolog", "/etc/slurm/prolo[gz]")
    only = ["hooks-called", "hooks-run", "hook-files"]
    assert set(_levels(scene, only=only)) == {"ok"}
    scene.edit(copy, "0.5", "5")
    assert _levels(scene, only=only)["warning"] == {"hook-files"}
    scene.host.lose(copy)
    assert _levels(scene, only=only)["error"] == {"hooks-called"}


def test_a_controller_does_not_judge_by_folders_that_only_nodes_have():
    scene = healthy(RELEASES[0])
    for key, name in (("Prolog", "prolog"), ("Epilog", "epilog")):
        scene.config(key, f"{scene.layout.libexec}/{name}.d/*")
    scene.question = replace(scene.question, roles=("controller",))
    assert not {one.level for one in scene.diagnose(only=["hooks-called"])} & {"warning", "error"}


def test_a_group_of_a_directory_service_is_not_known_by_its_number():
    scene = healthy(RELEASES[0])
    scene.host.entries[scene.paths.decision_socket].gid = 777_777
    assert set(_levels(scene, only=["decision-socket"])) == {"unknown"}


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_libraries_that_an_elf_file_needs(wide, order):
    content = elf("libc.so.6", "liblua-5.3.so", wide=wide, order=order)
    assert needed(content) == ("libc.so.6", "liblua-5.3.so")


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n", elf("libc.so.6")[:90], b"\x7fELF\x09\x09" + bytes(99)]
)
def test_what_is_no_whole_elf_file_is_refused(content):
    with pytest.raises(ElfError):
        needed(content)


@given(st.binary(max_size=300), st.integers(0, 400), st.binary(max_size=8))
def test_a_damaged_elf_file_is_refused_or_read(noise, at, patch):
    whole = elf("libc.so.6", "liblua5.4.so.0")
    for content in (b"\x7fELF\x02\x01" + noise, whole[:at] + patch + whole[at + len(patch) :]):
        try:
            names = needed(content)
        except ElfError:
            continue
        assert all(isinstance(name, str) for name in names)


def test_who_may_change_a_file():
    host = FakeHost()
    host.put("/usr/libexec/gsub/prolog", mode=0o755)
    assert weakness(host, Path("/usr/libexec/gsub/prolog")) == ""
    host.put_link("/usr/libexec/gsub/90", "prolog")
    assert weakness(host, Path("/usr/libexec/gsub/90")) == ""
    host.entries[Path("/usr/libexec")].mode = 0o1777  # nobody replaces what is not theirs
    assert weakness(host, Path("/usr/libexec/gsub/prolog")) == ""
    host.entries[Path("/usr/libexec")].mode = 0o777
    assert "everybody may write to /usr/libexec" in weakness(host, Path("/usr/libexec/gsub/prolog"))
    host.entries[Path("/usr/libexec")].mode = 0o755
    host.entries[Path("/usr/libexec/gsub")].uid = 1000
    assert "belongs to uid 1000" in weakness(host, Path("/usr/libexec/gsub/90"))
    assert weakness(host, Path("/usr/libexec/gsub/90"), {0, 1000}) == ""


def test_slurmctlds_configuration_is_read_whatever_it_holds():
    config = parse_config(
        "A = 1 sec\nA = 2\nB = (null)\nProlog[0] = /x\nProlog[1] = /y z\nC= a,b=3,d\nnoise\n"
    )
    assert (config.number("a"), config.value("B"), config.values("Prolog")) == (1, "", ("/x", "/y z"))
    assert (config.option("C", "b"), config.option("C", "d"), config.option("C", "e")) == ("3", "", None)
    assert config.has("c", "A") and not config.has("C", "x") and config.number("C") is None


def test_metrics_are_read():
    text = '# HELP a b\na 1\nb{x="y z"} 2.5\nc NaNny\n\n'
    assert parse_metrics(text) == {"a": 1, 'b{x="y z"}': 2.5}


# --- the table, the page, the command ---------------------------------------------------------------------------------


def test_the_table_is_whole():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) >= 50
    assert {check.group for check in CHECKS} == set(GROUPS)
    assert all(re.fullmatch(r"[a-z][a-z-]+", name) for name in names)
    assert all(check.about.endswith(".") and check.remedy for check in CHECKS)


def test_the_page_tells_of_every_check():
    text = DOCS.read_text(encoding="utf-8")
    assert reference.updated(text) == text, (
        "write it anew: python -m slurm_plugins.install.doctor.reference docs/doctor.md"
    )


def test_the_command_says_json_and_its_codes(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/site.toml").write_text("cluster = \n")
    arguments = [
        "admin",
        "doctor",
        "--prefix",
        str(tmp_path),
        "--slurm-conf",
        str(tmp_path / "slurm.conf"),
        "--role",
        "login",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--only", "site-file", "--json"])
    assert ended.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert told["worst"] == "error" and told["counts"]["error"] == 1 and told["roles"] == ["login"]
    assert set(told["findings"][0]) == {"check", "group", "level", "seen", "remedy"}
    assert main([*arguments, "--only", "time-service"]) in (0, None)
    assert main([*arguments, "--only", "nothing"]) == 2
    assert "there is no check nothing" in capsys.readouterr().err


def test_the_command_prints_what_is_not_well_last_and_in_full(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    long = "x" * 150
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/site.toml").write_text(f'cluster = "lab"\n"{long}\x7f" = 1\n')
    arguments = [
        "admin",
        "doctor",
        "--prefix",
        str(tmp_path),
        "--slurm-conf",
        "/none",
        "--role",
        "login",
        "--only",
        "site-file",
    ]
    with pytest.raises(SystemExit):
        main([*arguments, "--quiet"])
    out = capsys.readouterr().out
    assert out.replace("\n", "").isprintable()
    lines = out.splitlines()
    assert lines[1:3] == ["", "Not well"] and lines[3].startswith("  error   site-file")
    assert "do: " in lines[4] and lines[-1] == "1 error, 0 warning, 0 unknown, 0 ok"


def test_what_is_recorded_is_from_real_clusters():
    for release in RELEASES:
        scene = healthy(release)
        said = scene.host.answers["scontrol", "show", "config"]
        assert isinstance(said, Ran) and f"SLURM_VERSION           = {release}" in said.out
