"""No code of a user's runs, nothing waits for ever, and nothing that goes wrong in a check stands in a job's way."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gsub.preflight.children import child, read_file, shell_environment
from gsub.preflight.runner import preflight
from gsub.preflight.table import CHECKS, Check
from gsub.preflight.values import Finding, LeftOutError, Submission
from tests.unit.gsub.preflight.conftest import PATIENCE, Lay
from tests.unit.gsub.preflight.scripts import ACTIVATE, HEAD, Case
from tests.waiting import wait_until

BOOM = "import os\nos.mkdir('{}')\n"


def test_nothing_of_the_users_is_run(laid: Lay, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path.cwd()
    ran = folder / "ran"
    boom = BOOM.format(ran)
    site = next((home / "env/lib").glob("python3*/site-packages"))
    trap = [site / name for name in ("sitecustomize.py", "usercustomize.py", "trap.py")]
    (site / "trap.pth").write_text(f"import os; os.makedirs({str(ran)!r})\n")
    for path in trap:
        path.write_text(boom)
    files = {
        name: boom + "x = (\n" if name == "broken.py" else boom
        for name in (
            "train.py",
            "conftest.py",
            "sitecustomize.py",
            "json.py",
            "ast.py",
            "os.py",
            "broken.py",
            "setup.py",
        )
    }
    files["train.py"] += "import broken, json, trap, conftest\n"
    files["profile.sh"] = f"mkdir {ran}\n"
    script = HEAD + ACTIVATE + f"srun python train.py\nmkdir {ran}\n$(mkdir {ran})\n`mkdir {ran}`\n"
    monkeypatch.setenv("BASH_ENV", str(folder / "profile.sh"))
    monkeypatch.setenv("ENV", str(folder / "profile.sh"))
    try:
        found = laid(Case("traps", script, files))
        environ = {
            **found.environ,
            "BASH_ENV": f"{folder}/profile.sh",
            "PYTHONPATH": str(folder),
            "PYTHONSTARTUP": "train.py",
        }
        rows = [replace(check, deadline=PATIENCE) for check in CHECKS if check.name != "test-only"]
        verdict = preflight(replace(found, environ=environ), alone=True, deadline=PATIENCE, checks=rows)
    finally:
        for path in (*trap, site / "trap.pth"):
            path.unlink()
    assert not ran.exists()
    # they were looked at all the same
    assert any(one.file == "broken.py" for one in verdict.findings), verdict
    assert not (folder / "__pycache__").exists()


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError):
            read_file(str(path))
    (tmp_path / "big").write_bytes(b"x" * 5000)
    assert len(read_file(str(tmp_path / "big"), 100)) == 100


@pytest.mark.parametrize("made", ["fifo", "loop", "device"])
def test_what_is_named_may_be_anything(laid: Lay, made: str) -> None:
    found = laid(Case("odd", HEAD + "set -e\nsource env.sh\npython train.py --data d < d\n"))
    for name in ("env.sh", "train.py", "d"):
        if made == "fifo":
            os.mkfifo(name)
        else:
            Path(name).symlink_to(name if made == "loop" else "/dev/zero")
    rows = [replace(check, deadline=PATIENCE) for check in CHECKS if check.name != "test-only"]
    begun = time.monotonic()
    verdict = preflight(found, alone=False, deadline=PATIENCE, checks=rows)
    assert not verdict.given_up and not verdict.errors
    assert time.monotonic() - begun < PATIENCE


def _slow(_: Submission) -> Iterator[Finding]:
    time.sleep(600)
    yield Finding("error", "x", 1, "late", "")


def _wrong(_: Submission) -> Iterator[Finding]:
    raise RuntimeError("a bug of ours")


def _right(submission: Submission) -> Iterator[Finding]:
    yield submission.finding("error", 2, "it is so", "mend it")


def test_a_check_that_hangs_or_breaks_is_left_out() -> None:
    rows = [Check("slow", "", _slow, 0.2), Check("wrong", "", _wrong), Check("right", "", _right, PATIENCE)]
    begun = time.monotonic()
    verdict = preflight(Submission("job.sh", "#!/bin/sh\n"), alone=False, deadline=PATIENCE, checks=rows)
    assert time.monotonic() - begun < PATIENCE
    assert [(one.check, one.where) for one in verdict.findings] == [("right", "job.sh:2")]
    assert dict(verdict.given_up).keys() == {"slow", "wrong"}


def _unanswered(submission: Submission) -> Iterator[Finding]:
    yield submission.finding("warning", 2, "it is so", "mend it")
    raise LeftOutError("the controller is away")


def test_what_a_check_found_before_it_was_left_out_counts() -> None:
    rows = [Check("asks", "", _unanswered, PATIENCE)]
    verdict = preflight(Submission("job.sh", "#!/bin/sh\n"), alone=True, deadline=PATIENCE, checks=rows)
    assert [one.what for one in verdict.findings] == ["it is so"]
    assert verdict.given_up == (("asks", "the controller is away"),)


def test_a_child_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"sleep 600 & echo $! >{mark}; sleep 600"
    said = child(["sh", "-c", script], environ=shell_environment(os.environ), seconds=1.0)
    assert said.code is None
    pid = int(mark.read_text())
    wait_until(lambda: _has_ended(pid), 60, "the end of the child's child")


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def test_a_child_that_cannot_be_started_says_nothing() -> None:
    assert child(["/no/such/program"], environ={}).code is None
    assert child(["true"], environ={}, folder="/no/such/folder").code is None


def test_text_of_a_users_file_is_one_harmless_line(laid: Lay) -> None:
    from gsub.preflight.gate import lines_of

    found = laid(Case("odd names", HEAD + "set -e\npython 'a\x1b[31m\nb.py'\n"))
    verdict = preflight(
        found, alone=False, deadline=PATIENCE, checks=[c for c in CHECKS if c.name == "files"]
    )
    assert verdict.findings
    for finding in verdict.findings:
        assert not any(ord(char) < 32 or ord(char) == 127 for line in lines_of(finding) for char in line)
        assert "\\u001b" not in str(finding.facts())
