"""The hooks, run by each shell that may be /bin/sh: they end soon and with 0, and what they say can be read."""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from prolog_epilog.agent.intake import parse
from tests.properties import examples
from tests.requirements import require
from tests.unit.prolog_epilog.agent.conftest import HOOKS, Installed, fill, mount
from tests.waiting import wait_until

EVENTS = ("prolog", "epilog")
JOB = {
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_RESTART_COUNT": "2",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "ada",
    "SLURM_JOB_GPUS": "0,3",
    "SLURM_JOB_WORK_DIR": "/home/ada",
}
BOUND = 5.0
"""Seconds in which a hook must have ended, on a machine with other work: its own limit is half a second."""


@pytest.fixture
def installed(hooks: Installed, shell: list[str]) -> Installed:
    hooks.shell = shell
    return hooks


def said(path: Path) -> dict[str, str]:
    return dict(parse(path, path.read_bytes(), 0.0).env)


@pytest.mark.parametrize("event", EVENTS)
def test_a_hook_leaves_one_file_that_says_what_slurm_told_it(installed: Installed, event: str) -> None:
    before = time.time()
    assert installed.hook(event, {**JOB, "SLURM_JOB_EXIT_CODE": "256"}) == (0, b"")
    (path,) = installed.files()
    assert re.fullmatch(rf"{event}\.4711\.2\.[0-9]+", path.name) and path.parent == installed.spool / "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert before - 1 <= path.stat().st_mtime <= time.time() + 1
    env = said(path)
    assert {key: env.get(key) for key in JOB} == JOB
    assert env["BOOT"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert env.get("SLURM_JOB_EXIT_CODE") == ("256" if event == "epilog" else None)
    assert "SLURM_JOB_ACCOUNT" not in env, "what Slurm did not tell is absent"


@pytest.mark.parametrize("event", EVENTS)
def test_an_empty_environment_is_no_reason_to_fail(installed: Installed, event: str) -> None:
    assert installed.hook(event, {}) == (0, b"")
    (path,) = installed.files()
    assert path.name.startswith(f"{event}.0.0.")


HOSTILE = [
    b"a\nb\n\nEVENT=epilog",
    b"'\"$(touch x)`touch x`;|&\\ * ? ~ %s \\0 %n",
    b"\xff\xfe\x80 \x01\x1b[2J",
    b"-n",
    b"=\t=",
    "日本 🚀".encode(),
    b"x" * 100_000,
    b"\n" * 50_000,
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_any_bytes_come_through_as_they_are(installed: Installed, value: bytes) -> None:
    env = {key.encode(): text.encode() for key, text in JOB.items()}
    env |= {b"SLURM_JOB_WORK_DIR": value, b"SLURM_JOB_STDOUT": value, b"SLURM_JOB_USER": value}
    code, output = installed.hook("epilog", env)
    assert (code, output) == (0, b"")
    (path,) = installed.files()
    entries = path.read_bytes().split(b"\0")
    assert b"SLURM_JOB_WORK_DIR=" + value in entries and b"SLURM_JOB_STDOUT=" + value in entries
    assert sorted(path.name for path in installed.folder.iterdir()) == ["epilog", "prolog"]


@rules(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=400).map(lambda data: data.replace(b"\0", b"n")))
def test_whatever_bytes_come_through_as_they_are(hooks: Installed, value: bytes) -> None:
    for path in hooks.files():
        path.unlink()
    assert hooks.hook("prolog", {b"SLURM_JOB_ID": b"5", b"SLURM_JOB_STDERR": value}) == (0, b"")
    (path,) = hooks.files()
    assert b"SLURM_JOB_STDERR=" + value in path.read_bytes().split(b"\0")


@pytest.mark.parametrize("job", ["../../x", "1/../../x", "", " 1", "1\n2", "-1", "9" * 300, "1;touch x", "*"])
def test_a_job_id_that_is_none_leads_nowhere_else(installed: Installed, job: str, tmp_path: Path) -> None:
    def elsewhere() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if path.parent not in new}

    new = {installed.spool / "new", installed.run / "new"}
    before = elsewhere()
    assert installed.hook("prolog", {**JOB, "SLURM_JOB_ID": job})[0] == 0
    assert elsewhere() == before


# --- folders that are no good ---


def test_without_the_spool_it_writes_to_the_folder_in_memory(installed: Installed) -> None:
    shutil.rmtree(installed.spool)
    assert installed.hook("epilog", JOB) == (0, b"")
    (path,) = installed.files()
    assert path.parent == installed.run / "new" and said(path)["SLURM_JOB_ID"] == "4711"


@pytest.mark.parametrize("event", EVENTS)
def test_without_any_folder_it_ends_well_all_the_same(installed: Installed, event: str) -> None:
    shutil.rmtree(installed.spool)
    shutil.rmtree(installed.run)
    assert installed.hook(event, JOB) == (0, b"")


def test_a_file_in_the_place_of_a_folder_is_no_reason_to_fail(installed: Installed) -> None:
    shutil.rmtree(installed.spool)
    installed.spool.write_text("")
    assert installed.hook("prolog", JOB) == (0, b"")
    assert [path.parent for path in installed.files(installed.run)] == [installed.run / "new"]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A place for a mount that is gone afterwards."""
    place = tmp_path / "mounted"
    place.mkdir()
    yield place
    subprocess.run(["umount", "-l", str(place)], capture_output=True)


@pytest.mark.root
def test_a_full_disk_costs_no_record(installed: Installed, mounted: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=16k", "none", str(mounted))
    (mounted / "new").mkdir()
    fill(mounted)
    installed.install(spool=mounted)
    assert installed.hook("epilog", JOB) == (0, b"")
    (path,) = installed.files(installed.run)
    assert said(path)["SLURM_JOB_ID"] == "4711"


@pytest.mark.root
def test_a_read_only_disk_costs_no_record(installed: Installed, mounted: Path) -> None:
    mount("-t", "tmpfs", "none", str(mounted))
    (mounted / "new").mkdir()
    mount("-o", "remount,ro", str(mounted))
    installed.install(spool=mounted)
    assert installed.hook("epilog", JOB) == (0, b"")
    assert len(installed.files(installed.run)) == 1


@pytest.fixture
def frozen(mounted: Path, tmp_path: Path) -> Iterator[Path]:
    """A file system on which every write hangs in the kernel, out of reach of SIGKILL."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    require("mkfs.ext4", "fsfreeze")
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount("-o", "loop", str(image), str(mounted))
    (mounted / "new").mkdir()
    subprocess.run(["fsfreeze", "-f", str(mounted)], check=True)
    yield mounted
    subprocess.run(["fsfreeze", "-u", str(mounted)], check=True)


def processes(script: Path) -> list[str]:
    """The states of the processes that run this hook still."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.fsencode(script) in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append((entry / "stat").read_text().rpartition(")")[2].split()[0])
            except OSError:
                continue
    return found


@pytest.mark.root
@pytest.mark.parametrize("event", EVENTS)
def test_a_disk_that_hangs_holds_up_nobody_and_costs_no_record(
    installed: Installed, frozen: Path, event: str
) -> None:
    installed.install(spool=frozen)
    started = time.monotonic()
    assert installed.hook(event, JOB) == (0, b"")
    assert time.monotonic() - started < BOUND
    assert processes(installed.folder / event) == ["D"], (
        "its child hangs in the kernel, or this tests nothing"
    )
    (path,) = installed.files(installed.run)
    assert said(path)["SLURM_JOB_ID"] == "4711"


@pytest.mark.root
@pytest.mark.parametrize("event", EVENTS)
def test_when_no_process_can_be_made_the_record_is_written_all_the_same(
    installed: Installed, event: str, tmp_path: Path
) -> None:
    if "bash" in installed.shell[0]:
        pytest.skip("bash tries again for 15 s by itself; slurmd could not start it at all then")
    nobody = 65534
    for folder in (tmp_path, *tmp_path.parents):
        if folder != folder.parent and folder.stat().st_uid == os.getuid() and str(folder) != "/tmp":
            folder.chmod(folder.stat().st_mode | 0o111)
    for path in (installed.spool, installed.run, *installed.spool.iterdir(), *installed.run.iterdir()):
        os.chown(path, nobody, nobody)
    # A limit of one process: the shell itself is it. Root would not be bound by it.
    limited = [
        "prlimit",
        "--nproc=1",
        "setpriv",
        f"--reuid={nobody}",
        "--clear-groups",
        *installed.argv(event),
    ]
    done = subprocess.run(limited, env={**JOB, "PATH": os.environ["PATH"]}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (path,) = installed.files(installed.run)
    assert said(path)["SLURM_JOB_ID"] == "4711"
    assert installed.files(installed.spool) == []


def test_it_needs_no_path_and_no_program_beside_the_shell(installed: Installed) -> None:
    for name in EVENTS:
        code = "\n".join(
            line.partition(" # ")[0]
            for line in (HOOKS / name).read_text().splitlines()
            if not line.startswith("#")
        )
        programs = set(re.findall(r"(?<![\w$\"'=])/(?:usr/)?s?bin/\w+", code))
        assert programs <= {"/bin/sleep", "/bin/date"}
    assert installed.hook("epilog", {**JOB, "PATH": "/nonexistent"}) == (0, b"")


@pytest.mark.parametrize("name", ["prolog", "epilog", "task_prolog"])
def test_the_hooks_are_short_and_end_with_exit_0(name: str) -> None:
    lines = (HOOKS / name).read_text().splitlines()
    assert lines[0] == "#!/bin/sh" and len(lines) < 30
    assert lines[-1] == "exit 0"
    assert os.access(HOOKS / name, os.X_OK)
    text = "\n".join(line for line in lines if not line.startswith("#"))
    for word in ("set -e", "eval", "scontrol", "squeue", "python", "/opt", "$PATH", "${PATH"):
        assert word not in text


# --- a drain that the agent asked for ---


def drain(hooks: Installed, text: str) -> None:
    (hooks.run / "drain").write_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "v1",
        "v1 \n",
        "v1 notatime GPU 3 lost\n",
        "v1 99999999999999999999999999 GPU\n",
        "v2 {later} GPU 3 lost\n",
        "v1 {earlier} GPU 3 lost\n",
        "\0\0\0",
        "v1 {later}; GPU\n",
        "v1 -n GPU\n",
        "x" * 100_000,
    ],
    ids=range(12),
)
def test_a_drain_file_that_says_nothing_for_now_drains_nothing(installed: Installed, text: str) -> None:
    now = int(time.time())
    drain(installed, text.format(later=now + 600, earlier=now - 1))
    code, _ = installed.hook("prolog", JOB)
    if "9999" in text:  # beyond what a shell can count: either way it is no number of a drain of ours
        assert code in (0, 1)
    else:
        assert code == 0
        assert len(installed.files()) == 1


def test_a_drain_that_holds_is_the_one_way_to_fail(installed: Installed) -> None:
    drain(installed, f"v1 {int(time.time()) + 600} gpu_count: 7 of 8 GPUs\n")
    code, output = installed.hook("prolog", JOB)
    assert (code, output) == (1, b"gsub: gpu_count: 7 of 8 GPUs\n")
    (path,) = installed.files()
    assert said(path)["SLURM_JOB_ID"] == "4711", "it was given this node all the same, and its epilog comes"
    assert installed.hook("epilog", JOB) == (0, b""), "an epilog never drains"
    shutil.rmtree(installed.spool)
    assert installed.hook("prolog", JOB)[0] == 1
    assert len(installed.files(installed.run)) == 1


def test_a_variable_of_the_environment_drains_nothing(installed: Installed) -> None:
    assert installed.hook("prolog", {**JOB, "refused": "1", "reason": "x", "expiry": "9", "RUN": "/x"}) == (
        0,
        b"",
    )


def test_the_kill_switch_lifts_the_drain(installed: Installed) -> None:
    drain(installed, f"v1 {int(time.time()) + 600} gpu_count: 7 of 8 GPUs\n")
    installed.off.write_text("")
    assert installed.hook("prolog", JOB) == (0, b"")


@pytest.mark.root
def test_a_drain_file_of_anybody_else_drains_nothing(installed: Installed) -> None:
    drain(installed, f"v1 {int(time.time()) + 600} because I can\n")
    os.chown(installed.run / "drain", 1000, 1000)
    assert installed.hook("prolog", JOB) == (0, b"")


@pytest.mark.root
def test_nothing_is_written_to_a_folder_that_is_not_ours(installed: Installed, tmp_path: Path) -> None:
    """Should the folder be another user's, root must not be led by a link to where it writes."""
    shutil.rmtree(installed.spool)
    target = tmp_path / "cron.d"
    target.mkdir()
    (installed.run / "new").rmdir()
    (installed.run / "new").symlink_to(target)
    assert installed.hook("epilog", JOB) == (0, b"")
    (installed.run / "new").unlink()
    (installed.run / "new").mkdir()
    os.chown(installed.run / "new", 1000, 1000)
    assert installed.hook("epilog", JOB) == (0, b"")
    assert list(target.iterdir()) == installed.files() == []


# --- many at once, and the task prolog ---


def test_many_at_once_leave_a_file_each(hooks: Installed) -> None:
    running = [hooks.start("prolog", {**JOB, "SLURM_JOB_ID": str(100 + n)}) for n in range(40)]
    assert [process.wait(60) for process in running] == [0] * 40
    for process in running:
        assert process.stdout is not None
        process.stdout.close()
    assert {said(path)["SLURM_JOB_ID"] for path in hooks.files()} == {str(100 + n) for n in range(40)}


def test_nothing_of_it_stays_behind(installed: Installed) -> None:
    assert installed.hook("epilog", JOB)[0] == 0
    # its child may be a moment later than itself
    wait_until(lambda: not processes(installed.folder / "epilog"), 30, "the end of its child")


@pytest.mark.parametrize(
    ("count", "says"),
    [(None, "0"), ("3", "3"), ("", "0"), ("1\nexport X=1", "0"), ("$(id)", "0"), ("9" * 9, "9" * 9)],
)
def test_the_task_prolog_says_how_often_the_job_was_requeued(
    shell: list[str], count: str | None, says: str
) -> None:
    env = {} if count is None else {"SLURM_RESTART_COUNT": count}
    done = subprocess.run([*shell, str(HOOKS / "task_prolog")], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"export GSUB_RESTART={says}\n", "")


def test_only_what_the_hooks_name_is_taken_from_the_environment(hooks: Installed) -> None:
    secret = "".join(string.ascii_letters)
    env = {**JOB, "SPANK_TOKEN": secret, "AWS_SECRET_ACCESS_KEY": secret, "SLURM_JOB_COMMENT": secret}
    hooks.hook("prolog", env)
    assert secret.encode() not in hooks.files()[0].read_bytes()
