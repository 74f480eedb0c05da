"""Emulated GPUs for tests, asked by the real nvidia-ml-py in a child process: the loader reads its path at start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster.nvml import EmulatedGpus, build
from tests.paths import REPOSITORY
from tests.requirements import require

ROOT = REPOSITORY
NODE = "n1"

# Makes the calls given as JSON, [function, argument...]; {"gpu": 2} and {"mig": [2, 0]} stand for handles (by index).
# An NVML error becomes its name; ctypes' structures become objects.
_ASK = """
import ctypes, json, sys
import pynvml
errors = {v: k[len("NVML_ERROR_"):] for k, v in vars(pynvml).items() if k.startswith("NVML_ERROR_")}
def plain(value):
    if isinstance(value, ctypes.Structure):
        names = [field[0] for field in value._fields_]
        return {n: plain(getattr(value, n)) for n in names if not isinstance(getattr(value, n), ctypes._Pointer)}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return vars(value)
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    if isinstance(value, ctypes._Pointer):
        return pynvml.nvmlDeviceGetUUID(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
def argument(value):
    if isinstance(value, dict) and "gpu" in value:
        return pynvml.nvmlDeviceGetHandleByIndex(value["gpu"])
    if isinstance(value, dict):
        gpu, slot = value["mig"]
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(gpu), slot)
    return value
answers = []
try:
    pynvml.nvmlInit()
    for function, *arguments in json.load(sys.stdin):
        try:
            answers.append(plain(getattr(pynvml, function)(*map(argument, arguments))))
        except pynvml.NVMLError as error:
            answers.append(errors[error.value])
except pynvml.NVMLError as error:
    answers = errors[error.value]
print(json.dumps(answers))
"""


# Runs the programs that come as lines of JSON, {"code", "input", "env"}, each in a fork of its own that has imported
# what they need: a new interpreter costs ten times as much.
_FORKS = """
import io, json, os, sys, traceback
import msgspec, pynvml, profiler.nvml
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.environ |= request["env"]
        sys.stdin = io.StringIO(request["input"])
        sys.stdout = out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        error = None
        try:
            exec(compile(request["code"], "<test>", "exec"), {"__name__": "__main__"})
        except BaseException:
            error = traceback.format_exc()
        out.flush()
        answer = {"output": out.buffer.getvalue().decode(), "error": error}
        os.write(1, json.dumps(answer).encode() + b"\\n")
        os._exit(0)
    os.waitpid(pid, 0)
"""


class ForkServer:
    """A process that runs short programs over the emulated NVML, each in a fork."""

    def __init__(self, library: Path) -> None:
        self.library = library
        env = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FORKS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True, bufsize=1,
        )  # fmt: skip

    def run(self, code: str, given: str, env: dict[str, str]) -> str:
        """Return what a program prints."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps({"code": code, "input": given, "env": env}) + "\n")
        answer = json.loads(self._process.stdout.readline())
        assert answer["error"] is None, answer["error"]
        return str(answer["output"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Emulation:
    """A node's emulated GPUs, and the environment in which NVML finds them."""

    gpus: EmulatedGpus
    forks: ForkServer

    @property
    def library(self) -> Path:
        return self.forks.library

    @property
    def _own(self) -> dict[str, str]:
        return {"GSUB_EMU_GPUS": str(self.gpus.root), "GSUB_EMU_NODE": NODE}

    @property
    def env(self) -> dict[str, str]:
        own = self._own | {"LD_LIBRARY_PATH": str(self.library.parent)}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CUDA"))}
        return {**inherited, **own}

    def run(self, code: str, given: str = "") -> str:
        """Return what a program prints that reads these GPUs."""
        return self.forks.run(code, given, self._own)

    def ask(self, *calls: Sequence[Any], env: dict[str, str] | None = None) -> Any:
        if env is None:
            return json.loads(self.run(_ASK, json.dumps(calls)))
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            input=json.dumps(calls),
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def load_file(self, gpu: int, pid: int | str, text: str) -> Path:
        path = self.gpus.root / NODE / str(gpu) / "load" / str(pid)
        path.write_text(text)
        return path

    def popen(self, *argv: str, **kwargs: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, *argv], env=self.env, cwd=ROOT, text=True, **kwargs)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated NVML, compiled with every warning an error."""
    require("compiler")
    flags = ("-Werror", "-Wshadow", "-Wconversion")
    return build(tmp_path_factory.mktemp("nvml"), extra_flags=flags)


@pytest.fixture(scope="session")
def nvml_forks(nvml_library: Path) -> Iterator[ForkServer]:
    """A process that reads emulated GPUs."""
    server = ForkServer(nvml_library)
    yield server
    server.close()


@pytest.fixture
def emulation(tmp_path: Path, nvml_forks: ForkServer) -> Emulation:
    """One node with three A100s, in NVML's order as in that of the device files."""
    gpus = EmulatedGpus(tmp_path / "gpus")
    gpus.create([NODE], 3)
    return Emulation(gpus, nvml_forks)
