"""A site's own program as a check: its exit code, its first line, and whatever odd things it may do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from prolog_epilog.health.command import ENVIRONMENT, run
from prolog_epilog.health.tasks import Task


def script(tmp_path: Path, body: str) -> Task:
    path = tmp_path / "check"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return Task("mine", "command", deadline=30.0, command=(str(path),), node="n1")


@pytest.mark.parametrize(
    ("body", "state", "detail"),
    [
        ("exit 0", "ok", ""),
        ("echo all is well", "ok", "all is well"),
        ("echo hm >&2; exit 1", "warning", "hm"),
        ("echo bad; echo more; exit 2", "error", "bad"),
        ("exit 3", "error", "ended with exit code 3"),
        ("echo; echo second line; exit 127", "error", "second line"),
        ("kill -9 $$", "error", "ended by signal 9"),
        (r"printf '\033[31mred\a\n'; exit 1", "warning", "[31mred"),
        (r"printf '\377\376broken'; exit 1", "warning", "\ufffd\ufffdbroken"),
        ("yes | head -c 3000000; exit 1", "warning", "y"),
        ("head -c 1000000 /dev/zero | tr '\\0' x; exit 2", "error", "x" * 200),
    ],
)
def test_what_it_says(tmp_path, body, state, detail):
    found = run(script(tmp_path, body))
    assert (found.state, found.detail) == (state, detail)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "No such file or directory"),
        (lambda path: path.write_text("#!/bin/sh\n"), "Permission denied"),
        (lambda path: (path.write_text("garbage"), path.chmod(0o755)), "Exec format error"),
    ],
)
def test_one_that_cannot_be_started_is_unknown(tmp_path, make, why):
    path = tmp_path / "check"
    make(path)
    if why == "Permission denied" and os.access(path, os.X_OK):
        pytest.skip("everything may be run here")
    found = run(Task("mine", "command", command=(str(path),)))
    assert found.state == "unknown" and why in found.detail and str(path) in found.detail


def test_it_gets_a_plain_environment_and_no_input(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_NOT_REALLY", "secret")
    found = run(script(tmp_path, f"env > {tmp_path}/env; cat > {tmp_path}/input; pwd > {tmp_path}/pwd"))
    assert found.state == "ok"
    lines = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    own = {"GSUB_NODE": "n1", "GSUB_CHECK": "mine", **ENVIRONMENT}
    assert {key: lines.get(key) for key in own} == own
    assert set(lines) - set(own) <= {"PWD", "OLDPWD", "SHLVL", "_"}  # the shell's own
    assert (tmp_path / "input").read_bytes() == b""
    assert (tmp_path / "pwd").read_text() == "/\n"


def test_no_shell_reads_its_arguments(tmp_path):
    task = Task("mine", "command", command=("/bin/echo", f"$(touch {tmp_path}/made); `id`"))
    found = run(task)
    assert found.detail == f"$(touch {tmp_path}/made); `id`"
    assert not (tmp_path / "made").exists()


def test_one_that_leaves_something_behind_with_its_output_has_ended(tmp_path):
    begun = time.monotonic()
    found = run(script(tmp_path, "sleep 300 & echo $! > " + str(tmp_path / "pid") + "; echo started"))
    os.kill(int((tmp_path / "pid").read_text()), 9)
    assert (found.state, found.detail) == ("ok", "started")
    assert time.monotonic() - begun < 25


@pytest.mark.slow
def test_one_that_takes_too_long_is_unknown(tmp_path):
    task = script(
        tmp_path, "trap '' TERM; echo $$ > " + str(tmp_path / "pid") + "; while :; do sleep 1; done"
    )
    found = run(Task("mine", "command", deadline=2.0, command=task.command))
    assert (found.state, found.detail) == ("unknown", "did not end within 2 s")


def give_to_a_group(file: Path) -> None:
    os.chown(file, 0, 1000)
    file.chmod(0o775)


@pytest.mark.case("A8")
@pytest.mark.root
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda file: file.chmod(0o777), "everybody may write to {file}"),
        (give_to_a_group, "the group 1000 may write to {file}"),
        (lambda file: os.chown(file, 1000, 0), "{file} belongs to uid 1000"),
        (lambda file: file.parent.chmod(0o777), "everybody may write to {file.parent}"),
        (lambda file: os.chown(file.parent.parent, 1000, 0), "{file.parent.parent} belongs to uid 1000"),
        (lambda file: file.parent.chmod(0o1777), ""),
        (lambda file: os.chown(file, 0, 0), ""),
    ],
)
@pytest.mark.parametrize("way", ["itself", "link", "interpreter"])
def test_what_others_may_write_is_not_run_as_root(tmp_path: Path, spoil: Any, why: str, way: str) -> None:
    """Neither the program, nor where a link leads, nor a script that an interpreter reads."""
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    task, made = script(folder, f"touch {tmp_path}/made"), tmp_path / "made"
    file = Path(task.command[0])
    spoil(file)
    link = tmp_path / "link"
    link.symlink_to(file)
    command = {"itself": task.command, "link": (str(link),), "interpreter": ("/bin/sh", str(link))}[way]
    found = run(Task("mine", "command", deadline=30.0, command=command))
    assert made.exists() == (not why)
    assert found.state == ("unknown" if why else "ok") and why.format(file=file) in found.detail


@pytest.mark.case("A8")
@pytest.mark.root
def test_a_link_of_a_users_leads_nowhere(tmp_path: Path) -> None:
    task, link = script(tmp_path, "true"), tmp_path / "link"
    link.symlink_to(task.command[0])
    os.chown(link, 1000, 1000, follow_symlinks=False)
    assert "belongs to uid 1000" in run(Task("mine", "command", command=(str(link),))).detail
