"""What is written down of a job is there after a kill, whole or as it was before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from profiler.records import GpuRef, JobEnded, JobRef, JobStarted
from prolog_epilog.agent.disk import Calls, Disk
from prolog_epilog.agent.registry import Entry, Registry

JOB = JobRef(7, 2)
STARTED = JobStarted(
    id="0" * 32, cluster="lab", node="n1", at=5.0, job=JOB, gpus=(GpuRef(3, "GPU-3"),), work_dir="/a\nb\x01"
)


def entry() -> Entry:
    return Entry(
        JOB,
        "boot",
        began=12.5,
        started=STARTED,
        told=True,
        ended=JobEnded(id="1" * 32, cluster="lab", node="n1", at=9.0, job=JOB, exit_code=1),
        serial=4,
        gpu_env={"SLURM_JOB_GPUS": "3"},
        meter=msgspec.Raw(b'{"x":[1,null]}'),
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    Registry(tmp_path / "jobs").save(entry())
    loaded, bad = Registry(tmp_path / "jobs").load()
    assert bad == [] and set(loaded) == {JOB}
    assert msgspec.json.encode(loaded[JOB]) == msgspec.json.encode(entry())
    assert not loaded[JOB].running
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "jobs").iterdir()] == [0o600]


def test_attempts_of_a_job_are_apart(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    for restarts in range(3):
        registry.save(Entry(JobRef(7, restarts), "boot", began=0.0))
    registry.remove(JobRef(7, 1))
    registry.remove(JobRef(8))
    assert set(registry.load()[0]) == {JobRef(7, 0), JobRef(7, 2)}


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"job":{"job_id":0}}', b"\xff" * 100, b'{"job":7}'])
def test_a_damaged_file_is_told_and_costs_no_other_job(tmp_path: Path, damage: bytes) -> None:
    registry = Registry(tmp_path)
    registry.save(entry())
    (tmp_path / "8.0.json").write_bytes(damage)
    loaded, bad = registry.load()
    assert set(loaded) == {JOB} and [path.name for path, _ in bad] == ["8.0.json"] and bad[0][1]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    Registry(tmp_path).save(entry())

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    changed = entry()
    changed.serial = 99
    with pytest.raises(OSError, match="No space"):
        Registry(tmp_path, Disk(Calls(write=full))).save(changed)
    assert Registry(tmp_path).load()[0][JOB].serial == 4
    assert [path.name for path in tmp_path.iterdir()] == ["7.2.json"]


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from prolog_epilog.agent.registry import *\n"
        "from profiler.records import JobRef\n"
        "registry = Registry(Path(sys.argv[1])); serial = 0\n"
        "while True:\n"
        "    serial += 1\n"
        "    registry.save(Entry(JobRef(7), 'b', began=0.0, serial=serial, gpu_env={'x': 'y' * 5000}))\n"
        "    print(serial, flush=True)\n"
    )
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(20):
                told = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            rest = [int(line) for line in process.stdout if line.endswith("\n")]
        loaded, bad = Registry(tmp_path).load()
        assert bad == []
        assert max([told, *rest]) <= loaded[JobRef(7)].serial <= max([told, *rest]) + 1
