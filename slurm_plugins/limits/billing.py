"""What Slurm charges a job: TRESBillingWeights of its partition, added up or the most of them (PriorityFlags). Pure.

By slurm.conf(5): without weights a job is charged its CPUs; with MAX_TRES the most of what it has on nodes counts, with
MAX_TRES_GRES its GRES beside that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.limits.records import unit_exponent

__all__ = ["How", "Weights", "compute_billing", "parse_billing_rule", "parse_weights"]

Weights = tuple[tuple[str, float], ...]
How = Literal["sum", "max", "max_gres"]

_ITEM: Final = re.compile(r"([^=,]+)=([0-9.]+)([KMGTP]?)")
_ON_NODES: Final = frozenset({"cpu", "mem", "node"})


def parse_weights(text: str | None) -> Weights:
    """TRES and its weight for one of it, of memory for one MiB. Raises SlurmFormatError.

    >>> parse_weights("CPU=1.0,Mem=0.25G,GRES/gpu=2.0")
    (('cpu', 1.0), ('mem', 0.000244140625), ('gres/gpu', 2.0))
    """
    found = []
    for item in filter(None, (text or "").split(",")):
        weight = _ITEM.fullmatch(item.strip())
        try:
            number = float(weight[2]) if weight else -1.0
        except ValueError:
            number = -1.0
        if weight is None or number < 0:
            raise SlurmFormatError("weights of resources were expected", text or "")
        name = weight[1].lower()
        found.append((name, number / 2.0 ** unit_exponent(name, weight[3])))
    return tuple(found)


def parse_billing_rule(priority_flags: str) -> How:
    """By PriorityFlags of slurm.conf.

    >>> parse_billing_rule("ACCRUE_ALWAYS,MAX_TRES"), parse_billing_rule("MAX_TRES_GRES"), parse_billing_rule("")
    ('max', 'max_gres', 'sum')
    """
    flags = {flag.strip().upper() for flag in priority_flags.split(",")}
    return "max_gres" if "MAX_TRES_GRES" in flags else "max" if "MAX_TRES" in flags else "sum"


def compute_billing(weights: Weights, how: How, has: Mapping[str, float]) -> float:
    """What a job is charged for a minute that has so much of each TRES, memory in MiB.

    >>> weights = parse_weights("CPU=1,Mem=0.5G,GRES/gpu=10")
    >>> [compute_billing(weights, how, {"cpu": 4, "mem": 65536, "gres/gpu": 1}) for how in ("sum", "max", "max_gres")]
    [46.0, 32.0, 42.0]
    """
    if not weights:
        return has.get("cpu", 0)
    most = total = 0.0
    for name, weight in weights:
        value = weight * has.get(name, 0)
        if how != "sum" and (name in _ON_NODES or (how == "max" and name.startswith("gres/"))):
            most = max(most, value)
        else:
            total += value
    return most + total
