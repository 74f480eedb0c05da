"""What tools of the field print for each reason: lines as they stand in public issues, one a case."""

# ruff: noqa: E501 - lines are as the tools print them

from __future__ import annotations

import pytest

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.text import LogText

W = "".join(f"step {n * 10} | loss {3 - n / 100:.4f}\n" for n in range(1, 9))


def tb(line: str, frame: str = 'File "/x/train.py", line 8, in main\n    run()') -> str:
    return "Traceback (most recent call last):\n  " + frame + "\n" + line + "\n"


CASES = [
    (
        "gpu_oom",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
    ),
    (
        "gpu_oom",
        W
        + "2026-01-01 00:00:00.1: W external/local_tsl/tsl/framework/bfc_allocator.cc:497] ****xxxx\n"
        + tb(
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: {{function_node __wrapped__Conv2D}} OOM when allocating tensor with shape[64,512,56,56] and type float on /job:localhost"
        ),
    ),
    ("gpu_oom", tb("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB")),
    (
        "gpu_oom",
        tb(
            "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes (allocated so far: 0 bytes)."
        ),
    ),
    (
        "gpu_oom",
        tb("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ),
    (
        "gpu_oom",
        tb(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        ),
    ),
    (
        "cpu_oom",
        tb(
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000) and data type float64"
        ),
    ),
    (
        "cpu_oom",
        tb(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
    ),
    (
        "cpu_oom",
        W
        + "slurmstepd: error: Detected 3 oom_kill events in StepId=77.batch. Some of the step tasks have been OOM Killed.\n",
    ),
    ("cpu_oom", tb("OSError: [Errno 12] Cannot allocate memory")),
    (
        "cpu_oom",
        W
        + "distributed.nanny.memory - WARNING - Worker tcp://10.0.0.3:3333 (pid=77) exceeded 95% memory budget. Restarting...\ndistributed.scheduler.KilledWorker: Attempted to run task f on 3 different workers, but all those workers died while running it.\n",
    ),
    ("cpu_oom", 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n'),
    (
        "device_assert",
        "../aten/src/ATen/native/cuda/Indexing.cu:1146: indexSelectLargeIndex: block: [17,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"
        + tb("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    ),
    ("cuda_failure", tb("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
    ("cuda_failure", tb("RuntimeError: CUDA error: unspecified launch failure")),
    (
        "cuda_failure",
        tb("RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    ),
    (
        "cuda_init_failed",
        tb(
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from"
        ),
    ),
    (
        "cuda_init_failed",
        tb(
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"
        ),
    ),
    (
        "cuda_version_mismatch",
        tb(
            "RuntimeError: The detected CUDA version (12.4) mismatches the version that was used to compile PyTorch (11.8). Please make sure to use the same CUDA versions."
        ),
    ),
    ("cuda_version_mismatch", "Failed to initialize NVML: Driver/library version mismatch\n"),
    (
        "cuda_version_mismatch",
        tb(
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA: the provided PTX was compiled with an unsupported toolchain."
        ),
    ),
    ("gpu_hardware", W + "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n"),
    (
        "gpu_hardware",
        tb("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ),
    (
        "missing_library",
        "python: error while loading shared libraries: libpython3.10.so.1.0: cannot open shared object file: No such file or directory\n",
    ),
    (
        "missing_library",
        tb(
            "OSError: libcublas.so.11: cannot open shared object file: No such file or directory",
            'File "/usr/lib/python3.10/ctypes/__init__.py", line 374, in __init__\n    self._handle = _dlopen(self._name, mode)',
        ),
    ),
    (
        "missing_library",
        tb("ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
    ),
    (
        "import_error",
        tb("ImportError: cannot import name 'container_abcs' from 'torch._six' (/x/torch/_six.py)"),
    ),
    ("import_error", "/usr/bin/python3: No module named pip\n"),
    (
        "import_error",
        tb(
            "ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not installed."
        ),
    ),
    (
        "syntax_error",
        '  File "train.py", line 10\n    print "x"\n    ^^^^^^^^^\nSyntaxError: Missing parentheses in call to \'print\'. Did you mean print(...)?\n',
    ),
    (
        "syntax_error",
        "/var/spool/slurmd/job7/slurm_script: line 12: syntax error near unexpected token `fi'\n",
    ),
    (
        "syntax_error",
        "/var/spool/slurmd/job7/slurm_script: line 30: unexpected EOF while looking for matching `\"'\n",
    ),
    ("syntax_error", '  File "train.py", line 3\n    x = 1\nIndentationError: unexpected indent\n'),
    ("environment_error", "slurm_script: line 5: module: command not found\n"),
    (
        "environment_error",
        'Lmod has detected the following error:  The following module(s) are unknown: "cuda/12.9"\n',
    ),
    ("environment_error", "EnvironmentNameNotFound: Could not find conda environment: myenv\n"),
    ("environment_error", "slurm_script: line 7: /home/u/venv/bin/activate: No such file or directory\n"),
    ("environment_error", "slurmstepd: error: execve(): python3.12: No such file or directory\n"),
    ("environment_error", "/usr/bin/env: ‘python’: No such file or directory\n"),
    (
        "bad_arguments",
        "usage: train.py [-h] --data DATA\ntrain.py: error: the following arguments are required: --data\n",
    ),
    (
        "bad_arguments",
        "Usage: main.py [OPTIONS]\nTry 'main.py --help' for help.\n\nError: No such option: --lr-rate\n",
    ),
    (
        "bad_arguments",
        "Could not override 'model.lr'.\nTo append to your config use +model.lr=0.1\nKey 'lr' is not in struct\n",
    ),
    ("bad_arguments", "srun: unrecognized option '--gpu'\nTry \"srun --help\" for more information\n"),
    (
        "bad_arguments",
        tb("ValueError: Some specified arguments are not used by the HfArgumentParser: ['--foo']"),
    ),
    (
        "bad_arguments",
        tb(
            "lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n But your machine only has: [0]"
        ),
    ),
    (
        "missing_input",
        tb(
            "OSError: meta-llama/Foo is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"
        ),
    ),
    ("missing_input", "cp: cannot stat '/data/x.tar': No such file or directory\n"),
    (
        "missing_input",
        tb(
            "FileNotFoundError: Couldn't find a dataset script at /x/data.py or any data file in the same directory."
        ),
    ),
    ("missing_input", "python: can't open file '/home/u/main.py': [Errno 2] No such file or directory\n"),
    (
        "corrupt_input",
        tb(
            "_pickle.UnpicklingError: invalid load key, '<'.",
            'File "/x/torch/serialization.py", line 1, in load\n    torch.load(path)',
        ),
    ),
    (
        "corrupt_input",
        tb("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ),
    (
        "corrupt_input",
        tb("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    ),
    ("corrupt_input", tb("zipfile.BadZipFile: File is not a zip file")),
    (
        "corrupt_input",
        tb("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ),
    (
        "corrupt_input",
        tb("PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>"),
    ),
    (
        "corrupt_input",
        tb(
            "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for fc.weight: copying a param with shape torch.Size([10, 5]) from checkpoint, the shape in current model is torch.Size([2, 5])."
        ),
    ),
    (
        "corrupt_input",
        tb(
            "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)"
        ),
    ),
    (
        "corrupt_input",
        "gzip: stdin: unexpected end of file\ntar: Unexpected EOF in archive\ntar: Error is not recoverable: exiting now\n",
    ),
    ("semantic_error", tb("RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x10)")),
    ("semantic_error", tb("AttributeError: 'NoneType' object has no attribute 'shape'")),
    (
        "semantic_error",
        tb("RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"),
    ),
    (
        "semantic_error",
        tb(
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss."
        ),
    ),
    ("semantic_error", tb("TypeError: Object of type Tensor is not JSON serializable")),
    (
        "semantic_error",
        tb(
            "TypeError: dot_general requires contracting dimensions to have the same shape, got (3,) and (4,)."
        ),
    ),
    ("permission_error", tb("PermissionError: [Errno 13] Permission denied: '/data/secret'")),
    ("permission_error", "bash: ./run.sh: Permission denied\n"),
    (
        "permission_error",
        "wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])\n"
        + tb(
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"
        ),
    ),
    ("no_space", tb("OSError: [Errno 122] Disk quota exceeded")),
    ("no_space", "cp: error writing '/scratch/x': No space left on device\n"),
    ("model_diverged", tb("ValueError: Loss is nan, stopping training")),
    ("model_diverged", W + "Loss is nan, stopping training\n"),
    (
        "model_diverged",
        tb("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding."),
    ),
    (
        "shared_memory",
        tb(
            "OSError: [Errno 28] No space left on device",
            'File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 8, in __init__\n    os.ftruncate(self._fd, size)',
        ),
    ),
    (
        "invalid_memory_access",
        W
        + 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n  File "train.py", line 3 in main\n',
    ),
    (
        "invalid_memory_access",
        W + "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f. Reason: Unknown.\n",
    ),
    ("invalid_memory_access", W + "forrtl: severe (174): SIGSEGV, segmentation fault occurred\n"),
    (
        "core_dump",
        W
        + "terminate called after throwing an instance of 'std::runtime_error'\n  what():  foo\nAborted (core dumped)\n",
    ),
    ("core_dump", W + "double free or corruption (!prev)\nAborted (core dumped)\n"),
    (
        "nccl_error",
        tb(
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited or there was a network error, NCCL version 2.18.1\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
        ),
    ),
    (
        "nccl_error",
        "n17:77:99 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error\n"
        + tb(
            "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1, unhandled system error, NCCL version 2.10.3"
        ),
    ),
    (
        "nccl_timeout",
        "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n",
    ),
    (
        "rendezvous_failure",
        tb(
            "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout"
        ),
    ),
    ("rendezvous_failure", tb("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")),
    (
        "rendezvous_failure",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).\n[E socket.cpp:462] [c10d] The server socket has failed to listen on any local network address.\n"
        + tb("RuntimeError: The server socket has failed to listen on any local network address."),
    ),
    (
        "rendezvous_failure",
        tb(
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/4 clients joined."
        ),
    ),
    (
        "mpi_error",
        "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n*** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n***    and potentially your MPI job)\n",
    ),
    (
        "mpi_error",
        "Fatal error in PMPI_Recv: Message truncated, error stack:\nMPIDI_CH3U_Request_unpack_uebuf(618): Message truncated; 64 bytes received but buffer size is 32\n",
    ),
    (
        "mpi_error",
        'The application appears to have been direct launched using "srun", but OMPI was not built with SLURM\'s PMI support and therefore cannot execute.\n',
    ),
    (
        "mpi_runtime_failure",
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[1,0],0] on node n1\n  Remote daemon: [[1,0],2] on node n3\n",
    ),
    (
        "mpi_runtime_failure",
        "(raylet) The node with node id: 3f and address: 10.0.0.3 and node name: 10.0.0.3 has been marked dead because the detector has missed too many heartbeats from it.\n",
    ),
    (
        "network_error",
        tb(
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Read timed out. (read timeout=10)"
        ),
    ),
    ("network_error", "curl: (6) Could not resolve host: example.org\n"),
    (
        "network_error",
        "fatal: unable to access 'https://github.com/x/y/': Could not resolve host: github.com\n",
    ),
    (
        "network_error",
        tb(
            "requests.exceptions.HTTPError: 503 Server Error: Service Temporarily Unavailable for url: https://huggingface.co/x"
        ),
    ),
    (
        "filesystem_error",
        tb(
            "OSError: [Errno 5] Input/output error: '/lustre/data/x.bin'",
            'File "/x/dataset.py", line 3, in __getitem__\n    with open(path, "rb") as f:',
        ),
    ),
    ("filesystem_error", tb("OSError: [Errno 116] Stale file handle")),
    (
        "checkpoint_error",
        tb(
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 128 vs 22",
            'File "/x/torch/serialization.py", line 1, in save\n    torch.save(obj, f)',
        ),
    ),
    (
        "checkpoint_error",
        tb(
            "ValueError: Checkpoint write failed: OSError('Input/output error')",
            'File "/x/orbax/checkpoint/checkpoint_manager.py", line 3, in save\n    self._save()',
        ),
    ),
    (
        "output_error",
        tb(
            "BrokenPipeError: [Errno 32] Broken pipe",
            'File "train.py", line 3, in log\n    print(msg, flush=True)',
        ),
    ),
    (
        "output_error",
        "slurmstepd: error: Could not open stdout file /nowhere/x.out: No such file or directory\n",
    ),
    (
        "container_error",
        "FATAL:   could not open image /x/y.sif: failed to retrieve path for /x/y.sif: lstat /x/y.sif: no such file or directory\n",
    ),
    (
        "container_error",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n',
    ),
    (
        "container_error",
        "slurmstepd: error: pyxis: container start failed with error code: 1\nslurmstepd: error: pyxis: printing enroot log file:\nslurmstepd: error: pyxis:     enroot-mount: failed to mount: /data at /x: No such file or directory\n",
    ),
    (
        "container_error",
        "FATAL:   container creation failed: mount /proc/self/fd/3->/x error: while mounting image /proc/self/fd/3: failed to find loop device\n",
    ),
    ("node_failure", "srun: error: Node failure on n17\n"),
    (
        "node_failure",
        W
        + "slurmstepd: error: *** JOB 77 ON n17 CANCELLED AT 2026-08-14T06:19:18 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
    ),
    (
        "preempted",
        W + "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-08-14T06:19:18 DUE TO PREEMPTION ***\n",
    ),
    (
        "time_limit",
        W
        + "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-08-14T06:19:18 DUE TO TIME LIMIT ***\nsrun: error: n1: task 0: Terminated\n",
    ),
    (
        "cancelled",
        W
        + '^CTraceback (most recent call last):\n  File "train.py", line 3, in main\n    loss.backward()\nKeyboardInterrupt\n',
    ),
    ("traceback", tb("mypkg.errors.WeirdError: the flux capacitor is empty")),
    ("traceback", tb("RuntimeError: something odd")),
    ("none", W + "`Trainer.fit` stopped: `max_epochs=10` reached.\n"),
    ("none", W + "wandb: Run history:\nwandb:  loss ▁▂▃\nwandb: Synced 5 W&B file(s)\n"),
    ("none", W + "{'train_runtime': 77.1, 'train_samples_per_second': 10.2, 'epoch': 3.0}\n"),
    (
        "none",
        "WARNING: could not import apex: No module named apex, using torch.optim\n"
        + W
        + "Training finished in 0:10:00\n",
    ),
    (
        "none",
        W
        + 'Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\nTraceback (most recent call last):\n  File "/x/dataloader.py", line 1, in __del__\n    self._shutdown_workers()\nAssertionError: can only test a child process\n'
        + W,
    ),
    (
        "none",
        W
        + "slurmstepd: error: Unable to create TMPDIR [/tmp/u]: Permission denied\nslurmstepd: error: Setting TMPDIR to /tmp\n"
        + W,
    ),
    ("no_signature", W + "srun: error: n17: task 0: Exited with exit code 1\n"),
    (
        "no_signature",
        W + "/var/spool/slurmd/job7/slurm_script: line 12: 77 Killed                  python train.py\n",
    ),
    (
        "no_signature",
        W
        + "E0514 12:00:00.1 77 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: -9) local_rank: 3 (pid: 77) of binary: /usr/bin/python\n",
    ),
]


@pytest.mark.parametrize(
    ("reason", "text"), CASES, ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(CASES)]
)
def test_what_a_tool_prints_is_named(reason, text):
    whole = text if text.endswith("\n") else tb(text)
    found = classify([LogText.of("train.log", whole.encode())])
    unsure = reason == "none" and found.reason == "no_signature" and not found.evidence
    assert found.reason == reason or unsure, (found.signature, found.evidence[:1])
