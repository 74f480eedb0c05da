"""The helper with which a training script drives its emulated GPUs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster import emugpu
from tests.nvml_helper import NODE, ROOT, Emulation, emulation, nvml_forks, nvml_library

__all__ = ["emulation", "nvml_forks", "nvml_library"]

# (environment) -> GPUs of the process
CHOICES: list[tuple[dict[str, str], tuple[int, ...]]] = [
    ({}, ()),
    ({"CUDA_VISIBLE_DEVICES": "3"}, (3,)),
    ({"CUDA_VISIBLE_DEVICES": "2,5"}, (2, 5)),
    ({"CUDA_VISIBLE_DEVICES": ""}, ()),
    ({"CUDA_VISIBLE_DEVICES": "-1"}, ()),
    ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, ()),
    ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, (1,)),
    ({"SLURM_JOB_GPUS": "0,2-4"}, (0, 2, 3, 4)),
    ({"SLURM_JOB_GPUS": "0-7", "SLURM_STEP_GPUS": "6,7"}, (6, 7)),
    ({"SLURM_STEP_GPUS": "6,7", "CUDA_VISIBLE_DEVICES": "6,7"}, (6, 7)),
    ({"SLURM_JOB_GPUS": "6,7", "CUDA_VISIBLE_DEVICES": ""}, ()),
    # ranks of a node that see the same GPUs share them out
    ({"SLURM_STEP_GPUS": "4,5", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}, (5,)),
    (
        {
            "SLURM_STEP_GPUS": "0-3",
            "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
            "SLURM_NODEID": "2",
            "SLURM_LOCALID": "1",
        },
        (2, 3),
    ),
    ({"SLURM_STEP_GPUS": "0-3", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}, (0, 1, 2, 3)),
    ({"SLURM_STEP_GPUS": "0-2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "0"}, (0,)),
    ({"SLURM_STEP_GPUS": "0-2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}, (1, 2)),
    ({"SLURM_STEP_GPUS": "3", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "2"}, (3,)),
    ({"SLURM_STEP_GPUS": "3,6", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "3"}, (6,)),
    # torchrun's ranks go before Slurm's: there is one task, and torchrun started the others
    (
        {
            "CUDA_VISIBLE_DEVICES": "4,5",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "SLURM_STEP_TASKS_PER_NODE": "1",
        },
        (5,),
    ),
    # Slurm has bound each task to its own: nothing is left to share out, but among torchrun's ranks in the task
    (
        {
            "SLURM_STEP_GPUS": "2,3",
            "CUDA_VISIBLE_DEVICES": "2,3",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_LOCALID": "1",
        },
        (2, 3),
    ),
    (
        {
            "CUDA_VISIBLE_DEVICES": "2,3",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
        },
        (3,),
    ),
    (
        {
            "SLURM_STEP_GPUS": "0-3",
            "CUDA_VISIBLE_DEVICES": "2,3",
            "SLURM_STEP_TASKS_PER_NODE": "2",
            "SLURM_LOCALID": "1",
        },
        (2, 3),
    ),
]


@pytest.mark.parametrize(("env", "gpus"), CHOICES)
def test_the_gpus_of_a_process(env: dict[str, str], gpus: tuple[int, ...]) -> None:
    assert emugpu.gpus_of_this_process(env) == gpus


@pytest.mark.parametrize("ranks", range(1, 9))
def test_ranks_get_all_gpus_between_them_and_none_twice(ranks: int) -> None:
    env = {"SLURM_STEP_GPUS": "0-7", "SLURM_STEP_TASKS_PER_NODE": str(ranks)}
    shares = [emugpu.gpus_of_this_process({**env, "SLURM_LOCALID": str(rank)}) for rank in range(ranks)]
    assert sorted(gpu for share in shares for gpu in share) == list(range(8))


@pytest.fixture
def here(emulation: Emulation, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulation]:
    """This process runs on the emulated node, on GPU 1."""
    for key in list(os.environ):
        if key.startswith(("SLURM", "CUDA")):
            monkeypatch.delenv(key)
    monkeypatch.setenv("GSUB_EMU_GPUS", str(emulation.gpus.root))
    monkeypatch.setenv("SLURMD_NODENAME", NODE)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    yield emulation


def seen(emulation: Emulation) -> list[tuple[int, int, int]]:
    """(utilisation, MiB, watts) of each GPU, as NVML tells."""
    gpus = range(3)
    rates = emulation.ask(*(["nvmlDeviceGetUtilizationRates", {"gpu": gpu}] for gpu in gpus))
    memory = emulation.ask(*(["nvmlDeviceGetMemoryInfo", {"gpu": gpu}, 0x02000028] for gpu in gpus))
    power = emulation.ask(*(["nvmlDeviceGetPowerUsage", {"gpu": gpu}] for gpu in gpus))
    return [(rates[i]["gpu"], memory[i]["used"] >> 20, power[i] // 1000) for i in gpus]


IDLE = (0, 0, 62)


@pytest.mark.slow
def test_a_load_shows_while_the_block_runs(here: Emulation) -> None:
    with emugpu.load(util=100, memory_mib=4000, power_w=50) as load:
        assert seen(here) == [IDLE, (100, 4000, 112), IDLE]
        load.set(util=20, memory_mib=100)
        assert seen(here)[1] == (20, 100, 122)
    assert seen(here) == [IDLE] * 3
    assert list(here.gpus.root.glob("*/*/load/*")) == []


@pytest.mark.slow
def test_loads_of_a_process_add_up_and_end_in_any_order(here: Emulation) -> None:
    first, second = emugpu.load(util=70, memory_mib=1000), emugpu.load(util=60, memory_mib=10, gpus=[1, 2])
    with pytest.raises(RuntimeError), first:
        with second:
            assert [gpu[:2] for gpu in seen(here)] == [(0, 0), (100, 1010), (60, 10)]
        assert [gpu[:2] for gpu in seen(here)] == [(0, 0), (70, 1000), (0, 0)]
        raise RuntimeError
    assert seen(here) == [IDLE] * 3


def test_a_load_on_a_mig_instance(here: Emulation) -> None:
    here.gpus.mig(NODE, 1, "3g.40gb", "1g.10gb")
    with emugpu.load(util=50, memory_mib=2000, gpu_instance=8):
        infos = here.ask(*(["nvmlDeviceGetMemoryInfo", {"mig": [1, slot]}, 0x02000028] for slot in (0, 1)))
    assert [info["used"] >> 20 for info in infos] == [0, 2000]


@pytest.mark.parametrize(
    "values", [{"util": 101}, {"util": -1}, {"util": 1, "memory_mib": -1}, {"util": 1, "power_w": -1}]
)
def test_loads_that_cannot_be(here: Emulation, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"per cent|negative"):
        emugpu.load(**values)


def test_nothing_happens_elsewhere(here: Emulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GSUB_EMU_GPUS")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with emugpu.load(util=50, gpus=[0, 77]):
            assert list(here.gpus.root.glob("*/*/load/*")) == []


def test_trouble_with_files_is_a_warning_and_the_training_goes_on(here: Emulation) -> None:
    shutil.rmtree(here.gpus.root / NODE / "1" / "load")
    done = False
    with pytest.warns(UserWarning, match="does not show this load"), emugpu.load(util=50):
        done = True
    assert done


def test_a_link_that_someone_laid_is_not_followed(here: Emulation, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (here.gpus.root / NODE / "1" / "load" / str(os.getpid())).symlink_to(victim)
    with emugpu.load(util=50):
        assert seen(here)[1][0] == 50
    assert victim.read_text() == "precious"


_TRAIN = """
import os, sys, time
from site_configs.devcluster import emugpu
load = emugpu.load(util=85, memory_mib=4000)
load.__enter__()
if "fork" in sys.argv:
    if os.fork() == 0:
        load.__exit__()  # the child's own affair: the parent's load stays
        os._exit(0)
    os.wait()
print("ready", flush=True)
if "end" not in sys.argv:
    time.sleep(60)
"""


def test_a_killed_process_counts_for_nothing_and_the_next_one_sweeps(here: Emulation) -> None:
    child = subprocess.Popen([sys.executable, "-c", _TRAIN], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    assert seen(here)[1][:2] == (85, 4000)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert seen(here)[1] == IDLE
    left = list(here.gpus.root.glob("*/*/load/*"))
    assert len(left) == 1
    with emugpu.load(util=1):
        assert not left[0].exists()


@pytest.mark.parametrize("how", ["end", "end fork"])
def test_a_process_that_ends_or_forks_leaves_nothing(here: Emulation, how: str) -> None:
    argv = [sys.executable, "-c", _TRAIN, *how.split()]
    assert subprocess.run(argv, cwd=ROOT, timeout=20, stdout=subprocess.DEVNULL).returncode == 0
    assert list(here.gpus.root.glob("*/*/load/*")) == []


def test_a_forked_child_does_not_end_its_parents_load(here: Emulation) -> None:
    child = subprocess.Popen([sys.executable, "-c", _TRAIN, "fork"], cwd=ROOT, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    assert seen(here)[1][:2] == (85, 4000)
    child.kill()
    child.wait()


def test_the_import_is_cheap_and_needs_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); from site_configs.devcluster import emugpu;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['site_configs']\n"


def test_the_file_runs_on_python_3_8() -> None:
    source = (ROOT / "site_configs" / "devcluster" / "emugpu.py").read_text()
    compile(source, "emugpu.py", "exec", flags=0, dont_inherit=True)
    import ast

    ast.parse(source, feature_version=(3, 8))
    old = shutil.which("python3.8")
    if old is not None and subprocess.run([old, "-c", ""], capture_output=True).returncode == 0:
        subprocess.run([old, "-c", "from site_configs.devcluster import emugpu"], cwd=ROOT, check=True)


