# ruff: noqa: E501 - messages of tools are as long as they are
"""What the machine room says (Slurm, MPI, containers, shells, runtimes), through the whole classifier.

Each log is what its tool prints, in its order: the cause among the consequences that everything around it reports.
"""

from __future__ import annotations

import pytest

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.text import LogText

LOGS: dict[str, tuple[str, str]] = {
    "time limit": (
        "time_limit",
        """\
step 10 loss 1
step 11 loss 1
slurmstepd: error: *** JOB 4182 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO TIME LIMIT ***
""",
    ),
    "scancel of a job": (
        "cancelled",
        """\
step 10
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
slurmstepd: error: *** JOB 4182 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
""",
    ),
    "scancel of a step": (
        "cancelled",
        """\
step 10
step 11
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
""",
    ),
    "out of memory of a step": (
        "cpu_oom",
        """\
step 10
slurmstepd: error: Detected 1 oom_kill event in StepId=4182.0. Some of the step tasks have been OOM Killed.
srun: error: n17: task 3: Out Of Memory
srun: Terminating StepId=4182.0
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
""",
    ),
    "segfault whose peers report a lost connection": (
        "invalid_memory_access",
        """\
step 10
[n18:4:4] NCCL WARN Net : Connection closed by remote peer n17
srun: error: n17: task 3: Segmentation fault (core dumped)
srun: Terminating StepId=4182.0
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
srun: error: n18: task 4: Terminated
""",
    ),
    "killed by srun": (
        "no_signature",
        """\
step 10
srun: error: n17: task 3: Killed
srun: Terminating StepId=4182.0
""",
    ),
    "killed in the shell": (
        "no_signature",
        """\
step 10
/var/spool/slurmd/job4182/slurm_script: line 12: 20211 Killed                  python train.py
""",
    ),
    "killed by mpirun": (
        "no_signature",
        """\
mpirun noticed that process rank 3 with PID 20211 on node n17 exited on signal 9 (Killed).
""",
    ),
    "heap corruption": (
        "core_dump",
        """\
step 10
double free or corruption (!prev)
[n17:20211] *** Process received signal ***
[n17:20211] Signal: Aborted (6)
Aborted (core dumped)
""",
    ),
    "uncaught C++ exception": (
        "core_dump",
        """\
step 10
terminate called after throwing an instance of 'std::runtime_error'
  what():  bad thing
Aborted (core dumped)
""",
    ),
    "abort after the work was done": (
        "none",
        """\
step 10
Training complete.
terminate called without an active exception
/run.sh: line 3: 12 Aborted                 (core dumped) python x.py
""",
    ),
    "abort in mid-work": (
        "core_dump",
        """\
step 10
terminate called without an active exception
/run.sh: line 3: 12 Aborted                 (core dumped) python x.py
""",
    ),
    "node failure": (
        "node_failure",
        """\
step 10
srun: error: Node failure on n17
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 4182.0 ON n18 CANCELLED AT 2026-08-14T06:19:18 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
""",
    ),
    "preemption behind a bypassed signal": (
        "preempted",
        """\
step 10
submitit WARNING (2026-08-14 06:19:18,579) - Bypassing signal SIGTERM
slurmstepd: error: *** JOB 4182 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO PREEMPTION ***
""",
    ),
    "Open MPI cannot start": (
        "mpi_error",
        """\
--------
It looks like MPI_INIT failed for some reason; your parallel process is
likely to abort.
  ompi_mpi_init: ompi_rte_init failed
  --> Returned "Not found" (-13) instead of "Success" (0)
*** An error occurred in MPI_Init
*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
""",
    ),
    "ORTE loses a daemon": (
        "mpi_runtime_failure",
        """\
step 10
ORTE has lost communication with a remote daemon.

  HNP daemon   : [[64112,0],0] on node n17

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself.
""",
    ),
    "MPICH loses a peer": (
        "mpi_runtime_failure",
        """\
step 10
Abort(1) on node 2: Fatal error in PMPI_Allreduce: Other MPI error, error stack:
MPIDI_CH3I_Progress(176): Communication error with rank 5:
""",
    ),
    "pyxis cannot import": (
        "container_error",
        """\
pyxis: importing docker image: nvcr.io#nvidia/pytorch:24.13-py3
slurmstepd: error: pyxis: child 12004 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [INFO] Querying registry for permission grant
slurmstepd: error: pyxis:     curl: (6) Could not resolve host: nvcr.io
slurmstepd: error: pyxis:     [ERROR] URL https://nvcr.io/v2/x returned error code: 401 Unauthorized
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: n17: task 0: Exited with exit code 1
""",
    ),
    "apptainer cannot pull": (
        "container_error",
        """\
FATAL:   While making image from oci registry: error fetching image to cache: while building SIF from layers: conveyor failed to get: initializing source docker://x: pinging container registry registry-1.docker.io: Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host
""",
    ),
    "docker without a GPU": (
        "container_error",
        """\
docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].
""",
    ),
    "docker with a wrong driver": (
        "container_error",
        """\
docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: Auto-detected mode as 'legacy'
nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.
""",
    ),
    "script missing on the node": (
        "missing_input",
        """\
slurmstepd: error: execve(): /home/alice/run.sh: No such file or directory
srun: error: n17: task 0: Exited with exit code 2
""",
    ),
    "program missing on the node": (
        "environment_error",
        """\
slurmstepd: error: execve(): pyhton: No such file or directory
srun: error: n17: task 0: Exited with exit code 2
""",
    ),
    "output folder missing": (
        "output_error",
        """\
slurmstepd: error: Could not open stdout file /data/none/x.out: No such file or directory
slurmstepd: error: IO setup failed: No such file or directory
""",
    ),
    "step larger than the job": (
        "bad_arguments",
        """\
srun: error: Unable to create step for job 4182: More processors requested than permitted
""",
    ),
    "expired credential": (
        "node_failure",
        """\
srun: error: Task launch for StepId=4182.0 failed on node n17: Job credential expired
srun: error: Application launch failed: Job credential expired
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
""",
    ),
    "trainer ends well": (
        "none",
        """\
Loading
/x/torch/a.py:12: UserWarning: failed
{'train_runtime': 812.4, 'train_loss': 0.41}
Training completed. Do not forget to share your model on huggingface.co/models =)
""",
    ),
    "batch size halved": (
        "none",
        """\
step 1
RuntimeError: CUDA out of memory. Tried to allocate 2 GiB
WARNING: OOM, trying smaller batch
Batch size 64 failed, trying batch size 32.
step 2
step 3
`Trainer.fit` stopped: `max_epochs=10` reached.
""",
    ),
    "submitit timed out": (
        "time_limit",
        """\
step 1
submitit WARNING (2026-08-14 06:19:18,579) - Caught signal SIGUSR2 on n17: this job is timed-out.
submitit INFO (2026-08-14 06:19:18,579) - Job not requeued because: timed-out and not checkpointable.
""",
    ),
    "Ray's head lost": (
        "mpi_runtime_failure",
        """\
step 1
(raylet) [2026-08-14 06:19:18,579 C 20211 20219] gcs_rpc_client.h:537:  Check failed: absl::ToInt64Seconds(...) Failed to connect to GCS within 60 seconds. GCS may have been killed.
""",
    ),
    "kernel kills for memory": (
        "cpu_oom",
        """\
[12.3] python invoked oom-killer: gfp_mask=0xcc0
[12.3] Memory cgroup out of memory: Killed process 20211 (python)
Killed
""",
    ),
    "too many threads": (
        "cpu_oom",
        """\
OpenBLAS blas_thread_init: pthread_create failed for thread 63 of 64: Resource temporarily unavailable
Segmentation fault (core dumped)
""",
    ),
    "Fortran misses a file": (
        "missing_input",
        """\
forrtl: severe (29): file not found, unit 10, file /scratch/alice/grid.dat
Image PC Routine
""",
    ),
    "Fortran segfault": (
        "invalid_memory_access",
        """\
forrtl: severe (174): SIGSEGV, segmentation fault occurred
Image PC Routine
""",
    ),
    "faulthandler and srun tell one segfault": (
        "invalid_memory_access",
        """\
Fatal Python error: Segmentation fault

Current thread 0x7f (most recent call first):
  File "x.py", line 3 in f
srun: error: n17: task 3: Segmentation fault (core dumped)
""",
    ),
    "unknown exception": (
        "traceback",
        """\
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    main()
MyOwnError: it went wrong
srun: error: n17: task 3: Exited with exit code 1
""",
    ),
    "retried at the start": (
        "none",
        """\
Attempt 1/3: connection reset by peer
Retrying in 5 seconds
step 1
step 2
Training finished in 10 s
""",
    ),
    "too many ranks for mpirun": (
        "bad_arguments",
        """\
There are not enough slots available in the system to satisfy the 64
slots that were requested by the application:
  ./solve
""",
    ),
    "R without a package": (
        "import_error",
        """\
Error in library(torch) : there is no package called ‘torch’
Execution halted
""",
    ),
    "glog check": (
        "core_dump",
        """\
F0814 06:19:18.579123 20211 tensor.cc:120] Check failed: dims() == 2 (3 vs. 2)
*** Check failure stack trace: ***
Aborted (core dumped)
""",
    ),
    "command missing under make": (
        "environment_error",
        """\
/var/spool/slurmd/job1/slurm_script: line 9: nvcc: command not found
make: *** [Makefile:3: all] Error 127
""",
    ),
    "mpirun interrupted": (
        "cancelled",
        """\
mpirun: Forwarding signal 2 to job
mpirun noticed that process rank 3 with PID 20211 on node n17 exited on signal 2 (Interrupt).
""",
    ),
    "scancel behind a bypassed SIGTERM": (
        "cancelled",
        """\
step 1
step 2
[rank: 0] Received SIGTERM: 15
Bypassing SIGTERM: 15
slurmstepd: error: *** JOB 4182 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
""",
    ),
    "out of GPU memory before a scancel": (
        "gpu_oom",
        """\
step 1
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB
srun: error: n17: task 3: Exited with exit code 1
srun: Terminating StepId=4182.0
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
slurmstepd: error: *** JOB 4182 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***
""",
    ),
    "watchdog aborts after a timeout": (
        "nccl_timeout",
        """\
step 1
[rank1]:[E814 06:19:18.579 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
Fatal Python error: Aborted

srun: error: n17: task 1: Aborted (core dumped)
""",
    ),
    "peer lost to the OOM killer": (
        "cpu_oom",
        """\
step 1
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:4182
slurmstepd: error: Detected 1 oom_kill event in StepId=4182.0. Some of the step tasks have been OOM Killed.
srun: error: n18: task 1: Out Of Memory
""",
    ),
    "TMPDIR that fell back": (
        "none",
        """\
Attempt 1/3
slurmstepd: error: Unable to create TMPDIR [/scratch/x]: Permission denied
slurmstepd: error: Setting TMPDIR to /tmp
step 1
step 2
Training complete.
""",
    ),
    "directory missing on the node": (
        "missing_input",
        """\
slurmstepd: error: couldn't chdir to `/scratch/alice/run': No such file or directory: going to /tmp instead
python: can't open file '/tmp/train.py': [Errno 2] No such file or directory
srun: error: n17: task 0: Exited with exit code 2
""",
    ),
    "disk full in one task": (
        "no_space",
        """\
step 3
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f()
OSError: [Errno 28] No space left on device: '/scratch/out.csv'
srun: error: n17: task 0: Exited with exit code 1
""",
    ),
    "unknown exception under mpirun": (
        "traceback",
        """\
step 3
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f()
foo.BarError: mystery
mpirun has exited due to process rank 3 with PID 20211 on
node n17 exiting improperly. There are three reasons this could occur:
""",
    ),
    "wrong call before MPI_ABORT": (
        "semantic_error",
        """\
Traceback (most recent call last):
  File "t.py", line 3, in <module>
    f()
TypeError: f() missing 1 required positional argument: 'x'
--------------------------------------------------------------------------
MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD
with errorcode 1.
""",
    ),
    "retried, then unclean at exit": (
        "none",
        """\
Traceback (most recent call last):
  File "t.py", line 3, in f
ConnectionError: x
Retrying in 5 s (attempt 1/5)
step 1
step 2
`Trainer.fit` stopped: `max_epochs=3` reached.
Exception ignored in: <function A.__del__ at 0x7f>
Traceback (most recent call last):
  File "x.py", line 1, in __del__
TypeError: 'NoneType' object is not callable
""",
    ),
    "time limit with a step that hangs": (
        "time_limit",
        """\
step 1
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd: error: *** STEP 4182.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO TIME LIMIT ***
slurmstepd: error: *** JOB 4182 STEPD TERMINATED ON n17 AT 2026-08-14T06:21:18 DUE TO JOB NOT ENDING WITH SIGNALS ***
""",
    ),
    "srun loses a node": (
        "node_failure",
        """\
step 1
srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 3
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: Timed out waiting for job step to complete
""",
    ),
    "docker without its program": (
        "container_error",
        """\
docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "train.sh": executable file not found in $PATH: unknown.
""",
    ),
    "apptainer on a full disk": (
        "container_error",
        """\
INFO:    Converting SIF file to temporary sandbox...
FATAL:   while extracting /images/x.sif: root filesystem extraction failed: extract command failed: exit status 1: write /tmp/rootfs: no space left on device
""",
    ),
    "pyxis cannot mount": (
        "container_error",
        """\
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: pyxis: printing contents of log file ...
slurmstepd: error: pyxis:     enroot-mount: failed to mount: /data/x at /run/enroot/overlay/data/x: No such file or directory
slurmstepd: error: pyxis: couldn't start container
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd: error: Failed to invoke spank plugin stack
srun: error: n17: task 0: Exited with exit code 1
""",
    ),
    "docker registry silent": (
        "container_error",
        """\
docker: Error response from daemon: Get "https://nvcr.io/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers).
""",
    ),
    "Open MPI start behind its signal banner": (
        "mpi_error",
        """\
[n17:20211] *** Process received signal ***
[n17:20211] PMIX ERROR: UNREACHABLE in file server/pmix_server.c at line 2198
It looks like MPI_INIT failed for some reason; your parallel process is
""",
    ),
    "UCX tells a segfault": (
        "invalid_memory_access",
        """\
step 1
[n17:20211:0:20211] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)
==== backtrace (tid:  20211) ====
 0 0x0 ucs_handle_error()
=================================
[n17:20211] *** Process received signal ***
[n17:20211] Signal: Segmentation fault (11)
[n17:20211] *** End of error message ***
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
""",
    ),
    "submitit preempted": (
        "preempted",
        """\
step 1
submitit WARNING (2022-07-12 04:18:45,706) - Bypassing signal SIGTERM
submitit INFO (2022-07-12 04:18:45,881) - Job has not timed out. Ran 1 minutes out of requested 20 minutes.
submitit WARNING (2022-07-12 04:18:45,881) - Caught signal SIGHUP on n17: this job is preempted.
submitit INFO (2022-07-12 04:18:45,912) - Requeued job 60601445 (3 remaining timeouts)
submitit INFO (2022-07-12 04:18:45,913) - Exiting gracefully after preemption/timeout.
""",
    ),
    "heap corruption under faulthandler": (
        "core_dump",
        """\
step 9
malloc(): corrupted top size
Fatal Python error: Aborted

Thread 0x7f (most recent call first):
  File "a.py", line 3 in f
/var/spool/slurmd/job1/slurm_script: line 9: 12 Aborted                 (core dumped) python a.py
""",
    ),
    "srun output folder missing": (
        "output_error",
        """\
step 9
srun: error: Could not open output file out/x.log: No such file or directory
""",
    ),
    "output may not be written": (
        "permission_error",
        """\
slurmstepd: error: Could not open stdout file /data/x.out: Permission denied
slurmstepd: error: IO setup failed: Permission denied
""",
    ),
    "all tasks well": (
        "none",
        """\
sbatch: Submitted batch job 12
Loading modules
All tasks completed successfully
0 failed
""",
    ),
    "loss scaling and semaphores": (
        "none",
        """\
Epoch 1
WARNING: Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0
Epoch 2
Finished training
/env/x.py:3: UserWarning: resource_tracker: There appear to be 6 leaked semaphore objects to clean up at shutdown
""",
    ),
}


def _reason(text: str) -> str:
    return classify([LogText.of("train.log", text.encode())]).reason


@pytest.mark.parametrize("name", LOGS)
def test_a_log_gives_its_cause(name: str) -> None:
    reason, text = LOGS[name]
    assert _reason(text) == reason


@pytest.mark.parametrize("name", LOGS)
def test_work_before_it_and_the_end_of_a_session_behind_it_change_nothing(name: str) -> None:
    reason, text = LOGS[name]
    steps = "".join(f"epoch 1 step {n * 10} loss {3 - n / 100:.4f}\n" for n in range(1, 20))
    rest = "Currently Loaded Modules:\n  1) gcc/12  2) openmpi/4.1\n"
    assert _reason(rest + steps + text) == reason


STATES = {
    "TIMEOUT": "time_limit",
    "OUT_OF_MEMORY": "cpu_oom",
    "NODE_FAIL": "node_failure",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
}


@pytest.mark.parametrize(("state", "reason"), STATES.items())
def test_a_state_that_an_epilog_prints_is_slurms_word(state: str, reason: str) -> None:
    assert _reason(f"step 1\nState: {state} (exit code 0)\n") == reason


@pytest.mark.parametrize(
    ("number", "name", "reason"),
    [
        (11, "Segmentation fault", "invalid_memory_access"),
        (7, "Bus error", "invalid_memory_access"),
        (6, "Aborted", "core_dump"),
        (9, "Killed", "no_signature"),
        (15, "Terminated", "no_signature"),
        (2, "Interrupt", "cancelled"),
    ],
)
def test_only_a_launcher_sees_the_signal(number: int, name: str, reason: str) -> None:
    text = f"mpirun noticed that process rank 3 with PID 77 on node n17 exited on signal {number} ({name}).\n"
    assert _reason(text) == reason


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (139, "invalid_memory_access"),
        (135, "invalid_memory_access"),
        (134, "core_dump"),
        (137, "no_signature"),
        (143, "no_signature"),
        (127, "environment_error"),
        (1, "no_signature"),
    ],
)
def test_make_tells_a_shells_exit_code(code: int, reason: str) -> None:
    assert _reason(f"make: *** [Makefile:12: run] Error {code}\n") == reason


NO_FAILURES = (
    "| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. | Volatile Uncorr. ECC |",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    "epoch 3 val_error=0.41 train_error=0.22 0 failed",
    "Namespace(lr=0.1, oom_retries=3, timeout=1800)",
    "#SBATCH --signal=B:USR1@120",
    "Registered signal handler for SIGTERM",
    "[W socket.cpp:697] [c10d] The client socket has failed to connect to [n17]:29500 (errno: 97 - Address family not supported by protocol).",
    "E tensorflow/stream_executor/cuda/cuda_driver.cc:265] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "n17:20211:20219 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    "WARNING: There was an error initializing an OpenFabrics device.",
    "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
    "srun: Job 4182 step creation temporarily disabled, retrying (Requested nodes are busy)",
    "config.yaml: No such file or directory, using defaults",
    "No checkpoint found, starting from scratch",
    "This may be caused by a network error or an out of memory error.",
)


@pytest.mark.parametrize("line", NO_FAILURES)
def test_what_looks_like_trouble_and_is_none(line: str) -> None:
    assert _reason(f"step 1\n{line}\nstep 2\n") in ("none", "no_signature")
