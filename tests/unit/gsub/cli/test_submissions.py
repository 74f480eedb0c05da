"""The command lines that gsub keeps for its user: only his, only the newest, and only for the job that they made."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gsub.submissions import FILE, LARGEST, MOST, SWITCH, Keeping, Typed, add, of_job, typed_of
from tests.waiting import wait_until

ONE = Typed(7, ("-N2", "t.sh", "a b", "c"), "/home/ada", "lab", 1000.0)
LINE = "sbatch -N2 t.sh a b c"


def kept(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


@pytest.mark.parametrize(
    ("known", "same"),
    [
        ({}, True),
        ({"line": ""}, True),
        ({"cluster": ""}, True),
        ({"cluster": "LAB"}, True),
        ({"submitted": None}, True),
        ({"submitted": 1200.0}, True),
        ({"job_id": 8}, False),
        ({"cluster": "other"}, False),
        ({"line": "sbatch -N2 t.sh a b d"}, False),
        ({"line": "srun -N2 t.sh a b c"}, False),
        ({"submitted": 1400.0}, False),
        ({"submitted": 600.0}, False),
        # Slurm counts the time of submission from the requeue; a number alone is too little to go by
        ({"submitted": 90000.0, "requeued": True}, True),
        ({"submitted": 90000.0, "requeued": True, "line": ""}, False),
        ({"submitted": 600.0, "requeued": True}, False),
        ({"line": "", "cluster": ""}, False),
        ({"line": "", "submitted": None}, False),
    ],
)
def test_words_are_used_for_the_job_that_they_made_alone(known: dict[str, object], same: bool) -> None:
    asked: dict[str, object] = {"job_id": 7, "cluster": "lab", "line": LINE, "submitted": 1001.0}
    assert ONE.is_of(**(asked | known)) is same  # type: ignore[arg-type]


def test_the_file_is_its_users_alone_and_keeps_the_newest(tmp_path: Path) -> None:
    for number in range(1, MOST + 11):
        add(tmp_path, replace(ONE, job_id=number, words=("t.sh", f"'\"\n {number}\udcff")))
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert [row["job"] for row in kept(tmp_path)] == [*range(11, MOST + 11)]
    assert of_job(tmp_path, 42)[0].words == ("t.sh", "'\"\n 42\udcff")
    assert of_job(tmp_path, 3) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "submissions.lock"]


def test_the_file_stays_small(tmp_path: Path) -> None:
    for number in range(1, 8):
        add(tmp_path, replace(ONE, job_id=number, words=("x" * (LARGEST // 4),)))
        assert (tmp_path / FILE).stat().st_size < LARGEST + 100
    assert [row["job"] for row in kept(tmp_path)] == [5, 6, 7]
    add(tmp_path, replace(ONE, job_id=8, words=("x" * LARGEST,)))
    assert [row["job"] for row in kept(tmp_path)] == [5, 6, 7]


def test_of_jobs_of_one_number_the_newest_comes_first(tmp_path: Path) -> None:
    other, anew = replace(ONE, cluster="other"), replace(ONE, at=5000.0, words=("u.sh",))
    for one in (ONE, other, anew):
        add(tmp_path, one)
    assert of_job(tmp_path, 7) == [anew, other, ONE]


@pytest.mark.parametrize(
    "spoilt", [b"", b"{", b"[]\n\n\xff\0\n", b'{"job": 7}\n{"job": 7, "words": [1]}\n{"job": 7, "wo']
)
def test_what_is_spoilt_is_passed_over(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / FILE).write_bytes(spoilt)
    assert of_job(tmp_path, 7) == []
    add(tmp_path, ONE)
    assert of_job(tmp_path, 7) == [ONE]


def test_no_other_file_is_read_or_written_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / FILE).symlink_to("mine")
    with pytest.raises(OSError):
        add(tmp_path, ONE)
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert of_job(tmp_path, 7) == [], "whoever opens it must not wait for a writer"
    assert (tmp_path / "mine").read_text() == "precious"


def test_submissions_beside_each_other_are_all_kept(tmp_path: Path) -> None:
    def some(first: int) -> None:
        for number in range(first, first + 10):
            add(tmp_path, replace(ONE, job_id=number))

    threads = [threading.Thread(target=some, args=(10 * n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(row["job"] for row in kept(tmp_path)) == [*range(10, 50)]  # type: ignore[type-var]


def test_it_is_kept_beside_the_command_unless_switched_off(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    for more in ({}, {SWITCH: "off"}):
        one = Keeping(["t.sh", "a b"], environ | more)
        one.start(8 if more else 7, "blue")
        one.end()
    wait_until((tmp_path / "gsub" / FILE).exists, 60, f"the file {FILE}", pause=0.01)
    found = typed_of(7, environ, cluster="blue", line="sbatch t.sh a b", submitted=time.time())
    assert found is not None and found.words == ("t.sh", "a b") and found.folder == str(Path.cwd())
    assert [row["job"] for row in kept(tmp_path / "gsub")] == [7]
    assert (
        typed_of(7, {"XDG_STATE_HOME": "/proc/none"}, cluster="blue", line="sbatch t.sh a b", submitted=None)
        is None
    )


def test_a_state_folder_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "gsub").write_text("not a folder")
    one = Keeping(["t.sh"], {"XDG_STATE_HOME": str(tmp_path)})
    one.start(7, "blue")
    one.end()
    assert (tmp_path / "gsub").read_text() == "not a folder"
