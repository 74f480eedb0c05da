"""`gsub SCRIPT` and `gsub check SCRIPT` with a stand-in for sbatch that tells whether it was asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

SBATCH = "#!/bin/sh\necho called >>calls\ncat >given </dev/stdin\necho Submitted batch job 7\n"
GOOD = "#!/bin/bash\necho hello\n"
BAD = "#!/bin/bash\nset -e\nif true; then\n  python nothere.py\n"
WARNED = "#!/bin/bash\necho a\n#SBATCH --nodes=2\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gsub(tmp_path: Path) -> Run:
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text(SBATCH)
    program.chmod(0o755)
    for name, text in (("good.sh", GOOD), ("bad.sh", BAD), ("warned.sh", WARNED)):
        (tmp_path / name).write_text(text)

    def run(*words: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "calls").unlink(missing_ok=True)
        environ = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "GSUB_SITE": "",
            **env,
        }
        main = "import sys; from gsub.cli import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", main, *words],
            env=environ, cwd=tmp_path, input=given, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def called(tmp_path: Path) -> bool:
    return (tmp_path / "calls").exists()


def test_a_good_script_goes_to_sbatch_and_nothing_is_said(gsub: Run, tmp_path: Path) -> None:
    done = gsub("--parsable", "good.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Submitted batch job 7\n", "")
    assert called(tmp_path)


@pytest.mark.parametrize("words", [["bad.sh"], ["--parsable", "bad.sh", "x"], ["--array=1-3", "bad.sh"]])
def test_a_broken_script_is_not_queued(gsub: Run, tmp_path: Path, words: list[str]) -> None:
    done = gsub(*words)
    assert done.returncode == 1 and done.stdout == ""
    assert not called(tmp_path)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("gsub: this job would fail") and "nothing was submitted" in lines[0]
    assert lines[1].startswith("  bad.sh:4: bash does not understand") and lines[2].startswith("    try: ")
    assert "--no-preflight" in lines[-1]


def test_it_can_be_turned_off(gsub: Run, tmp_path: Path) -> None:
    assert gsub("--no-preflight", "bad.sh").returncode == 0 and called(tmp_path)
    assert gsub("bad.sh", GSUB_PREFLIGHT="off").returncode == 0 and called(tmp_path)


@pytest.mark.slow
def test_standard_input_reaches_sbatch_as_it_was(gsub: Run, tmp_path: Path) -> None:
    text = GOOD + "# é\n" * 50_000
    assert gsub("-N1", given=text).returncode == 0
    assert (tmp_path / "given").read_text() == text
    done = gsub("-N1", given=BAD)
    assert done.returncode == 1 and "standard input:4: bash" in done.stderr and not called(tmp_path)


def test_a_wrapped_command_is_a_script(gsub: Run, tmp_path: Path) -> None:
    assert gsub("--wrap=hostname").returncode == 0 and called(tmp_path)
    done = gsub("--wrap=if true; then hostname")
    assert done.returncode == 1 and "--wrap:1: sh does not understand" in done.stderr and not called(tmp_path)
    done = gsub("--wrap=python nothere.py")
    assert done.returncode == 1 and "--wrap:1: there is no such file: nothere.py" in done.stderr


def test_components_of_a_heterogeneous_job(gsub: Run, tmp_path: Path) -> None:
    assert gsub("-N1", ":", "-N2", "good.sh").returncode == 0 and called(tmp_path)
    assert gsub("-N1", ":", "-N2", "bad.sh").returncode == 1 and not called(tmp_path)


def test_warnings_are_told_in_json_and_not_in_a_pipe(gsub: Run, tmp_path: Path) -> None:
    done = gsub("warned.sh")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(gsub("--json", "warned.sh").stdout)
    assert [(one["level"], one["line"]) for one in facts["preflight"]] == [("warning", 3)]
    facts = json.loads(gsub("--json", "bad.sh").stdout)
    assert facts["exit_code"] == 1 and facts["preflight"][0]["line"] == 4 and not called(tmp_path)


def test_check_alone(gsub: Run, tmp_path: Path) -> None:
    good, bad, warned = (gsub("check", name) for name in ("good.sh", "bad.sh", "warned.sh"))
    assert (good.returncode, bad.returncode, warned.returncode) == (0, 1, 0)
    assert good.stdout == "0 errors, 0 warnings; nothing was submitted\n"
    assert "bad.sh:4: bash does not understand" in bad.stdout
    assert "warned.sh:3: warning: this #SBATCH line" in warned.stdout
    facts = json.loads(gsub("check", "--json", "bad.sh").stdout)
    assert facts["exit_code"] == 1 and facts["left_out"] == []
    assert gsub("check", "nosuch.sh").returncode == 2
    assert gsub("check", "--wrap=hostname").returncode == 0


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("echo 'allocation failure: Unable to contact slurm controller (connect failure)' >&2; exit 1",
         "the Slurm controller is out of reach"),
        ("echo 'allocation failure: Socket timed out on send/recv operation' >&2; exit 1",
         "the controller did not answer in time"),
    ],
)  # fmt: skip
def test_check_says_that_sbatch_was_not_answered(gsub: Run, tmp_path: Path, answer: str, why: str) -> None:
    """It was as if sbatch had found nothing wrong."""
    (tmp_path / "bin/sbatch").write_text(f"#!/bin/sh\n{answer}\n")
    done = gsub("check", "--json", "good.sh")
    facts = json.loads(done.stdout)
    assert done.returncode == facts["exit_code"] == 0
    assert facts["left_out"] == [{"check": "test-only", "why": why}]
    assert gsub("check", "good.sh").stdout.startswith(f"not looked at: test-only ({why})\n")


def test_check_of_a_pipe_leaves_out_sbatch_alone(gsub: Run, tmp_path: Path) -> None:
    done = gsub("check", "--json", "/dev/stdin", given=WARNED)
    facts = json.loads(done.stdout)
    assert [one["line"] for one in facts["preflight"]] == [3] and not called(tmp_path)
    assert [one["check"] for one in facts["left_out"]] == ["test-only"] and facts["exit_code"] == 0


def test_help_is_still_sbatchs(gsub: Run, tmp_path: Path) -> None:
    """Standard input is not read for what is no submission."""
    done = gsub("-N1", "--help", given=BAD)
    assert done.returncode == 0 and called(tmp_path)
