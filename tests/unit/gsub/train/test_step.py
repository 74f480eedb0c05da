"""What `step()` tells whoever measures, and that it never stands in a script's way."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from profiler.step_counter import StepCounters
from tests.unit.gsub.train.running import PYTHONS, in_job, script

LOOP = """
import time
for number in range(200):
    time.sleep(0.002)
    gsub_train.step(32)
print("done")
"""


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_its_steps_are_read_with_their_times(python: str, tmp_path: Path):
    folder = tmp_path / "steps"
    folder.mkdir()
    begun = time.monotonic()
    with script(tmp_path, LOOP, in_job(GSUB_STEPS=str(folder)), python) as run:
        assert run.ends() == (0, "done\n", "")
    counters = StepCounters(folder)
    counters.look()
    assert counters.processes == {run.process.pid}
    assert 100 < counters.steps <= 200  # the last twentieth of a second may be missing
    (ring,) = counters._rings.values()
    assert all(entry.samples == 32 * entry.steps for entry in ring.entries)
    assert all(begun < entry.at < time.monotonic() for entry in ring.entries)
    speed = counters.speed(begun)
    assert speed is not None
    assert 0 < speed.rate < 501
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_written_where_nobody_measures(tmp_path: Path):
    with script(tmp_path, LOOP) as run:
        assert run.ends() == (0, "done\n", "")
    assert {path.name for path in tmp_path.iterdir()} <= {"gsub_train.py", "script.py", "__pycache__"}


@pytest.mark.parametrize("wrong", ["/does/not/exist", "/dev/null", "\udcff"])
def test_a_folder_that_takes_no_file_changes_nothing(wrong: str, tmp_path: Path):
    with script(tmp_path, LOOP, in_job(GSUB_STEPS=wrong)) as run:
        assert run.ends() == (0, "done\n", "")


def test_samples_of_any_kind_change_nothing(tmp_path: Path):
    code = """
    class Odd:
        def __radd__(self, other):
            raise RuntimeError("no number")
    gsub_train.step("many")
    gsub_train.step(None)
    gsub_train.step(Odd())
    gsub_train.step(float("nan"))
    print("done")
    """
    with script(tmp_path, code, in_job(GSUB_STEPS=str(tmp_path))) as run:
        assert run.ends() == (0, "done\n", "")


def test_a_forked_process_counts_for_itself(tmp_path: Path):
    folder = tmp_path / "steps"
    folder.mkdir()
    code = """
    import os
    gsub_train.step()
    child = os.fork()
    gsub_train.step()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print(child)
    """
    with script(tmp_path, code, in_job(GSUB_STEPS=str(folder))) as run:
        ended, out, _ = run.ends()
    counters = StepCounters(folder)
    counters.look()
    assert ended == 0
    assert counters.processes == {run.process.pid, int(out)}
    assert sorted(ring.entries[-1].steps for ring in counters._rings.values()) == [1, 1]


def test_a_script_that_closes_all_files_is_not_written_into(tmp_path: Path):
    folder = tmp_path / "steps"
    folder.mkdir()
    code = """
    import os, time
    gsub_train.step()
    os.closerange(3, 256)
    file = open("mine", "wb", buffering=0)
    for number in range(30):
        time.sleep(0.01)
        gsub_train.step()
    print(os.stat("mine").st_size)
    """
    with script(tmp_path, code, in_job(GSUB_STEPS=str(folder))) as run:
        assert run.ends() == (0, "0\n", "")
    counters = StepCounters(folder)
    counters.look()
    assert counters.steps > 2


def test_a_full_disk_changes_nothing(tmp_path: Path):
    code = """
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    for number in range(10):
        gsub_train.step()
    print("done")
    """
    with script(tmp_path, code, in_job(GSUB_STEPS=str(tmp_path))) as run:
        assert run.ends() == (0, "done\n", "")
