"""What counts as a failure that the real job would see too: words that torch, deepspeed, srun and others print."""

from __future__ import annotations

import json

import pytest

from gsub.smoke.judging import FAILS, Setting, verdict
from gsub.smoke.shape import ANYWHERE, NEAR, OURS
from prolog_epilog.failures.text import LogText
from tests.paths import DATA

CORPUS = DATA / "logs"
HEAD = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 30, in <module>\n'


def raised(message: str, source: str = "main()") -> str:
    return f"{HEAD}    {source}\n{message}\n"


FAILED = (
    ("import_error", raised("ModuleNotFoundError: No module named 'einops'")),
    ("import_error", raised("ModuleNotFoundError: No module named 'wandb'", "import wandb")),
    ("import_error", raised("ModuleNotFoundError: No module named 'deepspeed'", "import deepspeed")),
    ("syntax_error", '  File "/home/ada/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'),
    ("syntax_error", "/tmp/x/slurm_script: line 41: syntax error near unexpected token `fi'\n"),
    ("missing_input", raised("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'")),
    ("missing_input", "python: can't open file '/home/ada/trian.py': [Errno 2] No such file or directory\n"),
    ("environment_error", "/tmp/x/slurm_script: line 4: conda: command not found\n"),
    ("bad_arguments", "usage: train.py [-h] [--nodes N] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 3\n"),
    ("bad_arguments", "train.py: error: argument --amp: invalid choice: 'bf8' (choose from 'fp16', 'bf16')\n"),
    ("permission_error", raised("PermissionError: [Errno 13] Permission denied: '/data/private/cohort.parquet'")),
    ("semantic_error", raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)")),
    ("semantic_error", raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x512 and 256x10)",
                              "else self._run_ddp_forward(*inputs, **kwargs)")),
    ("semantic_error", raised("TypeError: Trainer.__init__() got an unexpected keyword argument 'tokenizer'",
                              "loader = DataLoader(data, num_workers=8)")),
    ("corrupt_input", raised("PIL.UnidentifiedImageError: cannot identify image file '/data/a.png'")),
    ("corrupt_input", raised("_pickle.UnpicklingError: invalid load key, '\\x00'.")),
    ("environment_error", "/tmp/gsub-smoke-ldw_8zw5/spool/slurm_script: line 9: convert-shards: command not found\n"),
)  # fmt: skip
"""Surely the user's, and the same on any number of GPUs."""

DOUBTFUL = (
    raised("RuntimeError: CUDA error: invalid device ordinal"),
    raised("AssertionError: world size (1) is not divisible by tensor_model_parallel_size (4)"),
    raised("RuntimeError: world_size (1) is not divisible by 8"),
    raised("ValueError: batch size 100 is not divisible by world size 1"),
    raised("AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
           "gradient_acc_step * world_size 256 != 4 * 8 * 1"),
    raised("ValueError: The model's attention heads (40) must be divisible by tensor parallel size (3)."),
    raised("lightning.fabric.utilities.exceptions.MisconfigurationException: You requested gpu: [0, 1, 2, 3]\n"
           " But your machine only has: [0]"),
    raised("ValueError: Invalid rank 3, rank should be in the interval [0, 0]"),
    raised("RuntimeError: Mesh should not be bigger than default world size, but found 8 ranks!"),
    raised("AssertionError: need at least 8 GPUs, found 1"),
    raised("ValueError: expected 16 processes but got 1"),
    raised("KeyError: 'SLURM_STEP_NODELIST'", "os.environ['SLURM_STEP_NODELIST']"),
    raised("KeyError: 'WORLD_SIZE'", "world = int(os.environ['WORLD_SIZE'])"),
    raised("IndexError: list index out of range", "master = hosts[1]"),
    raised("ZeroDivisionError: integer division or modulo by zero", "steps = total // (gpus // 8)"),
    raised("RuntimeError: shape '[8, -1]' is invalid for input of size 15", "x = x.view(world_size, -1)"),
    raised("AssertionError: 100", "assert args.batch % dist.get_world_size() == 0, args.batch"),
    raised("FileNotFoundError: [Errno 2] No such file or directory: '/data/part-of-1.npy'"),
    raised("FileNotFoundError: [Errno 2] No such file or directory: 'ck/mp_rank_00_model_states.pt'"),
    raised("FileNotFoundError: [Errno 2] No such file or directory: 'x.npy'", "np.load(names[rank])"),
    raised("RuntimeError: Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1. "
           "Please use torch.load with map_location"),
    raised("ValueError: The checkpoint being loaded used a DP world size of 16 but the current world size is 1."),
    raised("jax.errors.UnexpectedTracerError: cannot reshape array of size 1 into shape (4,2) of a device mesh"),
    raised("wandb.errors.errors.UsageError: Cannot use artifact when in offline mode."),
    raised("TypeError: argument of type 'NoneType' is not iterable", "if 'x' in wandb.run.url:"),
    raised("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"),
    raised("torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/8 clients joined."),
    raised("RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error"),
    "srun: error: Only allocated 1 nodes asked for 2\n",
    "srun: error: Unable to create step for job 12: More processors requested than permitted\n",
    "srun: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1\n",
    "srun: error: Unable to create step for job 12: Requested node configuration is not available\n",
    "There are not enough slots available in the system to satisfy the 8\nslots that were requested\n",
    # what came before was about the shape: the rest may follow from it
    "srun: error: Only allocated 1 nodes asked for 2\n" + raised("ModuleNotFoundError: No module named 'mine'"),
    "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification\n"
    + raised("FileNotFoundError: [Errno 2] No such file or directory: 'out/prepared.csv'"),
    "Killed\n",
    "",
)  # fmt: skip
"""About counts of GPUs, ranks or nodes, about the machine, about the smoke run, or nothing that is known."""


@pytest.mark.parametrize(("reason", "text"), FAILED, ids=[f"{n}-{row[0]}" for n, row in enumerate(FAILED)])
def test_a_failure_of_the_users_own_counts(reason: str, text: str) -> None:
    judged = verdict(LogText.of("output", text.encode()), 1)
    assert judged.finding is not None and judged.finding.reason == reason
    assert judged.outcome == "failed", judged.sentence


@pytest.mark.parametrize("text", DOUBTFUL, ids=[text.strip().rpartition("\n")[2][:50] for text in DOUBTFUL])
def test_what_may_come_from_the_shape_does_not(text: str) -> None:
    judged = verdict(LogText.of("output", text.encode()), 1)
    assert judged.outcome == "inconclusive", judged
    assert judged.sentence


@pytest.mark.parametrize("code", [-9, -11, -15, 137, 139, 143])
def test_a_signal_is_no_failure_whatever_the_log_says(code: int) -> None:
    assert verdict(LogText.of("output", FAILED[0][1].encode()), code).outcome == "inconclusive"


@pytest.mark.slow
def test_of_many_real_logs_none_fails_for_a_reason_that_is_not_the_users() -> None:
    failed = {True: 0, False: 0}
    for line in (CORPUS / "labels.jsonl").read_text().splitlines()[::2]:
        row = json.loads(line)
        data = (CORPUS / row["file"]).read_bytes()
        if verdict(LogText.of("output", data), 1).outcome == "failed":
            failed[bool(FAILS & {row["reason"], *row["also_acceptable"]})] += 1
    assert failed[False] == 0
    assert failed[True] > 50


def test_what_an_overlay_may_have_caused_does_not_count() -> None:
    denied = LogText.of("output", FAILED[10][1].encode())
    missing = LogText.of(
        "output", raised("FileNotFoundError: [Errno 2] No such file: 'out/made.csv'").encode()
    )
    assert verdict(denied, 1).outcome == verdict(missing, 1).outcome == "failed"
    assert verdict(denied, 1, Setting(kept=True)).outcome == "inconclusive"
    assert verdict(missing, 1, Setting(kept=True)).outcome == "failed"
    assert verdict(missing, 1, Setting(kept=True, wrote=frozenset({"made.csv"}))).outcome == "inconclusive"
    assert verdict(missing, 1, Setting(kept=True, steps=True)).outcome == "inconclusive"


def test_an_endless_line_and_a_million_lines_are_judged_in_bounded_time() -> None:
    for data in (b"need " * 1_000_000, b"found 3 world size must be\n" * 200_000):
        verdict(LogText.of("output", data + FAILED[0][1].encode()), 1)


def test_every_row_says_why() -> None:
    assert all(row.who and row.why and len(row.pattern) > 3 for row in (*ANYWHERE, *NEAR, *OURS))
