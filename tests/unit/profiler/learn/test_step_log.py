"""A log as it grows: when its lines were written, epochs that begin anew, files cut off, and lines that pour."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from profiler.step_log import StepLog


def test_the_newest_line_is_as_old_as_its_file(tmp_path: Path):
    # Looked at every second, written at other times: the times of the looks alone would be off by as much
    log, now, written = tmp_path / "log", 1000.0, 5_000.0
    found = StepLog(log, clock=lambda: written)
    step, at = 0, 1000.1
    while now < 1060:
        with log.open("a") as file:
            while at < now:
                step += 1
                file.write(f"step {step}\n")
                last = at
                at += 0.7
        if step:
            os.utime(log, (0, written - (now - last)))
        found.look(now)
        now, written = now + 1, written + 1
    speed = found.speed(1010)
    assert speed is not None
    assert speed.rate == pytest.approx(1 / 0.7, rel=0.02)
    assert speed.error < 0.05


def test_lines_that_come_as_they_are_written_are_timed_exactly():
    log = StepLog()
    for step in range(100):
        log.heard(step * 0.3, f"\r {step}/5000 [00:10<01:50,  4.00it/s, loss=0.3]".encode())
        log.heard(step * 0.3, b"\n" if step % 3 else b"")
    speed = log.speed(3.0)
    assert speed is not None
    assert speed.rate == pytest.approx(1 / 0.3, rel=0.01)
    assert log.steps >= 98


def test_an_epoch_that_begins_anew_goes_on():
    log = StepLog()
    for step in range(200):
        log.heard(step * 0.1, f"step {step % 40 + 1}\n".encode())
    speed = log.speed(0.0)
    assert speed is not None
    assert speed.rate == pytest.approx(10, rel=0.05)


def test_few_lines_of_many_steps_are_a_rate_with_a_wide_error():
    log = StepLog()
    for step in range(4):
        log.heard(step * 9.0, f"step {step * 50}\n".encode())
    speed = log.speed(0.0)
    assert speed is not None
    assert speed.rate == pytest.approx(50 / 9)
    assert speed.error >= 0.02 * speed.rate


def test_a_log_that_was_cut_off_is_read_anew(tmp_path: Path):
    path = tmp_path / "log"
    log = StepLog(path)
    for number in range(60):
        text = "".join(f"step {step}\n" for step in range(1, number % 30 + 2))
        path.write_text(text)
        log.look(float(number))
    assert log.speed(0.0) is not None


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"x" * 300 + b"\n", b"step 1 " * 40 + b"\n", b"1/2 \xff\x00\n", b"\r"])
def test_a_log_that_pours_costs_a_bounded_time(line: bytes):
    log = StepLog()
    begun = time.process_time()
    for turn in range(20):
        for _ in range(16):
            log.heard(float(turn), line * ((64 << 10) // len(line)))
    # 20 MiB; looked through line by line they would take minutes
    assert time.process_time() - begun < 60
