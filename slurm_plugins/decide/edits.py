"""The fields of a job that gsub may change, with kind and range: one table for the service and for the shim.

Names are those of Lua's job_desc (reference: `_set_job_req_field` in Slurm's job_submit/lua). `gsub.lua` holds the same
table; a test holds the two equal, and the shim drops an answer with anything outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["EDITS", "MAX_ENV_VALUE", "Edit", "EditError", "Value", "check", "check_env"]

Value: TypeAlias = int | str
"""What a field is set to. Memory is MiB, waits are seconds, as Slurm's job_desc has them."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One field: an integer in low..high, or a text of up to `high` characters that fits `pattern`.

    `pattern` is written in what Lua patterns and regular expressions share: one bracket of characters.
    """

    kind: Literal["int", "text"]
    low: int
    high: int
    characters: str = ""


_COUNT: Final = Edit("int", 1, 65_000)
_TRES: Final = Edit("text", 1, 256, "A-Za-z0-9_.:/=,-")
_HOSTS: Final = Edit("text", 1, 1000, "A-Za-z0-9_.,%[%]-")
_FEATURES: Final = Edit("text", 1, 1000, "A-Za-z0-9_.,:&|*=()%[%]-")

EDITS: Final[Mapping[str, Edit]] = {
    # shape
    "min_nodes": _COUNT,
    "max_nodes": _COUNT,
    "num_tasks": Edit("int", 1, 10_000_000),
    "ntasks_per_node": _COUNT,
    "shared": Edit("int", 0, 0),  # 0 is exclusive: whole nodes
    "gres": _TRES,  # written as tres_per_node; Slurm sets the prefix of its release
    # CPUs and memory
    "cpus_per_task": _COUNT,
    "cpus_per_tres": _TRES,
    "min_cpus": Edit("int", 1, 10_000_000),
    "pn_min_cpus": _COUNT,
    "min_mem_per_node": Edit("int", 1, 1 << 40),
    "min_mem_per_cpu": Edit("int", 1, 1 << 40),
    "mem_per_tres": _TRES,
    # place
    "req_switch": Edit("int", 1, 65_000),
    "wait4switch": Edit("int", 0, 31_536_000),
    "segment_size": Edit("int", 1, 65_000),  # Lua has it from 25.11
    "features": _FEATURES,
    "prefer": _FEATURES,
    "exc_nodes": _HOSTS,
    # what tells a person or gsub later
    "admin_comment": Edit("text", 1, 64, "A-Za-z0-9:-"),
}

MAX_ENV_VALUE: Final = 1024
_ENV_NAME: Final = re.compile(r"(SLURM|SRUN|GSUB)_[A-Z0-9_]{1,60}")
_ENV_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:()=*/+@% -]*")


class EditError(ValueError):
    """An edit outside the table; the message names the field and the value."""


def _bracket(characters: str) -> re.Pattern[str]:
    # In a Lua pattern % escapes a bracket; here \ does.
    return re.compile("[" + characters.replace("%", "\\") + "]*")


_FITS: Final = {name: _bracket(edit.characters) for name, edit in EDITS.items() if edit.kind == "text"}


def check(name: str, value: Value) -> None:
    """Raise EditError unless the table allows `name` to be set to `value`."""
    edit = EDITS.get(name)
    if edit is None:
        raise EditError(f"{name}: not a field that gsub changes")
    if edit.kind == "int":
        if not isinstance(value, int) or isinstance(value, bool) or not edit.low <= value <= edit.high:
            raise EditError(f"{name} = {value!r}: want a whole number, {edit.low} to {edit.high}")
    elif not isinstance(value, str) or not edit.low <= len(value) <= edit.high:
        raise EditError(f"{name} = {value!r}: want a text of {edit.low} to {edit.high} characters")
    elif not _FITS[name].fullmatch(value):
        raise EditError(f"{name} = {value!r}: a character that does not belong there")


def check_env(name: str, value: str) -> None:
    """Raise EditError unless an environment variable of that name and value may be written for a job's steps."""
    if not _ENV_NAME.fullmatch(name):
        raise EditError(f"{name}: not a variable that gsub writes")
    if len(value) > MAX_ENV_VALUE or not _ENV_VALUE.fullmatch(value):
        raise EditError(f"{name}: too long a value, or a character that does not belong there")
