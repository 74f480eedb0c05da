"""What a user can do, by reason: for where the rule that decided has no advice of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["ADVICE"]

ADVICE: Final[Mapping[str, str]] = {
    "syntax_error": "Mend the line that is named; `python -m py_compile FILE` or `bash -n FILE` checks without a job.",
    "import_error": "Install the package into the environment that the job uses, or activate the right one.",
    "environment_error": "Load the module or activate the environment in the script, and check the command's name.",
    "bad_arguments": "Correct the option or setting that is named; the program was never started with it.",
    "missing_input": "Check the path: does it exist, and is it seen from the compute nodes?",
    "corrupt_input": "Make the file that is named anew, or read it with what wrote it.",
    "semantic_error": "Mend the program at the line that is named; running it again will not help.",
    "device_assert": "Look for an index out of range (labels, tokens); CUDA_LAUNCH_BLOCKING=1 shows the right line.",
    "permission_error": "Check who may use what is named: the file's mode, or the token.",
    "no_space": "Free space or quota where it was written, or write elsewhere.",
    "model_diverged": "Lower the learning rate, clip gradients, look at the batch; start from an earlier checkpoint.",
    "cpu_oom": "Ask for more memory (--mem), or use fewer workers and smaller buffers.",
    "gpu_oom": "Use a smaller batch, gradient accumulation or checkpointing, or a GPU with more memory.",
    "shared_memory": "Use fewer data loader workers, or a larger /dev/shm (containers: --shm-size or --ipc=host).",
    "invalid_memory_access": "Look for a bug in native code; a clash of library builds does this as well.",
    "cuda_failure": "Try once on another node; if it comes back there, it is the program.",
    "cuda_init_failed": "Check that the job asks for GPUs and sees them (CUDA_VISIBLE_DEVICES); else it is the node.",
    "cuda_version_mismatch": "Use a build of the framework for this driver and GPU, or a node with a newer driver.",
    "missing_library": "Load the module that has the library, or set LD_LIBRARY_PATH; check which build it is for.",
    "gpu_hardware": "Run it again on another node; your administrators should look at this one.",
    "nccl_timeout": "Look at which rank was late: data, a hang, or its node; run it again on other nodes.",
    "nccl_error": "Run it again on other nodes; NCCL_DEBUG=INFO says more.",
    "mpi_error": "Check that the program's MPI is the one that it is started by; try it once more.",
    "mpi_runtime_failure": "A process or its daemon was lost: look at the rank that went first, then run it again.",
    "rendezvous_failure": "Check MASTER_ADDR and MASTER_PORT (taken?), that all ranks start, then run it again.",
    "filesystem_error": "The file system failed: run it again later, and tell your administrators if it comes back.",
    "checkpoint_error": "Check the checkpoint folder, then run it again from the last checkpoint that is whole.",
    "network_error": "Run it again later, or fetch what it downloads before the job.",
    "container_error": "Check the image and its mounts; running it again helps where the registry failed.",
    "node_failure": "Nothing of yours: run it again on another node.",
    "preempted": "Nothing of yours: it goes on when it is requeued; write checkpoints often.",
    "time_limit": "Ask for more time (--time), or go on from the last checkpoint.",
    "pilot_ended": "Nothing, if the program that submitted it had ended; else look at that program's log.",
    "output_error": "Check the folder that it writes to: does it exist there, is it writable?",
    "core_dump": "It aborted without a word: run it once more, then under a debugger.",
    "traceback": "Read the exception that is quoted.",
    "no_signature": "Nothing says why: look at the end of the log, and run it once more.",
}
"""Reason to a sentence or two. A job that was cancelled or requeued needs none."""
