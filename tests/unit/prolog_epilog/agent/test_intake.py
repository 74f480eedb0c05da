"""Hooks' files are read for what they say, whatever their bytes; what cannot be is set aside with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from profiler.records import JobRef, decode, encode
from prolog_epilog.agent import intake
from prolog_epilog.agent.intake import Intake, UnfitError, WaitError, ended, exit_of, parse, started
from prolog_epilog.agent.watch import FolderWatch
from tests.properties import examples
from tests.unit.prolog_epilog.agent.conftest import Installed
from tests.unit.prolog_epilog.agent.fakes import hook_bytes

PROLOG = Path("/s/new/prolog.7.0.99")
EPILOG = Path("/s/new/epilog.7.0.99")


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SLURM_JOB_EXIT_CODE": "0"}, (0, 0)),
        ({"SLURM_JOB_EXIT_CODE": "256"}, (1, 0)),
        ({"SLURM_JOB_EXIT_CODE": "9"}, (0, 9)),
        ({"SLURM_JOB_EXIT_CODE": str(0x80 | 11)}, (0, 11)),  # with a core
        ({"SLURM_JOB_EXIT_CODE": str(143 << 8)}, (143, 0)),
        ({"SLURM_JOB_EXIT_CODE2": "3:0"}, (3, 0)),
        ({"SLURM_JOB_EXIT_CODE2": "0:15"}, (0, 15)),
        ({"SLURM_JOB_EXIT_CODE": "512", "SLURM_JOB_EXIT_CODE2": "2:0"}, (2, 0)),
        ({"SLURM_JOB_EXIT_CODE": "4294967294"}, (None, None)),  # Slurm's NO_VAL
        ({"SLURM_JOB_EXIT_CODE": "-1"}, (None, None)),
        ({"SLURM_JOB_EXIT_CODE2": "x:y"}, (None, None)),
        ({"SLURM_JOB_EXIT_CODE2": "300:200"}, (None, None)),
        ({}, (None, None)),
    ],
)
def test_an_exit_code_is_what_wait_gave(env: dict[str, str], says: tuple[int | None, int | None]) -> None:
    assert exit_of(env) == says


def test_what_slurm_told_is_in_the_record() -> None:
    data = hook_bytes(
        "prolog",
        SLURM_JOB_ID="7",
        SLURM_JOB_RESTART_COUNT="3",
        SLURM_JOB_UID="1000",
        SLURM_JOB_GID="100",
        SLURM_JOB_USER="ada",
        SLURM_JOB_ACCOUNT="physics",
        SLURM_JOB_PARTITION="gpu",
        SLURM_NODELIST="n[1-2]",
        SLURM_HET_JOB_ID="6",
        SLURM_JOB_WORK_DIR=b"/home/\xff/a\nb",
        SLURM_JOB_STDOUT="slurm-%j.out",
    )
    hook = parse(PROLOG, data, 5.0)
    record = started(hook, cluster="lab", node="n1", job=hook.job, gpus=())
    assert decode(encode(record)) == record
    assert (record.job, record.uid, record.gid, record.user) == (JobRef(7, 3), 1000, 100, "ada")
    assert (record.nodes, record.het_job_id, record.at) == ("n[1-2]", 6, 5.0)
    assert record.work_dir == "/home/\\xff/a\nb"
    assert record.stderr == "" and record.stdout == "slurm-%j.out"


def test_what_does_not_fit_is_left_out_and_not_cut() -> None:
    long = "x" * 100_000
    data = hook_bytes(
        "prolog", SLURM_JOB_ID="7", SLURM_JOB_USER=long, SLURM_JOB_WORK_DIR=long, SLURM_JOB_UID="9" * 30
    )
    hook = parse(PROLOG, data, 5.0)
    record = started(hook, cluster="lab", node="n1", job=hook.job, gpus=None)
    assert (record.user, record.work_dir, record.uid) == ("", "", None)
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("prolog.7.0", b"", "name"),
        ("prolog.7.0.99.x", b"", "name"),
        ("epilogue.7.0.1", b"", "name"),
        ("prolog.7.0.99", hook_bytes("prolog", GSUB_HOOK="2", SLURM_JOB_ID="7"), "version '2'"),
        ("prolog.7.0.99", b"SLURM_JOB_ID=7\0END=1\0", "version ''"),
        ("prolog.7.0.99", hook_bytes("epilog", SLURM_JOB_ID="7"), "another event"),
        ("prolog.0.0.99", hook_bytes("prolog"), "no job"),
        ("prolog.7.0.99", hook_bytes("prolog", SLURM_JOB_ID="99999999999"), "no job"),
        ("prolog.7.0.99", hook_bytes("prolog", SLURM_JOB_ID="7 8"), "no job"),
        # srun --no-allocate draws its own number, which slurmctld has no job for
        pytest.param("prolog.4294952826.0.99", hook_bytes("prolog"), "no job", marks=pytest.mark.case("T2")),
    ],
)
def test_what_cannot_be_understood_says_why(name: str, data: bytes, why: str) -> None:
    with pytest.raises(UnfitError, match=why):
        parse(Path(name), data, 0.0)


@given(st.integers(0, 200))
def test_a_file_that_was_cut_off_still_tells_that_it_happened(length: int) -> None:
    whole = hook_bytes("epilog", SLURM_JOB_ID="7", SLURM_JOB_EXIT_CODE="256", SLURM_JOB_WORK_DIR="/home/ada")
    data = whole[: min(length, len(whole) - 1)]
    with pytest.raises(WaitError):
        parse(EPILOG, data, 5.0)
    hook = parse(EPILOG, data, 5.0, patient=False)
    assert (hook.job, hook.event, hook.whole) == (JobRef(7), "epilog", False)
    assert hook.env.get("SLURM_JOB_EXIT_CODE") in (None, "256"), "never half a value"
    assert exit_of(hook.env) in ((None, None), (1, 0))


@rules(max_examples=examples(300))
@given(st.binary(max_size=300))
def test_no_bytes_are_too_wicked(data: bytes) -> None:
    for suffix in (b"", b"\0END=1\0"):
        try:
            hook = parse(PROLOG, b"GSUB_HOOK=1\0" + data + suffix, 1.0, patient=False)
        except UnfitError as error:
            assert len(str(error)) < 500
            continue
        for record in (
            started(hook, cluster="lab", node="n1", job=hook.job, gpus=None),
            ended(hook, cluster="lab", node="n1", job=hook.job),
        ):
            assert decode(encode(record)) == record


# --- the folders ---


@pytest.fixture
def folder(tmp_path: Path) -> Intake:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return Intake([tmp_path / "a", tmp_path / "b"], tmp_path / "poison")


def leave(folder: Path, name: str, data: bytes, at: float) -> Path:
    path = folder / name
    path.write_bytes(data)
    os.utime(path, (at, at))
    return path


def test_what_happened_first_comes_first(folder: Intake, tmp_path: Path) -> None:
    def hook(place: str, name: str, at: float) -> None:
        event, job, restarts, _ = name.split(".")
        data = hook_bytes(event, SLURM_JOB_ID=job, SLURM_JOB_RESTART_COUNT=restarts)
        leave(tmp_path / place, name, data, at)

    hook("a", "epilog.7.1.2", 100.0)  # of the attempt before: Slurm has counted it by then
    hook("b", "prolog.7.0.1", 50.0)
    hook("a", "prolog.7.1.3", 150.0)
    hook("b", "epilog.7.1.4", 150.0)
    hook("a", "prolog.5.0.9", 120.0)
    hooks, unfit = folder.waiting(0.0)
    assert [hook.path.name[:10] for hook in hooks] == [
        "prolog.7.0",
        "epilog.7.1",
        "prolog.5.0",
        "prolog.7.1",
        "epilog.7.1",
    ]
    assert unfit == []


def test_a_half_written_file_is_waited_for_and_then_taken_for_what_it_is(
    folder: Intake, tmp_path: Path
) -> None:
    path = leave(
        tmp_path / "a", "prolog.7.0.1", hook_bytes("prolog", SLURM_JOB_ID="7", SLURM_JOB_USER="ada")[:-7], 1
    )
    assert folder.waiting(10.0) == ([], []) and folder.incomplete
    assert folder.waiting(14.9) == ([], [])
    (hook,), _ = folder.waiting(15.1)
    assert not hook.whole and hook.job == JobRef(7) and not folder.incomplete
    folder.done(path)
    assert folder.waiting(20.0) == ([], [])


def test_a_half_written_file_that_gets_whole_is_whole(folder: Intake, tmp_path: Path) -> None:
    data = hook_bytes("prolog", SLURM_JOB_ID="7")
    leave(tmp_path / "a", "prolog.7.0.1", data[:20], 1)
    assert folder.waiting(10.0) == ([], [])
    leave(tmp_path / "a", "prolog.7.0.1", data, 1)
    (hook,), _ = folder.waiting(60.0)
    assert hook.whole


def test_what_is_no_file_of_a_hook_is_set_aside(folder: Intake, tmp_path: Path) -> None:
    here = tmp_path / "a"
    (here / "prolog.1.0.1").symlink_to("/etc/passwd")
    (here / "prolog.2.0.1").mkdir()
    os.mkfifo(here / "prolog.3.0.1")
    (here / ".tmp.x").write_text("left alone")
    leave(here, "prolog.4.0.1", b"x" * (intake._MAX_BYTES + 1), 1)
    leave(here, "readme", b"", 1)
    hooks, unfit = folder.waiting(0.0)
    assert hooks == []
    assert {path.name: why.split()[-1] for path, why in unfit} == {
        "prolog.1.0.1": "link",
        "prolog.2.0.1": "file",
        "prolog.3.0.1": "file",
        "prolog.4.0.1": "bytes",
        "readme": "gives",
    }
    for path, _ in unfit:
        folder.set_aside(path)
    assert folder.waiting(0.0) == ([], [])
    assert (tmp_path / "poison" / "hook-readme").exists() and (here / ".tmp.x").exists()


@pytest.mark.root
def test_a_file_of_another_user_is_not_believed(folder: Intake, tmp_path: Path) -> None:
    path = leave(tmp_path / "a", "prolog.7.0.1", hook_bytes("prolog", SLURM_JOB_ID="7"), 1)
    os.chown(path, 1000, 1000)
    hooks, unfit = folder.waiting(0.0)
    assert hooks == [] and [why for _, why in unfit] == ["it belongs to uid 1000"]


def test_a_link_in_the_place_of_a_folder_leads_to_no_file(folder: Intake, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    leave(elsewhere, "prolog.7.0.1", hook_bytes("prolog", SLURM_JOB_ID="7"), 1)
    leave(elsewhere, "passwd", b"root", 1)
    waiting = leave(tmp_path / "a", "passwd", b"", 1)
    waiting.unlink()
    (tmp_path / "a").rmdir()
    (tmp_path / "a").symlink_to(elsewhere)
    assert folder.waiting(0.0) == ([], [])
    for wrong in (folder.done, folder.set_aside):  # it was put there after the look
        with pytest.raises(OSError):
            wrong(waiting)
    assert sorted(path.name for path in elsewhere.iterdir()) == ["passwd", "prolog.7.0.1"]
    watch = FolderWatch([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(OSError):
        watch.renew()
    assert watch.usable == {tmp_path / "b"} and elsewhere.stat().st_mode & 0o777 == 0o755
    watch.close()


def test_a_folder_in_which_others_write_is_not_believed(folder: Intake, tmp_path: Path) -> None:
    leave(tmp_path / "a", "prolog.7.0.1", hook_bytes("prolog", SLURM_JOB_ID="7"), 1)
    (tmp_path / "a").chmod(0o777)
    assert folder.waiting(0.0) == ([], [])


@pytest.mark.root
def test_a_folder_of_another_user_is_not_believed(folder: Intake, tmp_path: Path) -> None:
    leave(tmp_path / "a", "prolog.7.0.1", hook_bytes("prolog", SLURM_JOB_ID="7"), 1)
    os.chown(tmp_path / "a", 1000, 1000)
    assert folder.waiting(0.0) == ([], [])
    with pytest.raises(PermissionError):
        FolderWatch([tmp_path / "a"]).renew()


def test_only_so_many_are_kept_for_a_look(folder: Intake, tmp_path: Path) -> None:
    for number in range(130):
        folder.set_aside(leave(tmp_path / "a", f"junk{number}", b"", number))
    kept = {path.name for path in (tmp_path / "poison").iterdir()}
    assert kept == {f"hook-junk{number}" for number in range(30, 130)}


def test_what_the_hooks_write_is_what_is_read(hooks: Installed) -> None:
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "1,3",
        "SLURM_JOB_EXIT_CODE2": "2:0",
        "SLURM_JOB_USER": "a\nb",
    }
    assert [hooks.hook(name, env)[0] for name in ("prolog", "epilog")] == [0, 0]
    waiting, unfit = Intake([hooks.run / "new", hooks.spool / "new"], hooks.spool / "poison").waiting(0.0)
    assert [hook.event for hook in waiting] == ["prolog", "epilog"] and unfit == []
    assert waiting[0].gpu_env == {"SLURM_JOB_GPUS": "1,3"} and not waiting[0].counted
    assert exit_of(waiting[1].env) == (2, 0)
