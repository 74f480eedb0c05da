"""The text format of a GPU's state file: ``key value`` lines. docs/emulated-gpus.md explains the keys."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

# What NVML can answer instead of a value; the library knows these names.
ERRORS = frozenset(
    {
        "UNINITIALIZED",
        "INVALID_ARGUMENT",
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "NOT_FOUND",
        "INSUFFICIENT_SIZE",
        "DRIVER_NOT_LOADED",
        "TIMEOUT",
        "LIBRARY_NOT_FOUND",
        "FUNCTION_NOT_FOUND",
        "GPU_IS_LOST",
        "RESET_REQUIRED",
        "OPERATING_SYSTEM",
        "LIB_RM_VERSION_MISMATCH",
        "IN_USE",
        "NO_DATA",
        "INSUFFICIENT_RESOURCES",
        "ARGUMENT_VERSION_MISMATCH",
        "NOT_READY",
        "GPU_NOT_FOUND",
        "UNKNOWN",
    }
)

# Keys of a GPU's state file. Of the first group a value overrides what the library derives from the loads.
DERIVED_KEYS = frozenset(
    {
        "utilization",
        "memory_utilization",
        "memory_used_mib",
        "power_mw",
        "temperature_c",
        "clock_graphics_mhz",
        "clock_sm_mhz",
        "clock_mem_mhz",
        "clock_video_mhz",
        "throttle_reasons",
    }
)
TEXT_KEYS = frozenset({"name", "uuid", "serial", "pci", "status"})
NUMBER_KEYS = DERIVED_KEYS | frozenset(
    {
        "minor",
        "pci_device_id",
        "memory_total_mib",
        "memory_reserved_mib",
        "memory_base_mib",
        "power_idle_mw",
        "power_limit_mw",
        "clock_idle_mhz",
        "max_clock_graphics_mhz",
        "max_clock_sm_mhz",
        "max_clock_mem_mhz",
        "max_clock_video_mhz",
        "persistence_mode",
        "performance_state",
        "ecc_mode",
        "ecc_mode_pending",
        "ecc_corrected_volatile",
        "ecc_corrected_aggregate",
        "ecc_uncorrected_volatile",
        "ecc_uncorrected_aggregate",
        "remapped_corrected",
        "remapped_uncorrected",
        "remap_pending",
        "remap_failed",
        "retirement_pending",
        "nvlinks",
        "mig_mode",
        "mig_mode_pending",
    }
)
NODE_KEYS = frozenset({"driver_version", "nvml_version", "cuda_version", "sample_period_ms", "status"})

Value = int | str
State = dict[str, Value]
# Keys that may occur more than once: kept as "mig 0", "hang nvmlFoo", "fail nvmlFoo".
_LINES = ("mig", "hang", "fail")


def check(key: str, value: Value | None) -> None:
    """Raise ValueError unless a GPU's state may have this line."""
    if key not in NUMBER_KEYS | TEXT_KEYS and not re.fullmatch(r"nvlink_\d+", key):
        raise ValueError(f"no such key of an emulated GPU: {key}; docs/emulated-gpus.md lists them")
    if value is None or value in ERRORS:
        return
    if key in TEXT_KEYS:
        if not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{key} must be one line of text, not {value!r}")
    elif not isinstance(value, int) or value < 0:
        raise ValueError(
            f"{key} must be a whole number of at least 0 or the name of an NVML error, not {value!r}"
        )


def function_name(name: str) -> str:
    """The name, if it can be one of NVML's; raises ValueError."""
    if not re.fullmatch(r"nvml\w+", name):
        raise ValueError(f"not the name of an NVML function: {name}")
    return name


def merged(state: State, values: Mapping[str, Value | None]) -> State:
    """The state with `values` put in; None takes a key out."""
    both: dict[str, Value | None] = {**state, **values}
    return {key: value for key, value in both.items() if value is not None}


def parse(text: str) -> State:
    """A file's lines; numbers as int."""
    state: State = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key in _LINES:
            word, _, value = value.partition(" ")
            key = f"{key} {word}"
        state[key] = int(value) if value.isdecimal() else value
    return state


def write(path: Path, state: Mapping[str, Value]) -> None:
    """Replace a file by the lines of `state`, at once: a reader sees the old or the new one."""
    text = "".join(f"{key} {value}".rstrip() + "\n" for key, value in state.items())
    descriptor, name = tempfile.mkstemp(prefix=".state-", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
    Path(name).replace(path)
