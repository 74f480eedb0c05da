"""The entry point by itself: streams that are closed or full, commands mistyped. No Slurm is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

RUN = f"{sys.executable} -c 'import sys; from gsub.cli import main; sys.exit(main())'"
SBATCH = """\
#!/bin/sh
case "$1" in
*.sh) echo Submitted batch job 7 ;;
--parsable) echo 7 ;;
*) echo "sbatch: error: Unable to open file $1" >&2; exit 1 ;;
esac
"""
UNWRITTEN = "gsub: job 7 was submitted, but the answer cannot be written: No space left on device\n"
GONE = "gsub: job 7 was submitted, but the answer cannot be written: Broken pipe\n"


@pytest.fixture
def shell(tmp_path: Path):
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    env = {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "GSUB_SITE": "",
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        script = f'gsub() {{ {RUN} "$@"; }}\n{line}'
        return subprocess.run(
            ["bash", "-c", script],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run


@pytest.mark.parametrize(
    ("line", "code", "stderr"),
    [
        ("gsub --help >&-", 0, ""),
        ("gsub x.sh >&-", 0, ""),
        ("gsub --json x.sh >&-", 0, ""),
        ("gsub --help >/dev/full", 1, "gsub: cannot write the answer: No space left on device\n"),
        ("gsub --json nosuch >/dev/full", 1, "gsub: cannot write the answer: No space left on device\n"),
        ("gsub --json x.sh >/dev/full", 0, UNWRITTEN),
        ("gsub x.sh >/dev/full", 0, UNWRITTEN),
        ("gsub --parsable x.sh >/dev/full", 0, UNWRITTEN),
        ("{ sleep 0.1; gsub --json x.sh; echo $? >code; } | true; exit $(cat code)", 0, GONE),
        ("{ sleep 0.1; gsub --help; echo $? >code; } | true; exit $(cat code)", 1, ""),
    ],
)
def test_an_output_that_takes_nothing(shell, line, code, stderr):
    done = shell(line)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", stderr)


@pytest.mark.parametrize(
    "line",
    [
        "gsub <(cat ok.sh)",
        "gsub --no-preflight <(cat ok.sh)",
        "gsub --workload=x <(cat ok.sh)",
        "GSUB=off gsub <(cat ok.sh)",
        "gsub --no-smoke /dev/fd/5 5< <(cat ok.sh)",
        "cat ok.sh | gsub /dev/stdin",
        "mkfifo f; (cat ok.sh >f) & gsub f",
    ],
)
def test_a_script_from_a_pipe_is_sbatchs_to_read(shell, tmp_path, line):
    """It was read for preflight, and sbatch found it empty, closed, or waited for ever."""
    (tmp_path / "ok.sh").write_text("#!/bin/sh\n#SBATCH -N1\nhostname\n")
    (tmp_path / "bin/sbatch").write_text('#!/bin/sh\necho "of $1:"; cat "$1"; echo Submitted batch job 7\n')
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, "")
    name, text = done.stdout.split(":\n", 1)
    assert name.startswith(("of f", "of /dev/stdin", "of /dev/fd/"))
    assert text == "#!/bin/sh\n#SBATCH -N1\nhostname\nSubmitted batch job 7\n"


@pytest.mark.case("F8")
@pytest.mark.parametrize("option", ["", "--parsable", "--no-preflight", "--json"])
def test_errors_that_stop_nothing_come_before_the_number(shell, tmp_path, option):
    """Programs that merge both streams read the last word."""
    number = "7" if option == "--parsable" else "Submitted batch job 7"
    (tmp_path / "bin/sbatch").write_text(
        f"#!/bin/sh\necho 'sbatch: error: Memory is rounded' >&2\necho 'sbatch: more' >&2\necho {number}\n"
    )
    lines = shell(f"gsub {option} x.sh 2>&1").stdout.splitlines()
    assert lines[:2] == ["sbatch: more", "sbatch: error: Memory is rounded"]
    if option != "--json":
        assert lines.index(number) == 2


def test_a_check_reads_a_pipe_that_nobody_needs_any_more(shell, tmp_path):
    (tmp_path / "bad.sh").write_text("#!/bin/bash\nif true; then\n")
    done = shell("gsub check <(cat bad.sh)")
    assert done.returncode == 1 and "bash does not understand" in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "gsub --wrap hostname",
        "gsub --json --wrap hostname",
        "gsub check --wrap hostname",
        "gsub check --chdir=/tmp --wrap hostname",
        "gsub --smoke -G1 --wrap hostname",
    ],
)
def test_a_folder_that_was_removed(shell, line):
    """It was an internal error; sbatch refuses as well ("getcwd failed")."""
    done = shell(f"mkdir gone; cd gone; rmdir ../gone; {line}")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["gsub: the folder you are in is gone", "  try: cd to another"]


@pytest.mark.parametrize("words", ["x.sh", "--json x.sh"])
def test_an_interrupt_that_is_too_late_for_sbatch_changes_nothing(shell, tmp_path, words):
    """It ended as if killed, with --json without a word of the job that was in."""
    (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\nkill -INT $$\n")
    done = shell(f"gsub {words}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "job 7" in done.stdout or '"job_id": 7' in done.stdout


def test_an_interrupt_while_python_ends_changes_nothing(shell):
    """Then Python has given its own handler up: the shell saw a gsub that was killed, after its answer."""
    late = "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)"
    main = "import sys; from gsub.cli import main; sys.exit(main())"
    done = shell(f"{sys.executable} -c '{late}; {main}' --no-preflight x.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")


def test_without_standard_error_no_error_goes_to_the_output(shell):
    done = shell("gsub nosuch 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("gsub statsu", "status"),
        ("gsub wacth 3", "watch"),
        ("gsub --json status", "status"),
        ("gsub trian", None),
    ],
)
def test_a_mistyped_command_is_recognised(shell, line, meant):
    done = shell(line)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 3
    assert (f"did you mean 'gsub {meant}'?" in done.stderr) == (meant is not None)
    assert "did you mean" not in shell("touch statsu; gsub statsu").stderr


def test_a_folder_named_like_a_command_is_no_script(shell):
    assert "Usage: gsub status" in shell("mkdir status; gsub status --help").stdout


def test_an_interrupt_while_the_spinner_starts_is_only_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich cannot stop a spinner that was interrupted in its start: ^C ended as an internal error."""
    from rich.status import Status

    from gsub import term

    def interrupted(_status: Status) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Status, "start", interrupted)
    monkeypatch.setattr(term, "is_terminal", lambda _stream: True)
    spinner = term.Spinner()
    with pytest.raises(KeyboardInterrupt):
        spinner.show("waiting")
    spinner.hide()


def test_what_is_counted_is_told_at_each_step_and_goes_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from gsub import term

    said: list[str] = []
    monkeypatch.setattr(term.Spinner, "show", lambda _spinner, text: said.append(text))
    monkeypatch.setattr(term.Spinner, "hide", lambda _spinner: said.append("hidden"))
    with pytest.raises(KeyboardInterrupt), term.counting("attempts read", 1000) as progress:
        for count in (400, 999, 1200, 1900, 2199, 2200):
            progress(count)
        raise KeyboardInterrupt
    assert said == ["1,200 attempts read", "2,200 attempts read", "hidden"]


BROKEN = {
    "a key that there is not": 'cluster = "x"\nclutser = 1\n',
    "a value that cannot be": 'cluster = "x"\n[policy]\nmode = "enforc"\n',
    "no TOML": "cluster = \n",
    "no text": b"\xff\xfe\0",
    "nothing": "",
    "a folder": None,
    "a pipe": "fifo",
    "gone": "gone",
    "too large": "# x\n" * 400_000,
}


@pytest.mark.case("users 16", "site_files 1")
@pytest.mark.parametrize("words", ["", "--json", "--no-preflight"])
@pytest.mark.parametrize("how", BROKEN)
def test_a_site_file_that_cannot_be_used_stops_no_submission(shell, tmp_path, how, words):
    content, site = BROKEN[how], tmp_path / "site.toml"
    if content is None:
        site.mkdir()
    elif content == "fifo":
        os.mkfifo(site)
    elif isinstance(content, bytes):
        site.write_bytes(content)
    elif content != "gone":
        site.write_text(content)
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    done = shell(f"GSUB_SITE=site.toml gsub {words} x.sh")
    assert done.returncode == 0, done
    lines = done.stderr.splitlines()
    assert len(lines) == 3 and lines[0].startswith("gsub: warning: the site file site.toml cannot be used"), (
        done
    )
    assert "as plain sbatch" in lines[0] and "administrators" in lines[2]
    assert "7" in done.stdout


@pytest.mark.case("site_files 1", "site_files 2")
@pytest.mark.parametrize(
    "topology", [None, "SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2\n", "SwitchName=a\n", "nonsense["]
)
def test_a_topology_that_cannot_be_used_is_nothing_to_a_submission(shell, tmp_path, topology):
    (tmp_path / "site.toml").write_text('cluster = "x"\n[topology]\nfile = "topology.conf"\n')
    if topology is not None:
        (tmp_path / "topology.conf").write_text(topology)
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    done = shell("GSUB_SITE=site.toml gsub x.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")


@pytest.mark.case("users 16")
def test_a_site_file_in_a_folder_that_may_not_be_entered_is_one_that_cannot_be_read(tmp_path, monkeypatch):
    from site_configs import site as module

    class Closed(type(tmp_path)):  # type: ignore[misc]
        def lstat(self):
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "DEFAULT_PATH", Closed(tmp_path / "site.toml"))
    assert module.find_site({}) == tmp_path / "site.toml"
    monkeypatch.setattr(module, "DEFAULT_PATH", tmp_path / "site.toml")
    assert module.find_site({}) is None
    (tmp_path / "site.toml").symlink_to("nowhere")
    assert module.find_site({}) == tmp_path / "site.toml"


# --- the environments of users --------------------------------------------------------------------------------------

LAUNCHER = REPOSITORY / "site_configs/packaging/gsub_launcher"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A virtual environment with gsub's script in it as pip puts it there; its packages are ours."""
    root = tmp_path / "opt gsub"
    library = root / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    library.mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "pyvenv.cfg").write_text(
        f"home = {Path(sys.base_prefix) / 'bin'}\ninclude-system-site-packages = false\n"
    )
    (root / "bin/python3").symlink_to(Path(sys.executable).resolve())
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (library / "ours.pth").write_text("\n".join([str(REPOSITORY), *ours]) + "\n")
    (root / "bin/gsub").write_bytes(LAUNCHER.read_bytes())
    (root / "bin/gsub").chmod(0o755)
    return root


def _poisoned(folder: Path) -> Path:
    """Modules with the names of ours and of Python's own, which end whoever imports them."""
    folder.mkdir(parents=True)
    for name in (
        "profiler",
        "gsub",
        "site_configs",
        "slurm_plugins",
        "re",
        "enum",
        "typing",
        "json",
        "sitecustomize",
    ):
        (folder / f"{name}.py").write_text("raise SystemExit('a stranger')\n")
    return folder


@pytest.mark.case("environments E1")
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONPATH": "{bad}"},
        {"PYTHONHOME": "/nowhere"},
        {"PYTHONHOME": "/usr"},
        {
            "PYTHONSTARTUP": "{bad}/re.py",
            "PYTHONSAFEPATH": "",
            "PYTHONUTF8": "0",
            "PYTHONIOENCODING": "ascii",
        },
        {"HOME": "{home}"},
        {"HOME": "/nonexistent"},
        {"HOME": ""},
        {
            "PYTHONPATH": "{bad}",
            "PYTHONHOME": "/nowhere",
            "HOME": "{home}",
            "PYTHONUSERBASE": "{home}/.local",
        },
    ],
    ids=str,
)
def test_no_environment_of_a_user_keeps_gsub_from_submitting(installed, shell, tmp_path, env, linked):
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = {"bad": str(_poisoned(tmp_path / "bad")), "home": str(tmp_path / "home")}
    _poisoned(tmp_path / f"home/.local/lib/{version}/site-packages")
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    gsub = installed / "bin/gsub"
    if linked:
        (tmp_path / "links").mkdir()
        (tmp_path / "links/gsub").symlink_to("../opt gsub/bin/gsub")
        (tmp_path / "link").symlink_to("links/gsub")
        gsub = tmp_path / "link"
    given = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "GSUB_SITE": ""}
    given |= {name: value.format(**places) for name, value in env.items()}
    for cwd in (tmp_path, tmp_path / "bad"):
        done = subprocess.run(
            [str(gsub), str(tmp_path / "x.sh")],
            env=given,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", ""), done


@pytest.mark.case("environments E1")
def test_words_pass_through_the_launcher_as_they_are(installed, tmp_path):
    sbatch = tmp_path / "there/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/sh\nfor word; do printf "<%s>" "$word"; done\n')
    sbatch.chmod(0o755)
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    env = {"PATH": f"{sbatch.parent}:{os.environ['PATH']}", "GSUB_SITE": ""}
    words = ["x.sh", "a b", "", "*", "$HOME", "'", '"', "\\", "-x", "\xe9", "\n"]
    done = subprocess.run(
        [str(installed / "bin/gsub"), *words],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "".join(f"<{word}>" for word in words), done


@pytest.mark.case("environments E1")
def test_without_an_environment_of_its_own_the_script_beside_names_the_python(installed, shell, tmp_path):
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    python = installed / "python/python3"
    python.parent.mkdir()
    (installed / "bin/python3").rename(python)
    (installed / "bin/gsubd").write_text(f"#!{python}\n")
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "GSUB_SITE": "",
        "PYTHONPATH": str(_poisoned(tmp_path / "b")),
    }
    done = subprocess.run(
        [str(installed / "bin/gsub"), "x.sh"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout == "Submitted batch job 7\n", done


@pytest.mark.case("environments E1")
def test_a_module_of_a_stranger_is_named(shell, tmp_path):
    (tmp_path / "x.sh").write_text("#!/bin/sh\n:\n")
    (tmp_path / "site.toml").write_text('cluster = "x"\n')
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange/profiler.py").write_text("")
    done = shell(f"PYTHONPATH={tmp_path}/strange:{REPOSITORY} gsub why --log x.sh")
    assert done.returncode == 1 and f"gsub: {tmp_path}/strange/profiler.py is not gsub's" in done.stderr, done
    assert "unset PYTHONPATH" in done.stderr and "internal error" not in done.stderr


@pytest.mark.case("environments E5")
@pytest.mark.parametrize("encoding", ["iso8859-1", "ascii", "iso8859-15", "koi8-r", "utf-8"])
def test_what_the_locale_cannot_write_is_replaced_and_the_answer_is_there(shell, tmp_path, encoding):
    text = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: 5 \u20ac, \u4e16\u754c, \U0001f600\n'
    (tmp_path / "log \u20ac.txt").write_text(text, encoding="utf-8")
    done = shell(
        f"PYTHONIOENCODING={encoding} gsub why --log 'log \u20ac.txt' 2>&1 | iconv -f {encoding} -t utf-8"
    )
    assert "ValueError: 5" in done.stdout and "internal error" not in done.stdout and not done.stderr, done
    assert ("\u20ac" in done.stdout) is (encoding in ("iso8859-15", "utf-8"))
    assert ("\u4e16\u754c" in done.stdout) is (encoding == "utf-8")


@pytest.fixture
def locales(tmp_path: Path) -> str:
    """A folder with a locale that is not UTF-8."""
    if not shutil.which("localedef"):
        pytest.skip("there is no localedef")
    folder = tmp_path / "locales"
    folder.mkdir()
    subprocess.run(
        ["localedef", "-i", "de_DE", "-f", "ISO-8859-1", str(folder / "de_DE.ISO-8859-1")],
        capture_output=True,
        check=False,
    )
    if not (folder / "de_DE.ISO-8859-1").exists():
        pytest.skip("localedef has no sources here")
    return str(folder)


@pytest.mark.case("environments E5")
def test_in_a_locale_that_is_not_utf_8_nothing_is_lost(installed, shell, locales, tmp_path):
    name = "caf\u00e9 \u20ac.sh"
    (tmp_path / name).write_text(
        "#!/bin/sh\n#SBATCH --output=/nowhere/\u20ac/out\ncat 'daten \u20ac.csv'\n", encoding="utf-8"
    )
    (tmp_path / "log.txt").write_text("ValueError: 5 \u20ac\n", encoding="utf-8")
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "GSUB_SITE": "", "LOCPATH": locales}
    env |= {"LC_ALL": "de_DE.ISO-8859-1", "HOME": str(tmp_path)}

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(installed / "bin/gsub"), *words], env=env, cwd=tmp_path, capture_output=True, timeout=60
        )

    why = run("why", "--log", "log.txt")
    assert b"ValueError: 5 ?" in why.stdout and b"internal error" not in why.stderr, why
    check = run("check", name)
    plain = subprocess.run(
        [str(installed / "bin/gsub"), "check", name],
        env=env | {"LC_ALL": "C.UTF-8"},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
    )
    assert check.returncode == plain.returncode
    assert b"UnicodeEncodeError" not in check.stdout
    assert check.stdout == plain.stdout.decode().encode("iso8859-1", "replace"), (check, plain)
    assert run("--no-preflight", name).returncode == 0
