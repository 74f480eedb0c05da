"""The examples of examples/checkpoint on real frameworks: stopped, killed, and gone on from what they saved.

`make frameworks` installs the frameworks and runs these; where they are not installed nothing is run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gsub import train
from prolog_epilog.failures.classify import Ended, classify
from prolog_epilog.failures.text import LogText
from tests.unit.gsub.train.running import HELPER, PATIENCE, in_job
from tests.waiting import wait_until

EXAMPLES = HELPER.parents[1] / "examples/checkpoint"
PYTHON = os.environ.get("GSUB_FRAMEWORKS", sys.executable)
ENDLESS = "100000000"


def _missing(*modules: str) -> bool:
    code = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {modules!r})))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True).returncode != 0


needs_torch = pytest.mark.skipif(_missing("torch"), reason="no torch here: make frameworks")
needs_lightning = pytest.mark.skipif(_missing("lightning"), reason="no lightning here: make frameworks")
needs_trainer = pytest.mark.skipif(
    _missing("transformers", "accelerate"), reason="no transformers here: make frameworks"
)
each_framework = pytest.mark.parametrize(
    "example",
    [
        pytest.param("torch_loop.py", marks=needs_torch),
        pytest.param("lightning_loop.py", marks=needs_lightning),
        pytest.param("trainer_loop.py", marks=needs_trainer),
    ],
)


@contextmanager
def running(folder: Path, argv: Sequence[str | Path], **env: str) -> Iterator[subprocess.Popen[str]]:
    """A program as a job's process, head of its own process group; its whole output is in `folder/log`."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [PYTHON, "-u", *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=in_job(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", **env),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def said(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Until the log has a line of this pattern. The process must not end before."""

    def is_said() -> bool:
        found = re.search(pattern, said(folder)) is not None
        assert found or process.poll() is None, said(folder)
        return found

    try:
        wait_until(is_said, PATIENCE, pattern)
    except AssertionError as error:
        raise AssertionError(said(folder)) from error


def to_its_end(folder: Path, argv: Sequence[str | Path], **env: str) -> tuple[int, str]:
    """The exit code and what this run said."""
    before = len(said(folder)) if (folder / "log").exists() else 0
    with running(folder, argv, **env) as process:
        code = process.wait(2 * PATIENCE)
    return code, said(folder)[before:]


def stopped_at(log: str) -> tuple[str, int]:
    found = re.search(
        r"^gsub: stopped before its time limit \(SIGUSR1\), checkpoint=(\S+) step=(\d+)$", log, re.MULTILINE
    )
    assert found, log
    return found[1], int(found[2])


@each_framework
def test_a_warned_run_stops_and_the_next_goes_on(tmp_path, example):
    asks: list[str | Path] = [EXAMPLES / example, "--every", "100", "--folder", "ck", "--steps"]
    with running(tmp_path, [*asks, ENDLESS]) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE) == train.STOPPED, said(tmp_path)
    path, step = stopped_at(said(tmp_path))
    assert train.latest(tmp_path / "ck", "*[0-9]*") == path
    verdict = classify([LogText.of("log", said(tmp_path).encode())], Ended("FAILED", 75, 0))
    assert (verdict.reason, verdict.checkpoint, verdict.resumes) == ("time_limit", path, True)

    code, log = to_its_end(tmp_path, [*asks, str(step + 50)])
    assert code == 0, log
    assert f"goes on from {path}" in log
    assert re.search(rf"^final .*\b{step + 50}\b", log, re.MULTILINE), log


@each_framework
def test_a_run_that_was_killed_goes_on_from_its_last_whole_checkpoint(tmp_path, example):
    asks: list[str | Path] = [EXAMPLES / example, "--every", "100", "--folder", "ck", "--steps"]
    with running(tmp_path, [*asks, ENDLESS]) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        while (first := train.latest(tmp_path / "ck", "*[0-9]*")) is None:
            assert process.poll() is None, said(tmp_path)
        while train.latest(tmp_path / "ck", "*[0-9]*") in (None, first):
            assert process.poll() is None, said(tmp_path)
        process.kill()
        process.wait()
    newest = Path(train.latest(tmp_path / "ck", "*[0-9]*") or "none")
    # As a node that dies leaves it: the end of the newest one's biggest file is not there
    files = [newest, *newest.rglob("*")] if newest.is_dir() else [newest]
    biggest = max(
        (path for path in files if path.is_file() and path.suffix in train._WEIGHTS),
        key=lambda path: path.stat().st_size,
    )
    os.truncate(biggest, biggest.stat().st_size - 10)
    whole = train.latest(tmp_path / "ck", "*[0-9]*")
    assert whole not in (None, str(newest))
    step = int(re.findall(r"\d+", Path(whole or "").name)[-1])
    code, log = to_its_end(tmp_path, [*asks, str(step + 50)])
    assert code == 0, log
    assert f"goes on from {whole}" in log


@needs_torch
def test_a_loop_that_was_stopped_ends_at_the_same_numbers(tmp_path):
    asks: list[str | Path] = [EXAMPLES / "torch_loop.py", "--every", "100", "--folder", "ck", "--steps"]
    with running(tmp_path, [*asks, ENDLESS]) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        process.send_signal(signal.SIGUSR1)
        process.wait(PATIENCE)
    _, step = stopped_at(said(tmp_path))
    steps = str(step + 200)
    _, gone_on = to_its_end(tmp_path, [*asks, steps])
    shutil.rmtree(tmp_path / "ck")
    _, never_stopped = to_its_end(tmp_path, [*asks, steps])
    assert "goes on from" in gone_on and "goes on from" not in never_stopped
    assert gone_on.splitlines()[-1] == never_stopped.splitlines()[-1]


def ranks_of(launcher: int) -> list[int]:
    """The processes that torchrun has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError, ValueError):
            status = (path.parent / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == launcher and b"\0LOCAL_RANK=" in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@needs_torch
def test_ranks_of_torchrun_stop_at_one_step(tmp_path):
    asks: list[str | Path] = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        *(EXAMPLES / "torch_loop.py", "--every", "100", "--folder", "ck", "--steps"),
    ]
    with running(tmp_path, [*asks, ENDLESS]) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        first, second = ranks_of(process.pid)
        os.kill(first, signal.SIGUSR1)  # one hears of it long before the other
        assert process.wait(PATIENCE) != 0
        assert not any(Path(f"/proc/{each}").exists() for each in (first, second))
    path, step = stopped_at(said(tmp_path))
    verdict = classify([LogText.of("log", said(tmp_path).encode())], Ended("FAILED", 1, 0))
    assert (verdict.reason, verdict.checkpoint) == ("time_limit", path)
    code, log = to_its_end(tmp_path, [*asks, str(step + 50)])
    assert code == 0, log
    assert f"goes on from {path}, step {step}" in log


@needs_torch
def test_a_shell_hands_the_warning_on_to_the_ranks_of_torchrun(tmp_path):
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    asks: list[str | Path] = [
        *torchrun,
        EXAMPLES / "torch_loop.py",
        "--every",
        "100",
        "--folder",
        "ck",
        "--steps",
        ENDLESS,
    ]
    code = "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"
    with running(tmp_path, ["-c", code, EXAMPLES / "hand_on.sh", *asks]) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE) == 1, said(tmp_path)  # as torchrun ends when ranks did not end with 0
    path, _ = stopped_at(said(tmp_path))
    assert train.latest(tmp_path / "ck") == path


@needs_torch
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_live_through_the_warning(tmp_path, method):
    """Slurm signals every process of a step, and a worker that dies ends the training."""
    code = f"""
    import torch, time
    import gsub_train

    class Points(torch.utils.data.Dataset):
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.ones(1)

    def listens(_):
        gsub_train.watch()

    if __name__ == "__main__":
        gsub_train.watch()
        loader = torch.utils.data.DataLoader(
            Points(), batch_size=8, num_workers=2, multiprocessing_context={method!r},
            worker_init_fn={"None" if method == "fork" else "listens"})
        after = 0
        for number, batch in enumerate(loader):
            if number == 10:
                print("ready", flush=True)
            after += gsub_train.stopping()
            if after == 50:
                break
        print("read on", flush=True)
        del loader
        gsub_train.stop()
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(code))
    shutil.copy(HELPER, tmp_path / "gsub_train.py")
    with running(tmp_path, ["script.py"]) as process:
        wait_for(tmp_path, "ready", process)
        # all but Python's own helper of spawned processes, which no script can speak to
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, ValueError):
                command = (each / "cmdline").read_bytes()
                if os.getpgid(int(each.name)) == process.pid and b"resource_tracker" not in command:
                    os.kill(int(each.name), signal.SIGUSR1)
        assert process.wait(PATIENCE) == train.STOPPED, said(tmp_path)
    assert "read on" in said(tmp_path)


LIGHTNING_ALONE = """
import lightning, torch, time

class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, batch_idx):
        if self.global_step == 20:
            print("ready", flush=True)
        time.sleep(0.01)
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
    def on_train_start(self):
        print("begins at step", self.global_step, flush=True)

trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps=100000, default_root_dir="run", logger=False,
    enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Line(), torch.utils.data.DataLoader(torch.randn(320, 4), batch_size=32))
"""


def started_by_srun(folder: Path) -> dict[str, str]:
    """What Lightning knows Slurm by, and a `scontrol` that writes into `folder/asked` what it is asked for."""
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> asked\n')
    (folder / "scontrol").chmod(0o755)
    return {
        **{"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "lines", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        **{"SLURM_NODEID": "0", "SLURM_NODELIST": "localhost", "SLURM_NTASKS_PER_NODE": "1"},
        "PATH": f"{folder}:{os.environ['PATH']}",
    }


@needs_lightning
def test_lightnings_own_requeue_goes_on_too(tmp_path):
    """Without the helper: Lightning saves, asks Slurm to requeue the job, and finds its checkpoint again."""
    (tmp_path / "script.py").write_text(LIGHTNING_ALONE)
    slurm = started_by_srun(tmp_path)
    for attempt in (1, 2):
        with running(tmp_path, ["script.py"], **slurm) as process:
            wait_for(tmp_path, "ready" if attempt == 1 else r"begins at step [1-9]", process)
            if attempt == 1:
                process.send_signal(signal.SIGUSR1)
                wait_for(tmp_path, r"(?i)auto-requeue", process)
                while not (tmp_path / "asked").exists():
                    assert process.poll() is None, said(tmp_path)
    assert (tmp_path / "asked").read_text().split() == ["requeue", "7"]


@needs_lightning
def test_with_the_helper_lightning_does_not_requeue_by_itself(tmp_path):
    slurm = started_by_srun(tmp_path)
    asks: list[str | Path] = [
        EXAMPLES / "lightning_loop.py",
        "--every",
        "100",
        "--folder",
        "ck",
        "--steps",
        ENDLESS,
    ]
    with running(tmp_path, asks, **slurm) as process:
        wait_for(tmp_path, "gsub: checkpoint ", process)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(PATIENCE) == train.STOPPED, said(tmp_path)
    assert not (tmp_path / "asked").exists()
