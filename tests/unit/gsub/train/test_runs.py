"""What `step()` tells of an ordinary run that gsub submitted, and that the run never waits for it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gsub.announcing import TOLD
from gsub.runs import _read
from tests.unit.gsub.train.running import PATIENCE, PYTHONS, in_job, script
from tests.waiting import wait_until

QUICK = """
import time
gsub_train._FIRST_TOLD, gsub_train._PACE_OF_RUN, gsub_train._LAST_WORD = 0.1, 0.01, 30.0
def steps(count):
    for number in range(count):
        time.sleep(0.002)
        gsub_train.step(32)
"""
LOOP = QUICK + "steps(200)\nprint('done')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The user's folder, with the mark of job 7."""
    found = tmp_path / "runs"
    found.mkdir()
    (found / "7.json").write_text("{}")
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix != ".json"]


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_its_steps_are_told_by_its_end(python: str, folder: Path, tmp_path: Path) -> None:
    environ = in_job(GSUB_RUNS=str(folder), SLURM_CPUS_ON_NODE="8", SLURM_RESTART_COUNT="2")
    with script(tmp_path, LOOP, environ, python) as run:
        assert run.ends() == (0, "done\n", "")
    (entry,) = [one for one in os.scandir(folder) if not one.name.endswith(".json")]
    match = TOLD.fullmatch(entry.name)
    assert match is not None and match.groups() == ("7", "2", None)
    assert entry.stat().st_mode & 0o777 == 0o600
    told = _read(entry)
    assert told is not None
    facts, entries, _ = told
    assert facts.ended and facts.mark == "7.json" and facts.environ["SLURM_CPUS_ON_NODE"] == "8"
    assert set(facts.bound) <= os.sched_getaffinity(0)
    assert 20 < len(entries) <= 200 and 100 < entries[-1].steps <= 200
    assert all(one.samples == 32 * one.steps for one in entries)


def test_a_task_of_an_array_looks_for_the_arrays_mark(folder: Path, tmp_path: Path) -> None:
    environ = in_job(GSUB_RUNS=str(folder), SLURM_JOB_ID="9", SLURM_ARRAY_JOB_ID="7")
    with script(tmp_path, LOOP, environ) as run:
        assert run.ends() == (0, "done\n", "")
    (path,) = files(folder)
    assert path.name.startswith("9-0-")


def test_of_too_many_processes_the_later_tell_nothing(folder: Path, tmp_path: Path) -> None:
    text = LOOP.replace("steps(200)", "gsub_train._MOST_TOLD = 2; steps(200)")
    for _ in range(2):
        with script(tmp_path, text, in_job(GSUB_RUNS=str(folder))) as run:
            assert run.ends() == (0, "done\n", "")
        assert len(files(folder)) == 1  # beside the mark


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "8"},  # not submitted by gsub, but by a job that was
        {"SLURM_JOB_NUM_NODES": "2"},
        {"SLURM_HET_JOB_ID": "7"},
        {"GSUB_RUNS": "/does/not/exist"},
        {"GSUB_RUNS": "\udcff"},
        {"SLURM_JOB_ID": "seven"},
    ],
    ids=lambda environ: next(iter(environ)),
)
def test_nothing_is_written(environ: dict[str, str], folder: Path, tmp_path: Path) -> None:
    with script(tmp_path, LOOP, in_job(**{"GSUB_RUNS": str(folder), **environ})) as run:
        assert run.ends() == (0, "done\n", "")
    assert files(folder) == []


def test_a_smoke_runs_steps_go_where_it_measures(folder: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    with script(tmp_path, LOOP, in_job(GSUB_RUNS=str(folder), GSUB_STEPS=str(steps))) as run:
        assert run.ends() == (0, "done\n", "")
    assert files(folder) == [] and len(list(steps.iterdir())) == 1


def test_a_run_that_is_killed_has_told(folder: Path, tmp_path: Path) -> None:
    code = QUICK + "print('begun', flush=True)\nwhile True:\n    steps(1)\n"
    with script(tmp_path, code, in_job(GSUB_RUNS=str(folder))) as run:
        assert run.says() == "begun"
        wait_until(lambda: [path for path in files(folder) if path.suffix == ".run"], PATIENCE, "its file")
        run.signal(signal.SIGKILL)
        assert run.ends()[0] == -signal.SIGKILL
    (entry,) = [one for one in os.scandir(folder) if one.name.endswith(".run")]
    told = _read(entry)
    assert told is not None and not told[0].ended and len(told[1]) > 5


def test_a_folder_that_hangs_holds_up_neither_steps_nor_end(folder: Path, tmp_path: Path) -> None:
    code = """
    gsub_train._LAST_WORD = 0.2
    gsub_train._Run._write = lambda self: time.sleep(10000)
    steps(200)
    print("done")
    """
    with script(tmp_path, QUICK + code.replace("\n    ", "\n"), in_job(GSUB_RUNS=str(folder))) as run:
        assert run.ends() == (0, "done\n", "")


def test_a_full_disk_changes_nothing(folder: Path, tmp_path: Path) -> None:
    code = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    """
    with script(tmp_path, code.replace("\n    ", "\n") + LOOP, in_job(GSUB_RUNS=str(folder))) as run:
        assert run.ends() == (0, "done\n", "")
    assert files(folder) == []


def test_no_thread_to_be_had_changes_nothing(folder: Path, tmp_path: Path) -> None:
    code = """
    import threading
    def refuses(self):
        raise RuntimeError("can't start new thread")
    threading.Thread.start = refuses
    """
    with script(tmp_path, code.replace("\n    ", "\n") + LOOP, in_job(GSUB_RUNS=str(folder))) as run:
        assert run.ends() == (0, "done\n", "")


def test_a_forked_process_tells_for_itself(folder: Path, tmp_path: Path) -> None:
    code = (
        QUICK
        + """
import os
steps(200)
child = os.fork()
steps(200)
if child:
    os.waitpid(child, 0)
print(os.getpid())
"""
    )
    with script(tmp_path, code, in_job(GSUB_RUNS=str(folder))) as run:
        ended, out, _ = run.ends()
    assert ended == 0
    told = [_read(one) for one in os.scandir(folder) if one.name.endswith(".run")]
    assert sorted(one[1][-1].steps > 200 for one in told if one is not None) == [False, True]
    assert {path.name.split("-")[2] for path in files(folder)} == set(out.split())
