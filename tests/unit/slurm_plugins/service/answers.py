"""A child process for tests: what a question asks for is in its words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from slurm_plugins.service.answering import AnswerError, answer_questions

ASKED = 0


def answer(question: bytes) -> bytes:
    global ASKED
    ASKED += 1
    word, _, rest = question.decode().partition(" ")
    if word == "processes":
        return f"{os.getppid()} {os.getpid()} {ASKED}".encode()
    if word == "large":
        return b"x" * int(rest)
    if word == "refuse":
        raise AnswerError("there is no answer")
    if word == "fail":
        raise ValueError("a fault of ours")
    if word == "noise":
        print("x" * int(rest), file=sys.stderr)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "half":
        os.write(1, b"\0\0\0\0\0\0\0\x09half")
        os._exit(3)
    if word == "hang":
        command = subprocess.Popen(["sleep", "1000"])
        Path(rest).write_text(f"{os.getppid()} {os.getpid()} {command.pid}\n")
        time.sleep(1000)
    return question


if __name__ == "__main__":
    sys.exit(answer_questions(answer))
