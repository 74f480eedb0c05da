"""Emulated GPUs for tests, asked by the real nvidia-ml-py in a child process: the loader reads its path at start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from site_configs.devcluster.nvml import EmulatedGpus, build
from tests.paths import REPOSITORY

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


@dataclass(frozen=True)
class Emulation:
    """A node's emulated GPUs, and the environment in which NVML finds them."""

    gpus: EmulatedGpus
    library: Path

    @property
    def env(self) -> dict[str, str]:
        own = {
            "GSUB_EMU_GPUS": str(self.gpus.root),
            "GSUB_EMU_NODE": NODE,
            "LD_LIBRARY_PATH": str(self.library.parent),
        }
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CUDA"))}
        return {**inherited, **own}

    def ask(self, *calls: Sequence[Any], env: dict[str, str] | None = None) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            input=json.dumps(calls),
            env={**self.env, **(env or {})},
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
    flags = ("-Werror", "-Wshadow", "-Wconversion")
    return build(tmp_path_factory.mktemp("nvml"), extra_flags=flags)


@pytest.fixture
def emulation(tmp_path: Path, nvml_library: Path) -> Emulation:
    """One node with three A100s, in NVML's order as in that of the device files."""
    gpus = EmulatedGpus(tmp_path / "gpus")
    gpus.create([NODE], 3)
    return Emulation(gpus, nvml_library)
