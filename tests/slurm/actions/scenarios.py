"""Jobs that fail, and what has to follow: a table. What befalls them from outside is done by `rig.Stage.act`.

Every script begins with `NOTE`: what an attempt was given and when it ended is known from the job itself too.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from profiler.resubmissions import Action, Stop

NODES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8")
OWN = NODES[4:]
TAKEN, DYING, QUIET, OTHER = OWN
"""Where a job is preempted; which node dies; where a job runs by itself. All other jobs keep off these.

By itself: 22.05 runs no prolog for a second attempt on a node where another job began in the two seconds before.
"""
APART = f"--exclude={','.join(OWN)}"
WATCHED = "debug"
"""The partition in which the site only observes."""
TASKS, FAILING = 20, (3, 11, 17)

NOTE = """\
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
note() {
  echo "$1 ${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME ${SLURM_MEM_PER_NODE:-0} $(date +%s.%N)" >> "tries-$job"
}
note began
trap 'note ended' EXIT
"""
"""What an attempt says of itself: how often it was requeued, its node, its memory in MiB, when."""
FIRST = '[ "${SLURM_RESTART_COUNT:-0}" = 0 ]'


@dataclass(frozen=True)
class Scenario:
    """A job, and what has to become of it.

    `reasons` are the verdicts of the attempts that fail, in order; `state` is Slurm's word on the last attempt.
    `action` is what the table has for them. `stop` is why the last failed attempt is not followed by another one of
    gsub's ("" where one is), `by_slurm` whether Slurm itself queued it again. `says` is in the last sentence that the
    user is told of it.
    """

    name: str
    script: str
    reasons: tuple[str, ...]
    options: tuple[str, ...] = (APART,)
    state: str = "COMPLETED"
    stop: Stop = ""
    action: Action = "once"
    says: str = ""
    by_slurm: bool = False

    @property
    def attempts(self) -> int:
        """How many there are in all."""
        return len(self.reasons) + (not self.stop or self.by_slurm)


def python(text: str) -> str:
    """A batch script that runs a Python program, and prints what a training prints before."""
    progress = "for step in range(5): print(f'step {step * 20} loss {2.3 - step / 9:.3f}', flush=True)\n"
    return f"python3 - <<'PROGRAM'\n{progress}{textwrap.dedent(text)}PROGRAM"


def dies(text: str) -> str:
    """A program that ends by an exception with these words."""
    return python(f"raise RuntimeError({text!r})\n")


BROKEN_CUDA = "CUDA error: unspecified launch failure"
UNREACHABLE = (
    "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/models/x "
    "(Caused by NewConnectionError('Failed to establish a new connection: [Errno 101] Network is unreachable'))"
)

# The memory that the job needs is known in two steps, each of them late enough for Slurm to look at the one before.
GROWS = """
import time
held = bytearray(b'x') * (130 << 20)
time.sleep(15)
held += bytearray(b'x') * (90 << 20)
time.sleep(15)
print('enough')
"""

# A second a step, and a step is never done twice.
SAVES = """
import os, pathlib, time
kept = pathlib.Path(f"kept-{{os.environ['SLURM_JOB_ID']}}")
first = int(kept.read_text()) if kept.exists() else 0
for step in range(first, {steps}):
    time.sleep(1)
    print(f"step {{step}} loss {{2 - step / 100:.2f}}", flush=True)
    kept.with_suffix(".new").write_text(str(step + 1))
    kept.with_suffix(".new").rename(kept)
print("done")
"""

STEPS = 100

TRAINED = 300
TRAIN = f"srun --mem=0 python3 train.py --steps {TRAINED} --seconds-per-step 0.2 --every 20 --folder ck-$SLURM_JOB_ID"
"""The example of docs/checkpoints.md: it stops by itself when Slurm signals that its time is nearly up."""

WAITS = python("import time\ntime.sleep(900)\n")

SCENARIOS = (
    Scenario(
        "flaky",
        f"{FIRST} && exit 3\necho done",
        ("no_signature",),
    ),
    Scenario(
        "network",
        f"{FIRST} || exit 0\n" + python(f"raise ConnectionError({UNREACHABLE!r})\n"),
        ("network_error",),
        action="backoff",
    ),
    Scenario(  # its first node is the broken one, whichever that is
        "one-node",
        f'{FIRST} && echo "$SLURMD_NODENAME" > "broken-$job"\n'
        f'[ "$(cat "broken-$job")" = "$SLURMD_NODENAME" ] || exit 0\n' + dies(BROKEN_CUDA),
        ("cuda_failure",),
        action="other_node",
    ),
    Scenario(  # the node says so, not only the user's log
        "gpu",
        f'{FIRST} || exit 0\nuntil [ -e "go-$job" ]; do sleep 0.2; done\n' + dies(BROKEN_CUDA),
        ("gpu_hardware",),
        (APART, "--gpus=1", "--cpus-per-gpu=1"),
        action="other_node",
    ),
    Scenario(
        "memory",
        python(GROWS),
        ("cpu_oom", "cpu_oom"),
        ("-w", QUIET, "--mem=100"),
        action="more_memory",
    ),
    Scenario(  # its work takes longer than its time, and less than twice as long
        "checkpoint",
        f"python3 - <<'PROGRAM'\n{SAVES.format(steps=STEPS)}PROGRAM",
        ("time_limit",),
        ("-w", OTHER, "-t1", "--comment=gsub:checkpoint", "--open-mode=append"),
        action="from_checkpoint",
    ),
    Scenario(
        "no-checkpoint",
        WAITS,
        ("time_limit",),
        (APART, "-t1"),
        state="TIMEOUT",
        stop="no_checkpoint",
        action="from_checkpoint",
    ),
    Scenario(
        "preempted",
        f"{FIRST} || exit 0\n" + WAITS,
        ("preempted",),
        ("-w", TAKEN, "--exclusive"),
        action="requeue",
        stop="moved_on",
        by_slurm=True,
    ),
    Scenario(
        "node",
        f"{FIRST} || exit 0\nsrun -l --mem=0 sleep 900",
        ("node_failure",),
        (f"--exclude={','.join(NODES[:4])},{TAKEN}", "-N2", "-n2"),
        action="other_node",
        stop="moved_on",
        by_slurm=True,
    ),
    Scenario(
        "import",
        python("import surely_not_installed\n"),
        ("import_error",),
        state="FAILED",
        stop="never",
        action="never",
    ),
    Scenario(
        "everywhere",
        dies(BROKEN_CUDA),
        ("cuda_failure",) * 3,
        state="FAILED",
        stop="same_evidence",
        action="other_node",
    ),
    Scenario(
        "needed",
        "exit 3",
        ("no_signature",),
        state="FAILED",
        stop="dependants",
    ),
    Scenario(
        "no-requeue",
        "exit 3",
        ("no_signature",),
        (APART, "--no-requeue"),
        state="FAILED",
        stop="no_requeue",
    ),
    Scenario("off", "exit 3", ("no_signature",), (APART, "--comment=gsub:off"), state="FAILED", stop="off"),
    Scenario(
        "resubmit-off",
        "exit 3",
        ("no_signature",),
        (APART, "--comment=gsub:resubmit=off"),
        state="FAILED",
        stop="off",
    ),
    Scenario("watched", "exit 3", ("no_signature",), (APART, "-p", WATCHED), state="FAILED", stop="mode"),
    Scenario(
        "cancelled",
        WAITS,
        ("cancelled",),
        state="CANCELLED",
        stop="never",
        action="never",
    ),
)

SMALL_MIB = 64
EATS = """\
echo $((SLURM_MEM_PER_NODE << 20)) > CGROUP/memory.limit_in_bytes
cat > eat.py <<'PROGRAM'
import time
held = bytearray(b'x') * (155 << 20)
time.sleep(5)
print('enough')
PROGRAM
sh -c 'echo $$ > CGROUP/cgroup.procs; exec python3 eat.py'
rc=$?
sleep 8
exit $rc
"""
"""More than `SMALL_MIB` and the next that it is given, and less than the third. CGROUP stands for its memory cgroup.
The node looks there every 2 s; Slurm, which would tell of it, has nothing to do with these."""

ARRAY = f'case " {" ".join(map(str, FAILING))} " in *" $SLURM_ARRAY_TASK_ID "*) {FIRST} && exit 3;; esac\necho done'
"""Three of its tasks fail, once each."""
