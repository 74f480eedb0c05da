"""Step rates from what real training loops print."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.step_rate import mark, step_rate
from tests.properties import examples

LINES = [
    # format, line, count, total, seconds of a step as stated
    ("tqdm", " 45%|████▌     | 450/1000 [01:30<01:50,  5.00it/s, loss=0.3]", 450, 1000, 0.2),
    ("tqdm", "  2%|▏         | 10/500 [00:25<20:11,  2.47s/it]", 10, 500, 2.47),
    ("tqdm", "train: 450it [01:30,  5.00it/s]", 450, None, 0.2),
    ("tqdm", "  0%|      | 0/1000 [00:00<?, ?it/s]\r  1%|      | 10/1000 [00:02<03:18,  5.0it/s]", 10, 1000, 0.2),
    ("tqdm", "Epoch 3:  12%|█▏        | 30/250 [00:10<01:15,  2.50it/s, v_num=12, train_loss=2.300]", 30, 250, 0.4),
    ("tqdm", "Epoch 0:  40%|####      | 100/250 [1:00:10<1:30:15,  5.00batch/s]", 100, 250, 0.2),
    ("lightning", "Epoch 0/9 ━━━━━━━━━━━━━╸━━━ 30/250 0:00:10 • 0:01:15 2.50it/s v_num: 1.000", 30, 250, 0.4),
    (
        "megatron",
        " iteration      100/  500000 | consumed samples:        25600 | elapsed time per iteration (ms): 1234.5 | "
        "learning rate: 1.500E-04 | global batch size:   256 | lm loss: 9.1E+00 |",
        100, 500000, 1.2345,
    ),
    (
        "megatron",
        " [2024-05-01 12:00:01] iteration       20/    1000 | consumed samples:  640 | "
        "elapsed time per iteration (ms): 310.0 | throughput per GPU (TFLOP/s/GPU): 90.1 |",
        20, 1000, 0.31,
    ),
    ("keras", " 125/1875 [=>............................] - ETA: 4s - loss: 0.5432 - accuracy: 0.84", 125, 1875, None),
    ("keras", "1875/1875 [==============================] - 5s 3ms/step - loss: 0.2187", 1875, 1875, 0.003),
    (
        "keras",
        "\x1b[1m 125/1875\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m4s\x1b[0m 3ms/step",
        125, 1875, 0.003,
    ),
    (
        "imagenet",
        "Epoch: [0]  [  10/5004]  eta: 1:02:03  lr: 0.1  img/s: 300.1  loss: 6.9 (6.9)  time: 0.3512  data: 0.1",
        10, 5004, 0.3512,
    ),
    ("imagenet", "Epoch: [0][  10/5005]\tTime  0.350 ( 0.600)\tData  0.010 ( 0.200)\tLoss 7.0e+00", 10, 5005, 0.35),
    ("imagenet", "Train: 0 [  50/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.430s,  595.2/s  LR: 1.0e-05", 50, 1251, 0.43),
    ("nanogpt", "iter 100: loss 2.1234, time 135.20ms, mfu 10.00%", 100, None, 0.1352),
    ("trainer", "{'loss': 0.5123, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.25}", 0.25, None, None),
    ("plain", "step 100, loss 3.2", 100, None, None),
    ("plain", "[rank0] Step: 100/1000 loss=0.2", 100, 1000, None),
    ("plain", "2024-05-01 12:00:00,123 INFO train: global_step=1000 lr=1e-4", 1000, None, None),
    ("plain", "[2024-05-01] [INFO] [logging.py:96:log_dist] [Rank 0] step=30, skipped=0, lr=[0.001]", 30, None, None),
]  # fmt: skip

NONE = [
    "",
    "accuracy 3/4",
    "hello world",
    "time step 0.1 used",
    "batch size: 64",
    "Validation DataLoader 0:  50%|█████     | 5/10 [00:01<00:01,  4.00it/s]",
    "Sanity Checking DataLoader 0:  50%|█████     | 1/2 [00:01<00:01,  4.00it/s]",
    "Loading checkpoint shards:  50%|#####     | 1/2 [00:03<00:03,  3.10s/it]",
    "Downloading data: 45%|####      | 450/1000 [01:30<01:50,  5.00it/s]",
    "Map:  45%|####      | 450/1000 [01:30<01:50,  5.00 examples/s]",
    "eval step 100",
    "model.safetensors: 100%|##########| 1.2G/1.2G [00:10<00:00, 120MB/s]",
]


@pytest.mark.parametrize(("form", "line", "step", "total", "each"), LINES)
def test_a_line_of_a_format(form, line, step, total, each):
    found = mark(0.0, line)
    assert found is not None
    assert (found.format, found.step, found.total) == (form, step, total)
    assert found.each == (None if each is None else pytest.approx(each))


@pytest.mark.parametrize("line", NONE)
def test_a_line_without_a_count_of_training(line):
    assert mark(0.0, line) is None


TEMPLATES = {
    "tqdm": " {p}%|###       | {n}/5000 [{m:02d}:{s:02d}<10:00,  9.99it/s]",
    "lightning": "Epoch 0/9 ━━━━╸━━━━ {n}/5000 0:00:10 • 0:01:15 9.99it/s v_num: 1.000",
    "megatron": " iteration {n:8d}/    5000 | consumed samples: 1 | elapsed time per iteration (ms): 100.1 | x",
    "keras": " {n}/5000 [=>............................] - ETA: 4s - loss: 0.5432",
    "imagenet": "Epoch: [0]  [{n:4d}/5000]  eta: 1:02:03  loss: {s}.1 (6.9)  time: 0.1  data: 0.1",
    "nanogpt": "iter {n}: loss 2.1{s}, time 135.20ms, mfu 10.00%",
    "plain": "INFO loss 0.{s} step {n}/5000",
}


@pytest.mark.parametrize("form", TEMPLATES)
@pytest.mark.parametrize("every", [1, 10])
def test_the_rate_comes_from_counts_and_times(form, every):
    """Not from what the lines state, which bars smooth."""
    draw = random.Random(1)
    now, lines = 1000.0, []
    for n in range(every, 60 * every + 1, every):
        now += sum(0.25 * draw.lognormvariate(0, 0.05) for _ in range(every))
        lines.append((now, TEMPLATES[form].format(n=n, p=n // 50, m=int(now) // 60 % 60, s=int(now) % 60)))
        if n % 5 == 0:
            lines.append((now, "Validation:  50%|#####     | 5/10 [00:01<00:01,  4.00it/s]"))
            lines.append((now, "a line about something else"))
    found = step_rate(lines)
    assert found is not None
    assert found.format == form and found.from_times
    assert found.rate == pytest.approx(4.0, rel=0.03)
    assert found.error is not None and found.error < 0.2
    assert found.step == 60 * every


def test_epochs_that_begin_anew():
    lines = [(float(t), f" {t % 50}/50 [=>....] - ETA: 4s - loss: 0.5") for t in range(200)]
    found = step_rate(lines)
    assert found is not None and found.rate == pytest.approx(1.0)


def test_of_two_bars_the_one_that_counts_on_most_is_the_training():
    lines = []
    for t in range(100):
        lines.append((float(t), f"Epochs:  10%|# | {t // 50}/10 [00:{t % 60:02d}<10:00, 50.0s/it]"))
        lines.append((float(t), f"  1%|  | {2 * t}/1000 [00:{t % 60:02d}<10:00, 9.9it/s]"))
    found = step_rate(lines)
    assert found is not None and found.total == 1000
    assert found.rate == pytest.approx(2.0)


def test_ranks_that_print_the_same_steps_count_once():
    lines = [(t + rank * 0.01, f"[rank{rank}] step {t}") for t in range(30) for rank in range(4)]
    found = step_rate(lines)
    assert found is not None and found.rate == pytest.approx(1.0, rel=0.02)


def test_lines_that_were_read_at_once_are_taken_at_their_word():
    found = step_rate([(7.0, f" 1%|  | {n}/1000 [00:{n:02d}<10:00,  4.00it/s]") for n in range(1, 30)])
    assert found is not None
    assert (found.rate, found.from_times, found.error) == (4.0, False, None)


def test_a_trainer_that_only_prints_epochs():
    lines = [(float(t), f"{{'loss': 0.5, 'learning_rate': 5e-05, 'epoch': {t / 100}}}") for t in range(1, 40)]
    found = step_rate(lines)
    assert found is not None and found.of == "epoch"
    assert found.rate == pytest.approx(0.01)


HOSTILE = [
    "1" * 10**6, "1/" * 10**6, "iteration 1/1 |" + "a" * 10**6, "step " * 10**5, "[" * 10**6, "1/1 [" * 10**5,
    "iter 1: loss " * 10**5, "\r" * 10**6, "{'loss': " * 10**5, "\x1b[1" * 10**5, "1:" * 10**6, " " * 10**6 + "1/2",
    "0/0 [0:00<0:00, 0it/s]", "step 999999999999", "1/1 [00:00<00:00, 0.0s/it]", "\ud800 1/2 [00:00<00:00, 1it/s]",
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_harmless(line):
    step_rate([(float(at), line) for at in range(50)])


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.text() | st.sampled_from([row[1] for row in LINES]))))
@settings(max_examples=examples(100), deadline=None)
def test_any_lines_give_a_rate_above_zero_or_none(lines):
    found = step_rate(lines)
    assert found is None or found.rate > 0
