"""`gsub admin mode`: one key of the site file is changed, all else stays to the byte, and gsubd is seen to have it."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gsub.cli import main
from gsub.commands.admin.mode import _set_unit
from site_configs.site import parse_site
from slurm_plugins.install.finding import Finding
from slurm_plugins.install.host import Ran
from slurm_plugins.install.mode import Scope, Service, WrongModeError, changed, rows, wait_until_taken
from slurm_plugins.install.toml_edit import EditError, set_key
from tests.paths import REPOSITORY
from tests.properties import examples
from tests.unit.slurm_plugins.install.fakes import FakeHost
from tests.unit.slurm_plugins.service.serving import Serving

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXAMPLES = REPOSITORY / "site_configs/examples"

# --- the editor: text, table, key, value, text afterwards -----------------------------------------------------------

# fmt: off
EDITS = [
    # in its place, with all that stands around it
    ('[policy]\nmode = "observe"\n', '[policy]\nmode = "advise"\n'),
    ("[policy]\n  mode   =  'observe'   # for now\nrepack = true\n",
     '[policy]\n  mode   =  "advise"   # for now\nrepack = true\n'),
    ('[policy]\r\nmode = "observe"\r\n', '[policy]\r\nmode = "advise"\r\n'),
    ('[policy]\nmode = "observe"', '[policy]\nmode = "advise"'),
    ('policy.mode = "observe" # x\n', 'policy.mode = "advise" # x\n'),
    ('"policy" . \'mode\' = "observe"\n', '"policy" . \'mode\' = "advise"\n'),
    ('policy = { mode = "observe", repack = true }\n', 'policy = { mode = "advise", repack = true }\n'),
    ('policy = {repack=true,mode="observe"}# {\n', 'policy = {repack=true,mode="advise"}# {\n'),
    # where there was none
    ("[policy]\nrepack = true\n", '[policy]\nmode = "advise"\nrepack = true\n'),
    ("[policy] # ours\r\nrepack = true\r\n", '[policy] # ours\r\nmode = "advise"\r\nrepack = true\r\n'),
    ("[policy]", '[policy]\nmode = "advise"\n'),
    ("policy.repack = true\n", 'policy.mode = "advise"\npolicy.repack = true\n'),
    ("policy = {}\n", 'policy = { mode = "advise" }\n'),
    ("policy = {repack = true}\n", 'policy = { mode = "advise",repack = true}\n'),
    ('cluster = "lab"\n', 'cluster = "lab"\n\n[policy]\nmode = "advise"\n'),
    ('cluster = "lab"', 'cluster = "lab"\n\n[policy]\nmode = "advise"\n'),
    ("", '\n[policy]\nmode = "advise"\n'),
    # what looks like it and is not
    ('# [policy]\n# mode = "observe"\nname = "[policy] mode = 1"\n[policy]\nmode = "observe"\n',
     '# [policy]\n# mode = "observe"\nname = "[policy] mode = 1"\n[policy]\nmode = "advise"\n'),
    ('x = """\n[policy]\nmode = "observe"\n"""\n[policy]\nmode = "observe"\n',
     'x = """\n[policy]\nmode = "observe"\n"""\n[policy]\nmode = "advise"\n'),
    ("x = '''[policy]'''''\n[policy]\nmode = \"observe\"\n", "x = '''[policy]'''''\n[policy]\nmode = \"advise\"\n"),
    ('x = [1, "a]", # ]\n [2, {mode = 1}], 1979-05-27 07:32:00]\n[policy]\nmode = "observe"\n',
     'x = [1, "a]", # ]\n [2, {mode = 1}], 1979-05-27 07:32:00]\n[policy]\nmode = "advise"\n'),
    ('[partitions.policy]\nmode = "observe"\n[policy]\nmode = "observe"\n',
     '[partitions.policy]\nmode = "observe"\n[policy]\nmode = "advise"\n'),
    ('[[policies]]\nmode = "observe"\n[policy.inner]\nmode = "observe"\n',
     '[[policies]]\nmode = "observe"\n[policy.inner]\nmode = "observe"\n\n[policy]\nmode = "advise"\n'),
]
# fmt: on


@pytest.mark.parametrize(("before", "after"), EDITS)
def test_one_key_is_set_and_all_else_stays_to_the_byte(before, after):
    assert set_key(before, ("policy",), "mode", "advise") == after
    assert set_key(after, ("policy",), "mode", "advise") == after


@pytest.mark.parametrize(
    "text", ["policy = 1\n", '[[policy]]\nmode = "observe"\n', "[policy\n", "x = {" * 3000]
)
def test_what_cannot_be_changed_in_one_place_is_left(text):
    with pytest.raises(EditError, match=r'write mode = "advise" in \[policy\] by hand'):
        set_key(text, ("policy",), "mode", "advise")


def test_names_that_need_quotes():
    text = set_key('cluster = "lab"\n', ("partitions", "gpu:a.1"), "mode", "advise")
    assert text.endswith('\n[partitions."gpu:a.1"]\nmode = "advise"\n')
    again = set_key(text, ("partitions", "gpu:a.1"), "mode", "observe")
    assert again == text.replace("advise", "observe")


_NAMES = st.sampled_from(["policy", "mode", "rollout", "partitions", "gpu", '"a.b"', "'c d'", "x-1"])
_VALUES = st.sampled_from(
    [
        '"observe"',
        "'a # b'",
        "1",
        "-2.5e3",
        "true",
        "[1, 2]",
        '["]", "}"]',
        "{ mode = 1, y = [ 3 ] }",
        '"""\n[policy]\n"""',
        "1979-05-27T07:32:00Z",
        "[\n  1, # one\n  { z = '}' },\n]",
        "{}",
        '"\\"]"',
    ]
)
_LINES = st.one_of(
    st.builds("{} = {}".format, st.lists(_NAMES, min_size=1, max_size=3).map(".".join), _VALUES),
    st.builds("[{}]  # x".format, st.lists(_NAMES, min_size=1, max_size=3).map(".".join)),
    st.sampled_from(["", "# [policy]", '  # mode = "observe"']),
)


@given(
    st.lists(_LINES, max_size=12).map("\n".join),
    st.sampled_from([("policy",), ("partitions", "gpu"), ("partitions", "a.b")]),
)
@settings(max_examples=examples(400), deadline=None)
def test_whatever_the_file_only_that_key_differs_afterwards(text, table):
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    try:
        after = tomllib.loads(set_key(text, table, "mode", "enforce"))
    except EditError:
        return
    inner = before
    for name in table:
        inner = inner.setdefault(name, {})
    inner["mode"] = "enforce"
    assert after == before


# --- modes and rollouts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["small-lab.toml", "university.toml"])
@pytest.mark.parametrize("mode", ["observe", "advise", "enforce"])
def test_the_examples_take_every_mode_in_every_place(name, mode):
    path = EXAMPLES / name
    text = path.read_text()
    for scope in (
        Scope(),
        Scope("partition", "a100"),
        Scope("partition", "new"),
        Scope("account", "nlp"),
        Scope("account", "x.y"),
    ):
        after = changed(text, str(path), scope, mode, None)
        stated = {str(row.scope): row.mode for row in rows(parse_site(after, str(path)))}
        assert stated[str(scope)] == mode
        lines, kept = after.splitlines(), text.splitlines()
        assert len([line for line in kept if line not in lines]) <= 2  # the mode's, and a rollout's that ends


def test_a_rollout_stays_unless_it_is_said_and_ends_with_observe():
    text = 'cluster = "lab"\n[policy]\nmode = "advise"\nrollout = 25 # a quarter\n'
    assert 'mode = "enforce"\nrollout = 25 # a quarter\n' in changed(text, "f", Scope(), "enforce", None)
    assert "rollout = 50 # a quarter\n" in changed(text, "f", Scope(), None, 50)
    assert 'mode = "observe"\nrollout = 100 # a quarter\n' in changed(text, "f", Scope(), "observe", None)


@pytest.mark.parametrize(
    ("scope", "mode", "rollout", "words"),
    [
        (Scope(), "observe", 50, "nothing to roll out"),
        (Scope(), None, 50, "nothing to roll out"),
        (Scope("partition", "gpu"), None, 50, "no mode is stated"),
        (Scope("account", "lab"), "advise", None, "by hand"),
    ],
)
def test_what_makes_no_sense_is_refused(scope, mode, rollout, words):
    text = 'cluster = "lab"\naccounts = { }\n' if scope.kind == "account" else 'cluster = "lab"\n'
    with pytest.raises(WrongModeError, match=words):
        changed(
            text if scope.kind != "account" else 'cluster = "lab"\naccounts = {}\n', "f", scope, mode, rollout
        )


def test_waiting_ends_when_it_is_taken_or_late():
    clock = iter(range(1000))
    answers = iter([Service(True, 1.0), Service(False, 1.0), Service(True, 2.0)])
    assert wait_until_taken(
        lambda: next(answers), 2.0, now=lambda: next(clock), sleep=lambda _: None
    ) == Service(True, 2.0)
    assert wait_until_taken(lambda: None, 2.0) is None
    late = wait_until_taken(
        lambda: Service(True, 1.0), 2.0, seconds=5, now=lambda: next(clock), sleep=lambda _: None
    )
    assert late == Service(True, 1.0)


# --- the command, with a gsubd that runs ----------------------------------------------------------------------------

SITE = """\
# our site
cluster = "test"      # ClusterName

[policy]
mode = "observe"      # since spring

[partitions.gpu]
mode = "advise"
rollout = 25
"""


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What doctor finds; nothing, unless a test adds to it. That it finds what is there is its own tests' matter."""
    found: list[Finding] = []
    monkeypatch.setattr("slurm_plugins.install.doctor.diagnose", lambda *_, **__: tuple(found))
    return found


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc/site.toml"
    file.write_text(SITE)
    file.chmod(0o640)
    (tmp_path / "site.toml").symlink_to(file)
    found = Serving(tmp_path)
    found.start()
    monkeypatch.setenv("GSUB_SITE", str(file))
    yield found
    found.stop()


def run(serving: Serving, *words: str) -> int:
    host, port = serving.daemon.address
    folder = serving.site.parent
    yes = ["--yes"] if "enforce" in words or any(word.startswith("--rollout") for word in words) else []
    return main(["admin", "mode", *words, *yes, f"--metrics={host}:{port}", f"--prefix={folder}"])


def test_without_an_argument_it_shows_and_changes_nothing(serving, capsys):
    assert run(serving) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == ["site           observe", "partition gpu  advise, for 25 % of the users"]
    assert "gsubd has this file in force" in out
    assert (serving.site).read_text() == SITE


@pytest.mark.slow
def test_a_change_is_in_force_when_it_returns_and_the_old_file_is_kept(serving, well, capsys):
    assert run(serving, "enforce", "--rollout=10") == 0
    out = capsys.readouterr().out
    assert "site: observe -> enforce, for 10 % of the users" in out
    assert "gsubd has this file in force" in out and "--comment=gsub:off" in out and "start gsub-act" in out
    assert serving.daemon.site.taken.site.policy.mode == "enforce"
    file = serving.site.resolve()
    wanted = SITE.replace('mode = "observe"', 'mode = "enforce"').replace(
        "[policy]\n", "[policy]\nrollout = 10\n"
    )
    assert file.read_text() == wanted
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 and serving.site.is_symlink()
    (kept,) = (serving.site.parent / "install/copies").iterdir()
    assert kept.read_text() == SITE
    assert run(serving, "observe") == 0
    assert "end gsub-act" in capsys.readouterr().out
    assert file.read_text() == wanted.replace('"enforce"', '"observe"').replace(
        "rollout = 10", "rollout = 100"
    )


@pytest.mark.slow
def test_a_byte_order_mark_keeps_nobody_from_going_back_and_stays(serving, well, capsys):
    file = serving.site.resolve()
    file.write_bytes(b"\xef\xbb\xbf" + SITE.encode())
    assert run(serving, "advise") == 0 and serving.daemon.site.taken.site.policy.mode == "advise"
    wanted = SITE.replace('mode = "observe"', 'mode = "advise"').encode()
    assert file.read_bytes() == b"\xef\xbb\xbf" + wanted
    assert run(serving, "observe") == 0
    assert file.read_bytes() == b"\xef\xbb\xbf" + SITE.encode()
    assert "gsubd has this file in force" in capsys.readouterr().out


def test_a_plan_writes_nothing(serving, well, capsys):
    assert run(serving, "enforce", "--plan") == 0
    assert "observe -> enforce" in capsys.readouterr().out
    assert serving.site.read_text() == SITE and not (serving.site.parent / "install").exists()


def test_it_is_so_already(serving, capsys):
    mtime = serving.site.stat().st_mtime_ns
    assert run(serving, "observe") == 0
    assert "so already" in capsys.readouterr().out
    assert serving.site.stat().st_mtime_ns == mtime


@pytest.mark.slow
def test_doctors_errors_keep_a_site_from_enforce(serving, well, capsys):
    well.append(Finding("munge", "error", "munged does not answer", "systemctl start munge"))
    well.append(Finding("clocks", "warning", "2 s apart", "chronyd"))
    assert run(serving, "enforce") == 1
    err = capsys.readouterr().err
    assert "munged does not answer" in err and "1 error;" in err and "2 s apart" not in err
    assert serving.site.read_text() == SITE
    assert run(serving, "advise") == 0  # changes no job
    assert run(serving, "enforce", "--rollout=50", "--force") == 0
    assert run(serving, "enforce", "--rollout=75") == 1
    assert run(serving, "--rollout=10") == 0  # for fewer than now


EVERYWHERE = """\
cluster = "test"

[policy]
mode = "enforce"
rollout = 50

[partitions.gpu]
mode = "enforce"      # since May
rollout = 25
[partitions.cpu]
mode = "observe"
[accounts.nlp]
mode = "advise"
"""


@pytest.mark.case("users 2")
@pytest.mark.parametrize(
    ("words", "stated", "still"),
    [
        (["observe"], ["observe", "enforce", "observe", "advise"], ["partition gpu", "account nlp"]),
        (["observe", "--all"], ["observe"] * 4, []),
        (["advise"], ["advise", "enforce", "observe", "advise"], ["partition gpu"]),
        (["advise", "--all"], ["advise", "advise", "observe", "advise"], []),
        (["observe", "--partition=gpu"], ["enforce", "observe", "observe", "advise"], []),
    ],
)
def test_off_is_off_or_it_is_said_where_it_is_not(serving, capsys, words, stated, still):
    serving.site.write_text(EVERYWHERE)
    assert run(serving, *words) == 0
    out = capsys.readouterr().out
    assert [row.mode for row in rows(parse_site(serving.site.read_text()))] == stated
    assert [
        line.split(": ")[1].split(",")[0] for line in out.splitlines() if line.startswith("still")
    ] == still
    assert (f"gsub admin mode {words[0]} --all" in out) is bool(still)
    if words == ["observe"]:
        assert "of partitions and accounts that state no mode of their own:\n  Decisions are made" in out
    # Said again as long as it is so
    assert run(serving, *words) == 0
    again = capsys.readouterr().out
    assert "so already" in again and again.count("still in force") == len(still)


@pytest.mark.case("users 2")
def test_what_no_mode_ends_is_said_too(serving, capsys):
    serving.site.write_text(EVERYWHERE + "[smoke]\nabove_gpus = 16\n")
    assert run(serving, "observe", "--all") == 0
    assert "smoke.above_gpus = 16" in capsys.readouterr().out


@pytest.mark.case("users 2")
def test_enforce_is_asked_for_as_install_is(serving, well, capsys, monkeypatch):
    host, port = serving.daemon.address
    words = ["admin", "mode", "enforce", f"--metrics={host}:{port}", f"--prefix={serving.site.parent}"]
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(words) == 2
    assert "--yes" in capsys.readouterr().err and serving.site.read_text() == SITE
    terminal = io.StringIO("n\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(words) == 1
    assert "nothing was done" in capsys.readouterr().err and serving.site.read_text() == SITE
    terminal = io.StringIO("y\n")
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    assert main(words) == 0
    assert serving.daemon.site.taken.site.policy.mode == "enforce"
    # Back, or to fewer users: nothing stands in the way
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main([*words, "--rollout=10"]) == 0
    assert main([word if word != "enforce" else "observe" for word in words]) == 0


def test_an_edit_that_somebody_makes_while_doctor_looks_is_not_lost(serving, monkeypatch, capsys):
    edited = SITE + '\n[partitions.new]\nmode = "observe"\n'

    def looks(*_: object, **__: object) -> tuple[Finding, ...]:
        serving.site.write_text(edited)
        return ()

    monkeypatch.setattr("slurm_plugins.install.doctor.diagnose", looks)
    assert run(serving, "enforce") == 1
    assert "changed by somebody else meanwhile" in capsys.readouterr().err
    assert serving.site.read_text() == edited


def test_a_gsubd_that_is_away_takes_it_later(serving, capsys):
    host, port = serving.daemon.address
    serving.stop()
    assert (
        main(["admin", "mode", "advise", f"--metrics={host}:{port}", f"--prefix={serving.site.parent}"]) == 0
    )
    assert "does not run here" in capsys.readouterr().out
    assert 'mode = "advise"' in serving.site.read_text()


def test_a_gsubd_with_another_file_is_told(serving, tmp_path, capsys):
    other = tmp_path / "other.toml"
    other.write_text(SITE)
    host, port = serving.daemon.address
    assert main(["admin", "mode", f"--site={other}", f"--metrics={host}:{port}"]) == 0
    assert "another file in force" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["enforce", "--partition=a", "--account=b"], 2, "two changes"),
        (["enforce", "--force", "--partition="], 2, "names nothing"),
        (["enforce", "--force", "--account="], 2, "names nothing"),
        (["--rollout=5"], 2, "nothing to roll out"),
        (["advise", "--site=/nonexistent/site.toml"], 2, "no site file"),
        (["advise", "--metrics=somewhere"], 2, "HOST:PORT"),
        (["suggest"], 2, "suggest"),
        (["enforce", "--all"], 2, "--all goes with observe"),
        (["--all"], 2, "--all goes with observe"),
        (["observe", "--all", "--partition=gpu"], 2, "--all goes with observe"),
        (["observe", "--all", "--rollout=10"], 2, "--all goes with observe"),
        (["advise", "--rollout=101"], 2, "101"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, capsys, words, code, said):
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    monkeypatch.setenv("GSUB_SITE", str(site))
    assert main(["admin", "mode", *words]) == code
    assert said in capsys.readouterr().err
    assert site.read_text() == SITE


def test_a_broken_site_file_is_not_touched(tmp_path, monkeypatch, capsys):
    site = tmp_path / "site.toml"
    site.write_text('cluster = "test"\n[policy]\nmod = "observe"\n')
    monkeypatch.setenv("GSUB_SITE", str(site))
    assert main(["admin", "mode", "observe"]) == 2
    said = capsys.readouterr().err
    assert "policy.mod" in said and "systemctl stop gsubd" in said
    assert site.read_text() == 'cluster = "test"\n[policy]\nmod = "observe"\n'


@pytest.mark.parametrize(
    ("mode", "command", "ends_with", "well"),
    [
        ("enforce", "systemctl enable --now gsub-act.service", Ran(0), True),
        ("advise", "systemctl disable --now gsub-act.service", Ran(0), True),
        ("enforce", "systemctl enable --now gsub-act.service", Ran(1, err="Unit is masked."), False),
    ],
)
def test_gsub_act_runs_where_something_is_enforced(capsys, mode, command, ends_with, well):
    host = FakeHost()
    host.folder("/run/systemd/system")
    host.says("systemctl cat", "[Unit]")
    host.answer(command, ends_with)
    assert _set_unit(host, parse_site(f'cluster = "lab"\n[policy]\nmode = "{mode}"\n'), None) is well
    assert [" ".join(call.argv) for call in host.calls][-1] == command
    out = capsys.readouterr().out
    assert out.startswith(command) and ("masked" in out) is not well


@pytest.mark.parametrize("mode", ["observe", "enforce"])
def test_by_another_site_file_the_gsub_act_of_this_host_is_not_touched(capsys, mode):
    host = FakeHost()
    host.folder("/run/systemd/system")
    host.says("systemctl cat", "[Unit]")
    site = parse_site(f'cluster = "lab"\n[policy]\nmode = "{mode}"\n')
    assert _set_unit(host, site, None, own=False)
    assert not host.calls and "left as it is" in capsys.readouterr().out


def test_without_its_unit_it_is_told_and_nothing_is_started(capsys):
    host = FakeHost()
    host.folder("/run/systemd/system")
    host.answer("systemctl cat", Ran(1, err="No files found"))
    assert _set_unit(host, parse_site('cluster = "lab"\n[policy]\nmode = "enforce"\n'), None)
    assert "not installed" in capsys.readouterr().out
    assert len(host.calls) == 1
