"""The entry point by itself: streams that are closed or full, commands mistyped. No Slurm is asked."""

from __future__ import annotations

import os
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
@pytest.mark.parametrize("words", ["", "--json", "--dry-run", "--no-preflight"])
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
    assert len(lines) == 3 and lines[0].startswith("gsub: warning: the site file site.toml cannot be used"), done
    assert "as plain sbatch" in lines[0] and "administrators" in lines[2]
    assert ("7" in done.stdout) is (words != "--dry-run")


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
