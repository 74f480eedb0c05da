"""What a job's logs tell, read with the rights that this process has: which files are read, and what is not seen."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from profiler.findings import Finding
from prolog_epilog.failures import child, logfiles
from prolog_epilog.failures.child import investigate
from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.logfiles import OTHERS, JobNames, Surroundings, expand, named_in
from prolog_epilog.failures.question import Question
from prolog_epilog.failures.text import LogText
from tests.measured import run_measured
from tests.unit.prolog_epilog.failures.rig import question

TRACEBACK = """Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in <module>
    import nonesuch
ModuleNotFoundError: No module named 'nonesuch'
"""


def asked(*files: Path | str, **more: Any) -> Question:
    return question(*files, uid=os.getuid(), gid=None, **more)


def write(path: Path, text: str = TRACEBACK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def read(found: Question) -> tuple[Finding, list[str]]:
    """The finding, and the names of the logs that were read for it, in their order."""
    names: list[str] = []

    def note(logs: Sequence[LogText]) -> Finding:
        names.extend(Path(log.name).name for log in logs)
        return classify(logs)

    return investigate(found, note), names


# --- which files are read -------------------------------------------------------------------------------------------


def test_the_jobs_own_streams_are_read_once_each(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out")
    (tmp_path / "slurm-17.err").symlink_to(out)
    finding, names = read(asked(out, tmp_path / "slurm-17.err", out))
    assert names == ["slurm-17.out"]
    assert finding.evidence[0].file == str(out)
    assert finding.unseen == ()


def test_files_beside_it_that_bear_its_number_are_read(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    for name in ("rank1-17.out", "17.log", "worker.17", "rank2-17.out.1"):
        write(tmp_path / name)
    for name in ("slurm-175.out", "slurm-217.out", "slurm-12_17.out", "rank-17.ckpt", "other.out"):
        write(tmp_path / name)
    (tmp_path / "folder-17.out").mkdir()
    (tmp_path / "link-17.out").symlink_to(write(tmp_path / "x"))
    assert read(asked(out))[1] == ["slurm-17.out", "17.log", "rank1-17.out", "rank2-17.out.1", "worker.17"]


def test_a_task_of_an_array_is_told_from_a_job_of_that_number(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-12_17.out", "epoch 1\n")
    for name in ("rank1-12_17.out", "rank1-17.out", "rank1-12_170.out"):
        write(tmp_path / name)
    assert read(asked(out, ids=("12_17",)))[1] == ["slurm-12_17.out", "rank1-12_17.out"]


def test_files_that_did_not_change_during_the_job_are_not_its(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    os.utime(write(tmp_path / "rank1-17.out"), (1e9, 1e9))
    assert read(asked(out))[1] == ["slurm-17.out"]


def test_files_of_another_user_are_not_its(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    write(tmp_path / "rank1-17.out")
    assert read(question(out, uid=os.getuid() + 1, gid=None))[1] == ["slurm-17.out"]


def test_torchruns_logs_are_read_below_the_folder_that_the_output_names(tmp_path: Path) -> None:
    write(tmp_path / "logs/none_x/attempt_0/0/stdout.log", "epoch 1\n")
    error = write(tmp_path / "logs/none_x/attempt_0/3/stderr.log")
    write(tmp_path / "logs/none_x/attempt_0/3/notes.txt")
    write(tmp_path / "logs/1/2/3/4/5/6/7/8/stderr.log")  # deeper than torchrun goes
    out = write(tmp_path / "slurm-17.out", "+ torchrun --log-dir=logs train.py\nepoch 1\n")
    finding, names = read(asked(out))
    assert names == ["slurm-17.out", "stdout.log", "stderr.log"]
    assert finding.evidence[0].file == str(error)
    elsewhere = write(tmp_path / "out/slurm-17.out", out.read_text())
    assert read(asked(elsewhere))[1] == ["slurm-17.out"]
    assert read(asked(elsewhere, work_dir=str(tmp_path)))[1] == names


def test_error_files_that_the_output_names_are_read(tmp_path: Path) -> None:
    error = write(tmp_path / "e/0/error.json", '{"message": {"message": "CUDA out of memory"}}')
    strange = tmp_path / "not\x1bprintable.json"
    write(strange)
    out = write(tmp_path / "slurm-17.out", f"  error_file: {error}\n  error_file: {strange}\n")
    assert read(asked(out))[1] == ["slurm-17.out", "error.json"]


# --- what is not seen is told ---------------------------------------------------------------------------------------


def test_of_more_logs_than_are_read_it_is_told_how_many_there_are(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    for rank in range(OTHERS + 5):
        write(tmp_path / f"rank{rank}-17.out", f"rank {rank}\n")
    finding, names = read(asked(out))
    assert len(names) == 1 + OTHERS
    assert f"{tmp_path} has {OTHERS + 5} more logs of this job, of which {OTHERS} were read" in finding.unseen


def test_of_logs_in_several_places_as_many_are_read_in_all(tmp_path: Path) -> None:
    outs = [write(tmp_path / name / "slurm-17.out", f"{name}\n") for name in "ab"]
    for rank in range(OTHERS - 1):
        write(outs[0].parent / f"rank{rank}-17.out", "1\n")
        write(outs[1].parent / f"rank{rank}-17.out", "1\n")
    finding, names = read(asked(*outs))
    assert len(names) == 2 + OTHERS
    assert f"of {2 * (OTHERS - 1)} logs of its other processes {OTHERS} were read" in finding.unseen


def test_a_folder_that_holds_too_much_is_not_searched_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfiles, "ENTRIES", 3)
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    for number in range(5):
        write(tmp_path / f"x{number}")
    assert read(asked(out))[0].unseen == (
        f"{tmp_path} holds too much to look for other ranks' logs in all of it",
    )


def test_nor_is_one_for_which_there_is_no_time_left(tmp_path: Path) -> None:
    write(tmp_path / "rank1-17.out")
    around = Surroundings(os.getuid(), ("17",), 0, seconds=-1)
    assert around.beside(str(tmp_path / "slurm-17.out")) == []
    assert around.beside(str(tmp_path / "slurm-17.out")) == []
    assert around.unseen == [f"{tmp_path} holds too much to look for other ranks' logs in all of it"]


def test_a_folder_that_is_not_there_has_no_other_logs(tmp_path: Path) -> None:
    around = Surroundings(os.getuid(), ("17",), 0)
    assert around.beside(str(tmp_path / "gone/slurm-17.out")) == []
    assert around.below(str(write(tmp_path / "file"))) == []
    assert around.below("x" * 5000) == []
    assert len(around.unseen) == 1 and "File name too long" in around.unseen[0]


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_a_log_that_is_gone_may_have_been_in_the_jobs_own_tmp(place: str, tmp_path: Path) -> None:
    gone = f"{place}/gsub-test-no-such-folder/slurm-17.out"
    (said,) = read(asked(gone))[0].unseen
    assert said.startswith(f"{gone} is not there")
    assert said.endswith("; a job may have a folder of its own in that place")


def test_a_log_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    nul = "/home/ada/\0.out"
    unseen = read(asked(tmp_path / "pipe", tmp_path, nul, unseen=("known before",)))[0].unseen
    assert unseen[0] == "known before"
    assert any("named pipe" in each for each in unseen) and any("is a directory" in each for each in unseen)
    assert len(unseen) == 4


def test_when_the_time_for_reading_is_up_the_rest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_SECONDS", 0.0)
    out = write(tmp_path / "slurm-17.out")
    finding, names = read(asked(out))
    assert names == []
    assert finding.unseen == (f"{out} was not read: the time for reading was up",)


def test_memory_that_runs_out_is_told(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out")

    def too_much(logs: Sequence[LogText]) -> Finding:
        raise MemoryError

    finding = investigate(asked(out), too_much)
    assert finding.reason == "no_signature"
    assert finding.unseen == ("the logs were too much to be classified in the memory there is for it",)


def test_a_log_that_changed_long_after_the_end_may_be_of_the_next_attempt(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out")
    now = time.time()
    assert read(asked(out, until=now - 30))[0].remarks == ()
    (remark,) = read(asked(out, until=now - 600))[0].remarks
    assert remark.startswith(f"{out} was changed 6") and remark.endswith("that may be of a later attempt.")


# --- a job that Slurm could not begin -------------------------------------------------------------------------------


def test_a_folder_that_does_not_exist_is_why_slurm_could_not_begin(tmp_path: Path) -> None:
    gone = tmp_path / "logs/slurm-17.out"
    finding = read(asked(gone, not_begun=True))[0]
    assert (finding.reason, finding.signature) == ("output_error", "slurm-output-folder")
    assert finding.evidence[0].text == (
        f"The folder {tmp_path}/logs does not exist: Slurm could not open the output there."
    )
    assert read(asked(gone))[0].reason == "no_signature"  # Slurm does not say so


def test_nor_is_one_named_where_the_folder_is_there_or_a_log_was_read(tmp_path: Path) -> None:
    assert read(asked(tmp_path / "slurm-17.out", "/\0.out", not_begun=True))[0].reason == "no_signature"
    out = write(tmp_path / "slurm-17.out", "epoch 1\n")
    assert read(asked(out, tmp_path / "logs/x", not_begun=True))[0].reason == "no_signature"


@pytest.mark.root
def test_a_folder_that_is_closed_to_its_user_is_why_slurm_could_not_begin(tmp_path: Path) -> None:
    """As the user: root may enter everywhere."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "readonly").mkdir(mode=0o755)
    os.seteuid(54321)
    try:
        closed = read(asked(tmp_path / "closed/slurm-17.out", not_begun=True))[0]
        readonly = read(asked(tmp_path / "readonly/slurm-17.out", not_begun=True))[0]
    finally:
        os.seteuid(0)
    assert (closed.reason, readonly.reason) == ("permission_error", "permission_error")
    assert "is closed to its user" in closed.evidence[0].text
    assert "is closed to its user" in readonly.evidence[0].text


# --- the process ----------------------------------------------------------------------------------------------------

ANSWER = """
import io, os, sys
from prolog_epilog.failures import child
reading, writing = os.pipe()
for one, other in ((1, 0), (writing, 1), (reading, 2)):  # all others are closed
    os.dup2(one, other)
sys.stdin = io.TextIOWrapper(io.BytesIO({line!r}))
child.main()
found = os.read(2, 1 << 16).decode()
os.dup2(0, 1)
"""


def answer(line: bytes) -> Finding:
    started, _, finding = run_measured(ANSWER.format(line=line)).rpartition("\n")[0].rpartition("\n")
    assert started == ""
    return msgspec.json.decode(finding, type=Finding)


def test_the_reader_answers_as_the_user_whose_logs_they_are(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out")
    finding = answer(msgspec.json.encode(asked(out)) + b"\n")
    assert (finding.evidence[0].file, finding.unseen) == (str(out), ())
    assert finding == read(asked(out))[0]


@pytest.mark.slow
def test_signatures_that_are_not_there_are_named_and_the_rest_is_used(tmp_path: Path) -> None:
    out = write(tmp_path / "slurm-17.out")
    finding = answer(msgspec.json.encode(asked(out, signatures=(str(tmp_path / "none.toml"),))))
    assert finding.reason == read(asked(out))[0].reason
    (said,) = finding.unseen
    assert said.startswith("the site's own signatures were not used: ") and "none.toml" in said


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"no question\n", "the logs were not classified: DecodeError in the reader"),
        (b"{}\n", "the logs were not classified: ValidationError in the reader"),
        (
            msgspec.json.encode(question(uid=54321, gid=None)),
            "the logs were not read: no name service knows uid 54321, and so its groups",
        ),
    ],
    ids=["no JSON", "no question", "a user whom nobody knows"],
)
def test_a_question_that_cannot_be_answered_is_answered_with_the_reason(line: bytes, why: str) -> None:
    finding = answer(line)
    assert (finding.reason, finding.unseen) == ("no_signature", (why,))


# --- names ----------------------------------------------------------------------------------------------------------

NAMES = JobNames(17, user="ada", node="n1.cluster", name="train", array_job_id=12, array_task_id=34)


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("%x-%j.out", "train-17.out"),
        ("%A_%a-%b", "12_34-4"),
        ("%u/%N/%n/%t", "ada/n1/0/0"),
        ("%6j %06j %99j", f"000017 000017 {17:010d}"),
        ("%5x", "train"),
        ("100%%", "100%"),
        (r"\%j", "%j"),
        ("%s", None),
    ],
)
def test_a_pattern_becomes_the_file_that_slurm_made(pattern: str, expanded: str | None) -> None:
    assert expand(pattern, NAMES) == expanded


@pytest.mark.parametrize("pattern", ["%A", "%a", "%b", "%u", "%N", "%x"])
def test_a_pattern_of_what_is_not_known_makes_no_file(pattern: str) -> None:
    assert expand(pattern, JobNames(17)) is None


def test_names_of_folders_and_files_are_found_once_each() -> None:
    log = b"--log-dir=/a --log-dir=/a\n --log_dir /b\n" + b"".join(
        b"  error_file: /e/%d.json\n" % n for n in range(99)
    )
    folders, files = named_in(log)
    assert folders[0] == "/a" and len(folders) == len(set(folders))
    assert files == [f"/e/{number}.json" for number in range(OTHERS)]
