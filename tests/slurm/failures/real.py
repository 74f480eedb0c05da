"""Failures that are really brought about on a development cluster, and what must be found out about each.

A table: what the job does, how it is submitted, and the verdict. What has to happen from outside while it runs (a
cancellation, a node that dies, an Xid) is done by `Produced.act` in `test_real_failures`.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

NODES = ("n1", "n2", "n3", "n4")
QUIET, TAKEN, DYING, BROKEN = NODES
"""Where most jobs run; where one is preempted; which node dies; whose GPUs break."""
TASKS, FAILING = 20, (3, 11, 17)


@dataclass(frozen=True)
class Failure:
    """A job that fails, and the truth about it.

    `says` is part of the deciding evidence, and `line` whether that is a line of the job's log. `state` is Slurm's
    word, empty where it is not looked at. `source`: who must have written what decided; empty: both the user's log and
    Slurm say it, and one of the evidence must be Slurm's; "any": whoever told of it first. `node` failed first.
    `checkpoint` ends the path of the one that it told of through gsub.train.
    """

    name: str
    reason: str
    script: str
    options: tuple[str, ...] = ("-w", QUIET)
    says: str = ""
    line: bool = True
    source: str = "user"
    state: str = "FAILED"
    node: str = QUIET
    rank: int | None = None
    checkpoint: str = ""


def python(text: str) -> str:
    """A batch script that runs a Python program, and prints what a training prints before."""
    progress = "for step in range(5): print(f'step {step * 20} loss {2.3 - step / 9:.3f}', flush=True)\n"
    return f"python3 - <<'PROGRAM'\n{progress}{textwrap.dedent(text)}PROGRAM"


WAIT = 'until [ -e "go-$SLURM_JOB_ID" ]; do sleep 0.2; done\n'
"""Until the test says go: what happens to the node meanwhile happens to this job."""

RANKS = """
import os, pathlib, socket, sys, time
import numpy
rank, job = int(os.environ["SLURM_PROCID"]), os.environ["SLURM_JOB_ID"]
place = pathlib.Path(f"port-{job}")
if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place.with_suffix(".new").write_text(str(server.getsockname()[1]))
        place.with_suffix(".new").rename(place)
        peer, _ = server.accept()
    for step in range(10_000):
        if step % 50 == 0:
            print(f"step {step} sending gradients", flush=True)
        peer.sendall(bytes(1 << 16))
else:
    while not place.exists():
        time.sleep(0.05)
    peer = socket.create_connection(("127.0.0.1", int(place.read_text())))
    peer.recv(1 << 16)
    print("step 0 loss 2.300", flush=True)
    weights = numpy.zeros((4, 3)) + numpy.zeros(4)
"""
"""Two ranks over a socket: rank 1 dies of its own fault with bytes unread, so rank 0's connection is really reset."""

HANGS = """
import os, time
from site_configs.devcluster import emugpu
rank = int(os.environ["SLURM_PROCID"])
print(f"rank {rank} enters all_reduce", flush=True)
with emugpu.load(util=100, power_w=20):
    time.sleep(600)
"""
"""All wait in a collective that never ends: full utilisation at hardly any power, until the time is up."""

EATS = "held = [bytearray(b'x') * (1 << 20) for _ in range({mib})]\nimport time; time.sleep(60)\n"

STOPS = """
import os, pathlib, signal
from gsub import train
train.watch()
os.kill(os.getpid(), signal.SIGUSR1)
if train.stopping():
    with train.saving("kept 1.pt", 80) as part:
        pathlib.Path(part).write_text("weights")
    train.stop()
"""

FAILURES = (
    Failure(
        "import",
        "import_error",
        python("import surely_not_installed\n"),
        says="ModuleNotFoundError: No module named 'surely_not_installed'",
    ),
    Failure(
        "file",
        "missing_input",
        python("rows = open('data/train/part-0003.csv').read()\n"),
        says="FileNotFoundError: [Errno 2] No such file or directory: 'data/train/part-0003.csv'",
    ),
    Failure(
        "segfault",
        "invalid_memory_access",
        python("import ctypes\nctypes.string_at(8)\n"),
        says="Segmentation fault",
    ),
    Failure("abort", "core_dump", python("import os\nos.abort()\n"), says="Aborted"),
    Failure(  # Slurm's reason for a batch script that a signal ended is JobLaunchFailure
        "script-killed",
        "no_signature",
        "echo step 1\nkill -9 $$",
        says="SIGKILL",
        line=False,
        source="root",
    ),
    Failure(  # Slurm starts nothing, and there is no log; releases from 23.11 on make folders where they can
        "no-output",
        "output_error",
        "echo step 1",
        ("-w", QUIET, "-o", "/proc/nowhere/%j.out"),
        line=False,
        source="any",
    ),
    Failure(
        "memory",
        "cpu_oom",
        "ulimit -v 600000\n" + python("held = bytearray(4 << 30)\n"),
        says="MemoryError",
    ),
    Failure(
        "slurm-oom",
        "cpu_oom",
        python(EATS.format(mib=400)),
        ("-w", QUIET, "--mem=100"),
        says="memory",
        state="",  # OUT_OF_MEMORY, on 22.05 FAILED
    ),
    Failure(
        "time-limit",
        "time_limit",
        python("import time\ntime.sleep(600)\n"),
        ("-w", QUIET, "-t1"),
        says="DUE TO TIME LIMIT",
        source="",
        state="TIMEOUT",
    ),
    Failure(  # as the warning of --signal has it
        "stopped-in-time",
        "time_limit",
        python(STOPS),
        says="gsub: stopped before its time limit (SIGUSR1), checkpoint=",
        checkpoint="/kept 1.pt",
    ),
    Failure(
        "hang",
        "time_limit",
        "cat > hang.py <<'PROGRAM'" + HANGS + "PROGRAM\nsrun -l --mem=0 python3 hang.py",
        ("-w", QUIET, "-n2", "--gpus=2", "--cpus-per-gpu=1", "-t1"),
        says="DUE TO TIME LIMIT",
        source="",
        state="TIMEOUT",
    ),
    Failure(
        "cancel",
        "cancelled",
        python("import time\ntime.sleep(600)\n"),
        says="CANCELLED",
        source="",
        state="CANCELLED",
    ),
    Failure(
        "preempt",
        "preempted",
        python("import time\ntime.sleep(600)\n"),
        ("-w", TAKEN, "--exclusive", "--no-requeue"),
        says="DUE TO PREEMPTION",
        source="",
        state="PREEMPTED",
        node=TAKEN,
    ),
    Failure(
        "node",
        "node_failure",
        "srun -l --mem=0 sleep 600",
        ("-w", f"{QUIET},{DYING}", "-N2", "-n2", "--no-requeue"),
        says="NODE",
        line=False,
        source="",
        state="NODE_FAIL",
        node=DYING,
    ),
    Failure(
        "cascade",
        "semantic_error",
        "cat > ranks.py <<'PROGRAM'"
        + RANKS
        + "PROGRAM\nsrun -l --mem=0 --kill-on-bad-exit=0 python3 ranks.py",
        ("-w", QUIET, "-n2"),
        says="ValueError: operands could not be broadcast together",
        rank=1,
    ),
    Failure(
        "disk",
        "no_space",
        "",  # Produced has it: how a full disk can be had depends on the machine
        says="[Errno 28] No space left on device",
    ),
    Failure(
        "xid",
        "gpu_hardware",
        WAIT + python("raise RuntimeError('CUDA error: unspecified launch failure')\n"),
        ("-w", BROKEN, "--gpus=1", "--cpus-per-gpu=1"),
        says="Xid 79",
        line=False,
        source="root",
        node=BROKEN,
    ),
    Failure(
        "ecc",
        "gpu_hardware",
        WAIT + python("raise RuntimeError('CUDA error: unspecified launch failure')\n"),
        ("-w", BROKEN, "--gpus=1", "--cpus-per-gpu=1"),
        says="ECC",
        line=False,
        source="root",
        node=BROKEN,
    ),
    Failure(  # beside the two, on the same node at the same time, with a sound GPU of its own
        "beside",
        "semantic_error",
        WAIT + python("{'lr': 0.1}['learning_rate']\n"),
        ("-w", BROKEN, "--gpus=1", "--cpus-per-gpu=1"),
        says="KeyError: 'learning_rate'",
        node=BROKEN,
    ),
    Failure(  # without a GPU, and with nothing to say: no other's GPU may answer for it
        "beside-silent",
        "no_signature",
        WAIT + "exit 3",
        ("-w", BROKEN),
        line=False,
        source="",
        node=BROKEN,
    ),
)

KERNEL = Failure(
    "kernel-oom",
    "cpu_oom",
    "",
    says="killed a process of the job for memory",
    line=False,
    source="root",
)
"""Where cgroups can be made: Slurm's are off on the development cluster, so the test makes the job's in its place."""

WELL = python(
    "import sys\n"
    "print('CUDA out of memory at batch size 64, trying 32', file=sys.stderr)\n"
    "print('Training finished: best accuracy 0.913')\n"
)
ARRAY = python(
    "import os\n"
    "task = int(os.environ['SLURM_ARRAY_TASK_ID'])\n"
    f"if task in {FAILING}: {{'lr': 0.1}}[f'learning_rate_{{task}}']\n"
    "print('done')\n"
)
