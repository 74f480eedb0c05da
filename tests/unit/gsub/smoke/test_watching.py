"""A script as a child: its output bounded, its descendants all found and ended, what it has open seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gsub.smoke.watching import HEAD, TAIL, Watched, tree

PATIENCE_S = 60.0
# Each test has a process of its own: a child subreaper takes in the orphans of whatever else runs in it
RUN = """
import sys, time, json
from gsub.smoke.watching import Watched
watched = Watched(["/bin/bash", "-c", sys.argv[1]], cwd=sys.argv[2], environ={"PATH": "/usr/bin:/bin"})
until = time.monotonic() + float(sys.argv[3])
while watched.code is None and time.monotonic() < until:
    watched.look()
    time.sleep(0.02)
code = watched.code
began = time.monotonic()
watched.end(float(sys.argv[4]))
head, tail = watched.output.text
print(json.dumps({"code": code, "head": head[:200].decode(), "tail": tail[-200:].decode(), "size": len(head + tail),
    "left_out": watched.output.left_out, "opened": list(watched.opened), "peak": watched.peak,
    "ending": time.monotonic() - began, "heard": sum(len(data) for _, data in watched.output.heard())}))
"""


def ran(
    script: str, folder: Path, seconds: float = PATIENCE_S, patience: float = PATIENCE_S
) -> dict[str, object]:
    import json

    argv = [sys.executable, "-c", RUN, script, str(folder), str(seconds), str(patience)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def commands(word: str) -> int:
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            count += word.encode() in path.read_bytes()
        except OSError:
            continue
    return count


def test_its_output_and_exit_code_are_kept(tmp_path: Path) -> None:
    found = ran("echo begin; echo no >&2; exit 7", tmp_path)
    assert (found["code"], found["head"]) == (7, "begin\nno\n")


def test_of_endless_output_both_ends_are_kept_and_the_script_is_not_held_up(tmp_path: Path) -> None:
    found = ran("echo begin; head -c 30000000 /dev/zero | tr '\\0' x; echo end", tmp_path)
    assert str(found["head"]).startswith("begin\n") and str(found["tail"]).endswith("xend\n")
    assert found["size"] <= HEAD + TAIL + (1 << 16)  # type: ignore[operator]
    assert found["left_out"] == 30000000 + 10 - found["size"]  # type: ignore[operator]
    assert 0 < found["heard"] <= 5 << 20  # type: ignore[operator]


def test_what_left_its_session_and_what_heeds_no_term_is_ended_too(tmp_path: Path) -> None:
    mark = f"gsub_test_{os.getpid()}"
    script = f"""
        setsid bash -c 'trap "" TERM; exec -a {mark} sleep 1000' & disown
        (setsid bash -c 'sleep 1001 & exec -a {mark} sleep 1000' &)
        exec -a {mark} sleep 1000
    """
    found = ran(script, tmp_path, seconds=1.0, patience=0.5)
    assert found["code"] is None
    assert commands(mark) == 0


def test_a_script_that_ends_at_once_when_asked_is_not_waited_for(tmp_path: Path) -> None:
    found = ran("exec sleep 1000", tmp_path, seconds=0.3)
    assert found["ending"] < PATIENCE_S / 2  # type: ignore[operator]


def test_files_open_for_writing_are_seen_and_those_for_reading_are_not(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    found = ran("exec 3> model.pt 4< data 5> /dev/null; sleep 0.5", tmp_path)
    assert found["opened"] == [str(tmp_path / "model.pt")]


def test_memory_of_all_processes_counts(tmp_path: Path) -> None:
    use = f"{sys.executable} -c 'x = bytearray(60 << 20); import time; time.sleep(1)'"
    found = ran(f"{use} & {use}; wait", tmp_path)
    assert found["peak"] > 100 << 20  # type: ignore[operator]


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nothing"):
        Watched(["/bin/nothing"], cwd=str(tmp_path), environ={})


def test_a_tree_has_no_zombies() -> None:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    assert child.pid in tree(os.getpid())
    child.send_signal(signal.SIGKILL)
    until = time.monotonic() + PATIENCE_S
    while child.pid in tree(os.getpid()):
        assert time.monotonic() < until
    child.wait()


@pytest.mark.parametrize("name", ["x) Z 1 (", "a b", ") R 1 1", "\udcff\udcfe"])
def test_a_process_may_have_any_name(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "1000"])
    try:
        assert child.pid in tree(os.getpid())
    finally:
        child.kill()
        child.wait()
