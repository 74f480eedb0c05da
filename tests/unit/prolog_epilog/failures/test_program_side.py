# ruff: noqa: E501 - messages of tools are as long as they are
"""What programs, files and services say, through the whole classifier: by its stack one error means several things.

The stacks are those of the libraries' sources, outermost frame first; each entry is "function: source line" of a file.
"""

from __future__ import annotations

import pytest

from prolog_epilog.failures.classify import classify
from prolog_epilog.failures.text import LogText
from tests.paths import DATA

PROGRESS = "".join(f"epoch 1 step {n * 10} loss {3 - n / 100:.4f}\n" for n in range(1, 20))

Frames = tuple[tuple[str, str, str], ...]
MAIN: Frames = (("train.py", "<module>", "main()"), ("train.py", "main", "run(args)"))

SAVES: dict[str, Frames] = {
    "torch.save": (
        ("train.py", "save_state", "torch.save(state, path)"),
        ("/env/torch/serialization.py", "save", "with _open_zipfile_writer(f) as opened_zipfile:"),
        (
            "/env/torch/serialization.py",
            "__init__",
            "super().__init__(torch._C.PyTorchFileWriter(str(name)))",
        ),
    ),
    "trainer": (
        ("/env/transformers/trainer.py", "_maybe_log_save_evaluate", "self._save_checkpoint(model, trial)"),
        ("/env/transformers/trainer.py", "_save_checkpoint", "os.makedirs(output_dir, exist_ok=True)"),
        ("/usr/lib/python3.11/os.py", "makedirs", "mkdir(name, mode)"),
    ),
    "lightning": (
        (
            "/env/lightning/pytorch/callbacks/model_checkpoint.py",
            "_save_checkpoint",
            "trainer.save_checkpoint(filepath)",
        ),
        ("/env/lightning/fabric/utilities/cloud_io.py", "_atomic_save", "f.write(bytesbuffer.getvalue())"),
        ("/env/fsspec/implementations/local.py", "write", "return self.f.write(*args, **kwargs)"),
    ),
    "deepspeed": (
        (
            "/env/deepspeed/runtime/engine.py",
            "save_checkpoint",
            "self._create_checkpoint_file(save_dir, tag, False)",
        ),
        ("/env/deepspeed/runtime/engine.py", "_create_checkpoint_file", "ensure_directory_exists(name)"),
    ),
    "rename": (("train.py", "save", "os.replace(tmp_path, ckpt_path)"),),
    "keras": (
        ("/env/keras/src/callbacks/model_checkpoint.py", "_save_model", "self.model.save_weights(filepath)"),
        (
            "/env/keras/src/saving/saving_lib.py",
            "save_weights_only",
            "weights_store = H5IOStore(filepath, mode='w')",
        ),
    ),
    "dcp": (
        ("/env/torch/distributed/checkpoint/state_dict_saver.py", "save", "return _save_state_dict("),
        (
            "/env/torch/distributed/checkpoint/filesystem.py",
            "_write_files_from_queue",
            "os.fsync(stream.fileno())",
        ),
    ),
    "accelerate": (
        ("train.py", "main", "accelerator.save_state(os.path.join(args.output_dir, f'step_{step}'))"),
    ),
}
READS: dict[str, Frames] = {
    "dataset": (
        ("/env/torch/utils/data/dataloader.py", "__next__", "data = self._next_data()"),
        (
            "/env/torch/utils/data/_utils/fetch.py",
            "fetch",
            "data = [self.dataset[idx] for idx in possibly_batched_index]",
        ),
        ("data.py", "__getitem__", "img = Image.open(self.paths[i]).convert('RGB')"),
        ("/env/PIL/Image.py", "open", 'fp = builtins.open(filename, "rb")'),
    ),
    "numpy": (
        ("data.py", "load_split", "x = np.load(path, mmap_mode='r')"),
        ("/env/numpy/lib/npyio.py", "load", 'fid = stack.enter_context(open(os.fspath(file), "rb"))'),
    ),
    "torch.load": (
        ("train.py", "main", "state = torch.load(args.resume, map_location='cpu')"),
        ("/env/torch/serialization.py", "load", "with _open_file_like(f, 'rb') as opened_file:"),
        ("/env/torch/serialization.py", "__init__", "super().__init__(open(name, mode))"),
    ),
    "h5py": (
        ("data.py", "__init__", "self.h5 = h5py.File(path, 'r')"),
        ("/env/h5py/_hl/files.py", "make_fid", "fid = h5f.open(name, flags, fapl=fapl)"),
    ),
    "pandas": (
        ("data.py", "main", "df = pd.read_csv(args.train_csv)"),
        ("/env/pandas/io/parsers/readers.py", "read_csv", "return _read(filepath_or_buffer, kwds)"),
        ("/env/pandas/io/common.py", "get_handle", "handle = open("),
    ),
    "listdir": (("data.py", "find", "for name in sorted(os.listdir(root)):"),),
    "progress bar": (
        ("train.py", "main", "for batch in tqdm(loader, desc='train'):"),
        ("/env/tqdm/std.py", "__iter__", "for obj in iterable:"),
        ("data.py", "__getitem__", "return self.records[i]"),
    ),
    "hydra": (
        ("/env/hydra/_internal/utils.py", "run_and_report", "return func()"),
        ("data.py", "load_corpus", "with open(path) as f:"),
    ),
    "while evaluating": (
        (
            "/env/transformers/trainer.py",
            "_maybe_log_save_evaluate",
            "metrics = self._evaluate(trial, ignore_keys_for_eval)",
        ),
        (
            "/env/torch/utils/data/_utils/fetch.py",
            "fetch",
            "data = [self.dataset[idx] for idx in possibly_batched_index]",
        ),
    ),
}
OUTPUTS: dict[str, Frames] = {
    "tensorboard": (
        ("train.py", "main", "writer.add_scalar('loss', loss, step)"),
        ("/env/tensorboard/summary/writer/event_file_writer.py", "run", "self._record_writer.write(data)"),
    ),
    "logging": (
        ("train.py", "main", "logging.basicConfig(filename=args.log, level=logging.INFO)"),
        (
            "/usr/lib/python3.11/logging/__init__.py",
            "_open",
            "return open_func(self.baseFilename, self.mode)",
        ),
    ),
    "open w": (("eval.py", "main", 'with open(os.path.join(args.out, "metrics.json"), "w") as f:'),),
    "to_csv": (
        ("eval.py", "main", "df.to_csv('results/fold0.csv')"),
        ("/env/pandas/io/common.py", "get_handle", "handle = open("),
    ),
    "savefig": (
        ("plot.py", "main", "plt.savefig(out)"),
        ("/env/matplotlib/figure.py", "savefig", "self.canvas.print_figure(fname, **kwargs)"),
    ),
    "makedirs": (
        ("train.py", "main", "os.makedirs(args.output_dir)"),
        ("/usr/lib/python3.11/os.py", "makedirs", "mkdir(name, mode)"),
    ),
    "np.save": (
        ("embed.py", "main", "np.save(out_path, features)"),
        ("/env/numpy/lib/npyio.py", "save", 'file_ctx = open(file, "wb")'),
    ),
    "print": (("train.py", "main", "print(f'step {step} loss {loss}', flush=True)"),),
    "wandb": (
        ("train.py", "main", "wandb.init(project='x', dir=args.out)"),
        ("/env/wandb/sdk/wandb_init.py", "init", "os.makedirs(self.dir)"),
    ),
}
DOWNLOADS: dict[str, Frames] = {
    "from_pretrained": (
        ("train.py", "main", "model = AutoModel.from_pretrained(args.model)"),
        ("/env/transformers/utils/hub.py", "cached_files", "hf_hub_download("),
        (
            "/env/huggingface_hub/file_download.py",
            "http_get",
            "for chunk in r.iter_content(chunk_size=CHUNK):",
        ),
        ("/env/urllib3/response.py", "read", "return self._fp_read(amt)"),
    ),
    "torch.hub": (
        ("train.py", "main", "net = torchvision.models.resnet50(weights='DEFAULT')"),
        ("/env/torch/hub.py", "download_url_to_file", "u = urlopen(req)"),
        (
            "/usr/lib/python3.11/urllib/request.py",
            "do_open",
            "h.request(req.get_method(), req.selector, req.data)",
        ),
    ),
    "requests": (
        ("prep.py", "main", "r = requests.get(url, timeout=30)"),
        ("/env/requests/adapters.py", "send", "raise ConnectionError(e, request=request)"),
    ),
}
MEETS: dict[str, Frames] = {
    "c10d": (
        ("train.py", "main", "dist.init_process_group('nccl')"),
        ("/env/torch/distributed/rendezvous.py", "_create_c10d_store", "return TCPStore("),
    ),
}
PROGRAMS: dict[str, Frames] = {
    "subprocess": (
        ("prep.py", "main", "subprocess.run(['samtools', 'sort', path], check=True)"),
        (
            "/usr/lib/python3.11/subprocess.py",
            "_execute_child",
            "raise child_exception_type(errno_num, err_msg, err_filename)",
        ),
    ),
}
SHARED: dict[str, Frames] = {
    "shared memory": (
        ("/usr/lib/python3.11/multiprocessing/shared_memory.py", "__init__", "os.ftruncate(self._fd, size)"),
    ),
}


def log(frames: Frames, last: str) -> LogText:
    stack = "".join(
        f'  File "{file}", line 41, in {function}\n    {source}\n' for file, function, source in frames
    )
    return LogText.of("train.log", f"{PROGRESS}Traceback (most recent call last):\n{stack}{last}\n".encode())


MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/u/a/b'"
IO_ERROR = "OSError: [Errno 5] Input/output error"
STALE = "OSError: [Errno 116] Stale file handle"
READ_ONLY = "OSError: [Errno 30] Read-only file system: '/scratch/u/a'"
FULL = "OSError: [Errno 28] No space left on device"
QUOTA = "OSError: [Errno 122] Disk quota exceeded"
DENIED = "PermissionError: [Errno 13] Permission denied: '/scratch/u/a'"
TIMED_OUT = "TimeoutError: [Errno 110] Connection timed out"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused"

BY_STACK = [
    (SAVES, (MISSING, IO_ERROR, STALE, READ_ONLY, TIMED_OUT), "checkpoint_error"),
    (READS, (IO_ERROR, STALE, TIMED_OUT), "filesystem_error"),
    (READS, (MISSING,), "missing_input"),
    (OUTPUTS, (MISSING, IO_ERROR, STALE, READ_ONLY), "output_error"),
    (DOWNLOADS, (TIMED_OUT, RESET, REFUSED), "network_error"),
    (MEETS, (TIMED_OUT, REFUSED), "rendezvous_failure"),
    (PROGRAMS, ("FileNotFoundError: [Errno 2] No such file or directory: 'samtools'",), "environment_error"),
    (SHARED, (FULL,), "shared_memory"),
    (SAVES, (FULL, QUOTA), "no_space"),
    (OUTPUTS, (FULL, QUOTA), "no_space"),
    (SAVES, (DENIED,), "permission_error"),
    (READS, (DENIED,), "permission_error"),
    (OUTPUTS, (DENIED,), "permission_error"),
]
CASES = [
    pytest.param(frames, last, reason, id=f"{name}-{last[:28]}")
    for stacks, lasts, reason in BY_STACK
    for name, frames in stacks.items()
    for last in lasts
]


@pytest.mark.parametrize(("frames", "last", "reason"), CASES)
def test_the_stack_decides_what_an_error_of_the_system_means(frames: Frames, last: str, reason: str):
    found = classify([log(MAIN + frames, last)])
    assert found.reason == reason, found


LINES = [
    ("semantic_error", "KeyError: 'labels'"),
    ("semantic_error", "IndexError: list index out of range"),
    ("semantic_error", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)"),
    ("semantic_error", "ValueError: operands could not be broadcast together with shapes (3,) (4,)"),
    ("semantic_error", "AttributeError: module 'numpy' has no attribute 'int'."),
    ("semantic_error", "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88"),
    ("semantic_error", "TypeError: __init__() got an unexpected keyword argument 'evaluation_strategy'"),
    ("semantic_error", "ZeroDivisionError: float division by zero"),
    ("semantic_error", "NotImplementedError"),
    ("semantic_error", "ValueError: Input X contains NaN."),
    ("semantic_error", "ValueError: cannot convert float NaN to integer"),
    ("import_error", "ImportError: cannot import name 'x' from 'y' (/env/y.py)"),
    ("import_error", "ImportError: Using `low_cpu_mem_usage=True` requires Accelerate: `pip install 'accelerate>=0.26.0'`"),
    ("import_error", "RuntimeError: You need to install the apex package to use FusedLayerNorm"),
    ("import_error", "ValueError: Trying to use 8-bit: bitsandbytes is not installed"),
    ("missing_library", "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory"),
    ("missing_library", "OSError: libtorch_cuda_cpp.so: cannot open shared object file: No such file or directory"),
    ("missing_library", "ImportError: /env/x.so: undefined symbol: _ZNK3c104Type14isSubtypeOfExtE"),
    ("corrupt_input", "RuntimeError: Error(s) in loading state_dict for GPT:"),
    ("corrupt_input", "_pickle.UnpicklingError: invalid load key, 'v'."),
    ("corrupt_input", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
    ("corrupt_input", "zipfile.BadZipFile: File is not a zip file"),
    ("corrupt_input", "PIL.UnidentifiedImageError: cannot identify image file <_io.BytesIO object at 0x7f>"),
    ("corrupt_input", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x80 in position 0: invalid start byte"),
    ("corrupt_input", "pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer."),
    ("corrupt_input", "OSError: Unable to open file (truncated file: eof = 96, sblock->base_addr = 0, stored_eof = 2048)"),
    ("missing_input", "OSError: lab/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'"),
    ("missing_input", "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://a.org/x.tar"),
    ("missing_input", "ValueError: Couldn't find any checkpoint in /out/run7"),
    ("permission_error", "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: x)"),
    ("permission_error", "botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    ("permission_error", "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])"),
    ("network_error", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    ("network_error", "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/x"),
    ("network_error", "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."),
    ("filesystem_error", "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation (reached max retries: 4): Please reduce your request rate."),
    ("checkpoint_error", "RuntimeError: Parent directory /out/ckpt does not exist."),
    ("checkpoint_error", "FileNotFoundError: [Errno 2] No such file or directory: 'out/tmp-checkpoint-49' -> 'out/checkpoint-49'"),
    ("checkpoint_error", "RuntimeError: [enforce fail at inline_container.cc:588] . PytorchStreamWriter failed writing file data/3: file write failed"),
    ("output_error", "OSError: Cannot save file into a non-existent directory: 'results'"),
    ("bad_arguments", "ValueError: Output directory (out) already exists and is not empty. Use --overwrite_output_dir to overcome."),
    ("bad_arguments", "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct"),
    ("bad_arguments", "AssertionError: global batch size (250) is not divisible by micro batch size (4) times data parallel size (8)"),
    ("bad_arguments", "ValueError: Unknown optimizer: adamww"),
    ("model_diverged", "FloatingPointError: Minimum loss scale reached (0.0001)."),
    ("model_diverged", "RuntimeError: Function 'LogBackward0' returned nan values in its 0th output."),
    ("model_diverged", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    ("model_diverged", "AssertionError: loss is not finite: nan"),
    ("environment_error", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
    ("environment_error", "KeyError: 'SLURM_PROCID'"),
    ("syntax_error", "IndentationError: unexpected indent"),
    ("traceback", "mylib.errors.EngineError: step failed"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "last"), LINES)
def test_the_message_of_an_exception_says_its_reason(reason: str, last: str):
    found = classify([log(MAIN, last)])
    assert found.reason == reason, found


def test_a_check_of_options_is_told_from_a_program_that_is_wrong():
    checked = (
        ("/opt/megatron/training/arguments.py", "validate_args", "assert args.num_layers % stages == 0"),
    )
    assert classify([log(MAIN + checked, "AssertionError")]).reason == "bad_arguments"
    wrapped = (("/env/hydra/_internal/utils.py", "run_and_report", "return func()"),)
    assert classify([log(wrapped + MAIN, "AssertionError")]).reason == "semantic_error"


SHELLS = [
    ("environment_error", "/var/spool/slurmd/job7/slurm_script: line 12: torchrun: command not found"),
    ("environment_error", "/usr/bin/env: 'python': No such file or directory"),
    ("environment_error", "slurm_script: line 8: /home/u/venv/bin/activate: No such file or directory"),
    ("environment_error", 'Lmod has detected the following error: The following module(s) are unknown: "cuda/12.9"'),
    ("environment_error", "EnvironmentNameNotFound: Could not find conda environment: torch21"),
    ("missing_library", "./solver: error while loading shared libraries: libmpi.so.40: cannot open shared object file: No such file or directory"),
    ("missing_library", "python: /lib64/libc.so.6: version `GLIBC_2.34' not found (required by python)"),
    ("syntax_error", "slurm_script: line 24: syntax error near unexpected token `('"),
    ("bad_arguments", "train.py: error: unrecognized arguments: --learning_rate 0.1"),
    ("bad_arguments", "Error: No such option: --epoch"),
    ("bad_arguments", "FATAL Flags parsing error: Unknown command line flag 'lr'. Did you mean: l ?"),
    ("missing_input", "python: can't open file '/home/u/train.py': [Errno 2] No such file or directory"),
    ("missing_input", "cp: cannot stat '/data/train.tar': No such file or directory"),
    ("missing_input", "slurm_script: line 9: cd: /home/u/projekt: No such file or directory"),
    ("import_error", "/usr/bin/python3: No module named torch.distributed.run"),
    ("no_space", "cp: error writing '/scratch/x.tar': No space left on device"),
    ("shared_memory", "cp: error writing '/dev/shm/x.tar': No space left on device"),
    ("permission_error", "bash: ./train.sh: Permission denied"),
    ("permission_error", "git@github.com: Permission denied (publickey)."),
    ("output_error", "tee: logs/train.log: No such file or directory"),
    ("output_error", "mkdir: cannot create directory 'out/run7': No such file or directory"),
    ("filesystem_error", "cat: /nfs/data/list.txt: Stale file handle"),
    ("filesystem_error", "ls: cannot access '/mnt/beegfs': Transport endpoint is not connected"),
    ("network_error", "curl: (6) Could not resolve host: huggingface.co"),
    ("network_error", "fatal: unable to access 'https://github.com/lab/x.git/': Could not resolve host: github.com"),
    ("corrupt_input", "tar: Unexpected EOF in archive"),
    ("checkpoint_error", "[ERROR] Failed to write checkpoint /lustre/run7/step_9000"),
    ("model_diverged", "Loss is nan, stopping training"),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "line"), SHELLS)
def test_a_line_of_a_shell_or_a_tool_says_its_reason(reason: str, line: str):
    found = classify([LogText.of("slurm-7.out", f"starting on n17\n{line}\n".encode())])
    assert found.reason == reason, found


BARE_STACK: Frames = (("train.py", "main", "step(i)"), ("engine.py", "step", "hooks.after(i)"))
MADE_FOLDER: Frames = (*BARE_STACK, ("/usr/lib/python3.11/os.py", "makedirs", "mkdir(name, mode)"))


@pytest.mark.parametrize("frames", [BARE_STACK, MADE_FOLDER])
@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ("Saving model checkpoint to /out/checkpoint-500", "checkpoint_error"),
        ("[INFO] writing checkpoint at iteration 1000", "checkpoint_error"),
    ],
)
def test_where_the_stack_is_silent_the_line_before_it_says_what_was_done(
    frames: Frames, before: str, reason: str
):
    data = log(MAIN + frames, IO_ERROR).data.replace(b"Traceback", before.encode() + b"\nTraceback")
    found = classify([LogText.of("train.log", data)])
    assert found.reason == reason, found


ORDINARY = (DATA / "ordinary.txt").read_text().splitlines()


@pytest.mark.parametrize("line", ORDINARY)
def test_what_tools_print_on_ordinary_days_is_no_failure(line: str):
    found = classify([LogText.of("train.log", f"starting on n17\n{line}\nbye\n".encode())])
    assert found.reason in ("none", "no_signature"), found


def test_a_log_of_ordinary_lines_is_no_failure():
    text = "\n".join(ORDINARY) + "\n"
    assert classify([LogText.of("train.log", text.encode())]).reason in ("none", "no_signature")
