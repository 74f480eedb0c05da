"""Where reasons meet: every sentence of the taxonomy's list, on lines that real tools print."""

# ruff: noqa: E501 - lines are as the tools print them

from __future__ import annotations

import pytest

from prolog_epilog.failures.classify import Ended, classify
from prolog_epilog.failures.text import LogText

WORK = "".join(f"step {n * 10} | loss {3 - n / 100:.4f} | 28797 tok/s\n" for n in range(1, 12))


def tb(line: str, *frames: str) -> str:
    shown = "".join(f"  {frame}\n" for frame in frames or ('File "train.py", line 8, in main\n    run()',))
    return f"Traceback (most recent call last):\n{shown}{line}\n"


READ = 'File "/x/site-packages/numpy/lib/npyio.py", line 427, in load\n    fid = stack.enter_context(open(os_fspath(file), "rb"))'
SAVE = 'File "/x/site-packages/torch/serialization.py", line 850, in save\n    with _open_zipfile_writer(f) as opened_zipfile:'
MKDIR = 'File "train.py", line 90, in save_checkpoint\n    os.makedirs(ckpt_dir)'
EVENTS = (
    'File "/x/tensorboard/summary/writer/event_file_writer.py", line 72, in __init__\n    os.makedirs(logdir)'
)
CSV = 'File "eval.py", line 12, in main\n    df.to_csv(out_path)'
HUB = 'File "/x/site-packages/huggingface_hub/file_download.py", line 1722, in hf_hub_download\n    get_session().get(url)'

CASES = [
    # reading is filesystem_error, also of S3 and HDFS
    ("filesystem_error", tb("OSError: [Errno 5] Input/output error: '/data/x.npy'", READ)),
    ("filesystem_error", tb("OSError: [Errno 116] Stale file handle: '/data/x.npy'", READ)),
    ("filesystem_error", tb("OSError: [Errno 107] Transport endpoint is not connected: '/lustre/x.npy'", READ)),
    ("filesystem_error", tb("OSError: AWS Error NETWORK_CONNECTION during GetObject operation: curlCode: 28, Timeout was reached", READ)),
    ("missing_input", tb("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.npy'", READ)),
    ("missing_input", tb("tensorflow.python.framework.errors_impl.NotFoundError: /data/train.tfrecord; No such file or directory")),
    # writing a checkpoint, its mkdir and rename too
    ("checkpoint_error", tb("OSError: [Errno 5] Input/output error", SAVE)),
    ("checkpoint_error", tb("FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/7'", MKDIR)),
    ("checkpoint_error", tb("RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 704 vs 598", SAVE)),
    ("no_space", tb("OSError: [Errno 28] No space left on device", SAVE)),
    ("no_space", tb("OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt/7.pt'", SAVE)),
    ("permission_error", tb("PermissionError: [Errno 13] Permission denied: '/ckpt/7.pt'", SAVE)),
    # other output
    ("output_error", tb("OSError: [Errno 30] Read-only file system: '/logs/run1'", EVENTS)),
    ("output_error", tb("OSError: Cannot save file into a non-existent directory: 'results'", CSV)),
    # downloads
    ("network_error", tb("requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new connection: [Errno -2] Name or service not known'))", HUB)),
    ("network_error", tb("urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>")),
    ("permission_error", tb("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6)", HUB)),
    ("missing_input", tb("huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-6)", HUB)),
    # /dev/shm
    ("shared_memory", tb("OSError: [Errno 28] No space left on device: '/dev/shm/torch_77_1'")),
    ("shared_memory", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n"),
    ("shared_memory", tb("RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.")),
    ("invalid_memory_access", WORK + "Bus error (core dumped)\n"),
    # signals seen by the launcher only
    ("invalid_memory_access", WORK + "srun: error: n17: task 3: Segmentation fault (core dumped)\n"),
    ("core_dump", WORK + "srun: error: n17: task 3: Aborted (core dumped)\n"),
    ("no_signature", WORK + "srun: error: n17: task 3: Killed\n"),
    ("no_signature", WORK + "srun: error: n17: task 3: Terminated\n"),
    # Slurm's bare word
    ("cancelled", WORK + "slurmstepd: error: *** JOB 77 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***\n"),
    ("no_signature", WORK + "srun: error: n17: task 3: Exited with exit code 1\nslurmstepd: error: *** STEP 77.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***\n"),
    ("cpu_oom", WORK + "srun: error: n17: task 3: Out Of Memory\nslurmstepd: error: *** STEP 77.0 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***\n"),
    ("preempted", WORK + "slurmstepd: error: *** JOB 77 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO JOB REQUEUE ***\n"),
    ("node_failure", "srun: error: Task launch for StepId=77.0 failed on node n17: Job credential expired\nsrun: error: Application launch failed: Job credential expired\n"),
    ("time_limit", WORK + "slurmstepd: error: *** JOB 77 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO TIME LIMIT ***\n"),
    # bootstrap
    ("nccl_error", "n1:77:90 [0] NCCL WARN Bootstrap : no socket interface found\n" + tb("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, internal error - please report this issue to the NCCL developers, NCCL version 2.19.3")),
    ("rendezvous_failure", tb("torch.distributed.DistNetworkError: The client socket has timed out after 600s while trying to connect to (n1, 29500).")),
    ("rendezvous_failure", tb("RuntimeError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).")),
    ("rendezvous_failure", tb("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect")),
    ("nccl_error", tb("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3")),
    ("gpu_oom", "n1:77:90 [0] enqueue.cc:100 NCCL WARN Cuda failure 'out of memory'\n" + tb("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error, NCCL version 2.19.3")),
    # a lost peer
    ("mpi_runtime_failure", tb("horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks")),
    ("nccl_error", tb("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.3]:7512: Connection reset by peer")),
    # no evidence
    ("no_signature", WORK + "The actor is dead because its worker process has died. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\nsrun: error: n17: task 0: Exited with exit code 1\n"),
    ("no_signature", tb("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")),
    ("no_signature", tb("subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.")),
    # scripts and devices
    ("missing_input", "python: can't open file '/home/u/train.py': [Errno 2] No such file or directory\n"),
    ("environment_error", "/var/spool/slurmd/job7/slurm_script: line 9: conda: command not found\n"),
    ("gpu_hardware", "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n"),
    ("container_error", "slurmstepd: error: pyxis: child 77 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\nslurmstepd: error: pyxis:     [ERROR] Could not process JSON input\nslurmstepd: error: pyxis:     curl: (22) The requested URL returned error: 401 Unauthorized\n"),
    # a good end
    ("none", "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file: No such file or directory\n" + WORK + "Training completed successfully.\n"),
    # CUDA
    ("cuda_init_failed", tb("RuntimeError: CUDA error: invalid device ordinal")),
    ("cuda_init_failed", tb("RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable")),
    ("semantic_error", tb("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method")),
    ("semantic_error", tb("AssertionError: Torch not compiled with CUDA enabled")),
    ("cuda_version_mismatch", tb("RuntimeError: CUDA error: no kernel image is available for execution on the device")),
    ("cuda_version_mismatch", tb("RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (8, 9, 2) but found runtime version (8, 5, 0).")),
    ("semantic_error", tb("ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject")),
    ("device_assert", tb("RuntimeError: CUDA error: device-side assert triggered")),
    ("invalid_memory_access", tb("RuntimeError: CUDA error: an illegal memory access was encountered")),
    # names of packages and programs
    ("import_error", tb("RuntimeError: You need to have sentencepiece installed to convert a slow tokenizer to a fast one.")),
    ("environment_error", tb("FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'", 'File "/usr/lib/python3.11/subprocess.py", line 1955, in _execute_child\n    raise child_exception_type(errno_num, err_msg, err_filename)')),
    ("missing_library", tb("ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory")),
    ("missing_library", tb("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /x/y.so)")),
    ("core_dump", WORK + "free(): invalid pointer\nAborted (core dumped)\n"),
    ("cpu_oom", tb("RuntimeError: can't start new thread")),
    ("cpu_oom", tb("BlockingIOError: [Errno 11] Resource temporarily unavailable", 'File "/usr/lib/python3.11/multiprocessing/popen_fork.py", line 66, in _launch\n    self.pid = os.fork()')),
    # R's header of a package that does not load gives way to the message under it; alone it is all there is
    ("missing_library", WORK + "Error: package or namespace load failed for ‘terra’ in dyn.load(file, DLLpath = DLLpath, ...):\n unable to load shared object '/r/terra/libs/terra.so':\n  libgdal.so.33: cannot open shared object file: No such file or directory\nExecution halted\n"),
    ("import_error", WORK + "Error: package or namespace load failed for ‘Seurat’ in loadNamespace(j <- i[[1L]], c(lib.loc, .libPaths())):\n there is no package called ‘spatstat.explore’\nExecution halted\n"),
    ("import_error", WORK + "Error: package or namespace load failed for ‘brms’:\n .onLoad failed in loadNamespace() for 'brms'\nExecution halted\n"),
    # git that is asked for a version only, and git that is all there is
    ("missing_input", "fatal: detected dubious ownership in repository at '/home/u/p'\n" + tb("FileNotFoundError: [Errno 2] No such file or directory: '/data/x.npy'", READ)),
    ("permission_error", "fatal: detected dubious ownership in repository at '/home/u/p'\nTo add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /home/u/p\nsrun: error: n17: task 0: Exited with exit code 128\n"),
    # conditions that Spark and MATLAB name
    ("missing_input", tb("pyspark.errors.exceptions.captured.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table or view `db`.`events` cannot be found. Verify the spelling and correctness of the schema and catalog.")),
    ("semantic_error", tb("pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `lable` cannot be resolved.")),
    ("missing_input", WORK + 'Exception in thread "main" org.apache.spark.sql.AnalysisException: Path does not exist: hdfs://n1/data/x.parquet;\n\tat org.apache.spark.sql.execution.datasources.DataSource$.checkAndGlobPathIfNecessary(DataSource.scala:803)\n'),
    ("semantic_error", WORK + "Error using horzcat\nDimensions of arrays being concatenated are not consistent.\n\nError in assemble (line 31)\n    M = [A B];\n"),
    # NaN under other names
    ("model_diverged", tb("tensorflow.python.framework.errors_impl.InvalidArgumentError: Tensor had NaN values [Op:CheckNumerics]")),
    ("model_diverged", tb("FloatingPointError: invalid value (nan) encountered in jit(train_step)")),
    ("model_diverged", tb("ValueError: Expected parameter logits (Tensor of shape (32, 10)) of distribution Categorical to satisfy the constraint IndependentConstraint(Real(), 1), but found invalid values: tensor([[nan, nan]])")),
    ("bad_arguments", tb("ValueError: require 8 GPUs, but only 4 GPUs available")),
    # an explicit cause before a cancellation
    ("syntax_error", '  File "train.py", line 3\n    def f(\n         ^\nSyntaxError: \'(\' was never closed\nslurmstepd: error: *** JOB 77 ON n17 CANCELLED AT 2026-08-14T06:19:18 ***\n'),
    # a wrapper's last command
    ("none", WORK + "Training completed successfully.\nrun.sh: line 41: notify-slack: command not found\n"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "text"), CASES, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(CASES)]
)
def test_where_reasons_meet(reason, text):
    found = classify([LogText.of("train.log", text.encode())])
    assert found.reason == reason, (found.signature, found.evidence[:1])


@pytest.mark.parametrize(
    ("reason", "text"), CASES, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(CASES)]
)
def test_work_before_and_lines_of_others_behind_change_nothing(reason, text):
    whole = (
        WORK
        + text
        + ("" if reason == "none" else "gpu mem 13.5 GB, data wait 6.9 ms\nval/acc 0.4588  val/loss 1.5671\n")
    )
    assert classify([LogText.of("train.log", whole.encode())]).reason == reason


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (reason, text)
        for reason, text in CASES
        if reason not in ("none", "no_signature", "cancelled", "time_limit")
    ],
)
def test_slurm_s_failed_changes_nothing(reason, text):
    assert classify([LogText.of("train.log", text.encode())], Ended("FAILED", 1)).reason == reason
