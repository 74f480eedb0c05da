"""Emulated GPUs for NVML: the library, and the files that it answers from. See docs/emulated-gpus.md."""

from site_configs.devcluster.nvml.build import BuildError, build, copied
from site_configs.devcluster.nvml.gpus import EmulatedGpus
from site_configs.devcluster.nvml.models import MODELS, GpuModel

__all__ = ["MODELS", "BuildError", "EmulatedGpus", "GpuModel", "build", "copied"]
