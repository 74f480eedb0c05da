"""A policy as a value, and as the short text of the command line.

>>> Policy.parse("fifo+pack").order, Policy.parse("philly+retries=5").retries
('fifo', 5)
>>> str(Policy.parse("fifo+easy"))
'fifo+easy'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slurm_plugins.replay.slurm_rules import SlurmRules

__all__ = ["PRESETS", "SLURMS_CHOICE", "WORDS", "Policy", "PolicyError"]


class PolicyError(ValueError):
    """A text that is no policy; `word` is the part at fault."""

    def __init__(self, word: str, why: str) -> None:
        super().__init__(f"{word[:40]!r}: {why}")
        self.word = word


SLURMS_CHOICE: Final = "order slurm takes Slurm's own choice of jobs and nodes: none or easy only"

CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "order": ("fifo", "srtf", "las", "ftf", "fair_share", "slurm"),
    "backfill": ("none", "skip", "easy"),
    "packing": ("pack", "rank", "spread"),
    "locality": ("none", "strict", "relaxed"),
    "patience": ("retries", "worth", "wait"),
    "quotas": ("off", "on", "lending"),
    "tuning": ("none", "proportional", "greedy", "tune", "fill", "curves", "market"),
    "scaling": ("none", "elastic"),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Who goes first, where, and what may be taken back. Times are seconds."""

    name: str = ""
    order: str = "fifo"
    """fifo; srtf, shortest remaining time; las, least attained service (GPU-seconds); ftf, finish-time fairness;
    fair_share, the queue that has least of its quota; slurm, multifactor priority."""
    backfill: str = "none"
    """none: the first that does not fit holds up the rest. skip: whoever fits starts. easy: whoever does not put off
    the first (Slurm's sched/backfill for order slurm)."""
    packing: str = "pack"
    """pack: the fullest node, or leaf, that holds it. rank: Philly's, emptiest leaf and node first, jobs of one GPU
    packed. spread: the emptiest node, and no regard to leaves."""
    locality: str = "none"
    """none: the best there is at the moment. strict: only on as few nodes and leaves as can hold it. relaxed: strict,
    and after a while (`patience`) anywhere; whoever waits so holds up nobody."""
    retries: int = 3
    """Philly: attempts to get all GPUs together before the constraint is relaxed (the number is not published)."""
    acquire_s: float = 150.0
    """Philly: how long one attempt holds what it has got, a fifth more or less ("2-3 minutes")."""
    backoff_s: float = 120.0
    patience: str = "retries"
    """With locality relaxed a job takes any place after so many retries; worth: after the wait that a compact place is
    worth to it (`decide.worth`); wait: after `wait_s`."""
    wait_s: float = 600.0
    quotas: str = "off"
    """off; on: no queue gets more than its quota; lending: unused GPUs are lent, and taken back when needed."""
    reclaim_at: float = 0.9
    """Lent GPUs are taken back only while so large a part of all GPUs is in use (Philly)."""
    preempt: bool = True
    """Orders srtf, las and ftf may stop a running job."""
    round_s: float = 300.0
    """Preemption, and TUNE, act at rounds of so many seconds."""
    restart_s: float = 60.0
    """What stopping a job costs it when it runs again."""
    las_levels: tuple[float, ...] = ()
    """GPU-seconds at which a job falls to the next queue (Tiresias); empty: no queues, least first."""
    tuning: str = "none"
    """Rounds that hand out CPUs and memory (`in_rounds`): proportional; greedy; tune, Synergy's, with jobs that stay
    where they are; fill, the same up to any point of a job's curve; curves and market, all anew each round, by whole
    curves (TUNE by curves; MARKET)."""
    scaling: str = "none"
    """none; elastic: order las with Elastic Tiresias's two rules (`replay.scaling`)."""
    grow_s: float = math.nan
    """Scaling: seconds without work when a job gets more GPUs; nan: as `restart_s`, stop-resume."""
    shrink_s: float = math.nan
    """... when it gets fewer."""
    least: float = 1.0
    """Scaling, where the trace tells no range: how far a job may shrink, in times of what it asked for, at most 1."""
    most: float = 1.0
    """... and grow, at least 1."""
    slowdown: bool = True
    """Jobs run slower when spread; False: placement costs nothing, as in Synergy's simulator."""

    slurm: SlurmRules = dataclasses.field(default_factory=SlurmRules)
    """Order slurm: the site's own weights and intervals; without them all are Slurm's defaults, where weights are 0 and
    the order is that of submission. `rules` has them with the two that follow, which no slurm.conf tells."""
    epilog_s: float = 0.0
    """How long a node that a job has left starts no other: `SlurmRules.completing_s`."""
    reserve: int = 0
    """Jobs that get a place ahead in a cycle of backfill; 0: all, as in Slurm: `SlurmRules.bf_reserve`."""

    def __post_init__(self) -> None:
        for field, choices in CHOICES.items():
            if getattr(self, field) not in choices:
                raise PolicyError(str(getattr(self, field)), f"{field} is one of {', '.join(choices)}")
        if not 0 <= self.restart_s < math.inf:
            raise PolicyError("restart", f"{self.restart_s} is not a time in seconds")
        for field in ("acquire_s", "backoff_s", "round_s"):
            if not 1 <= getattr(self, field) < math.inf:
                raise PolicyError(field.removesuffix("_s"), f"{getattr(self, field)} is not a second or more")
        if min(self.grow_s, self.shrink_s) < 0 or math.inf in (self.grow_s, self.shrink_s):
            raise PolicyError("grow", f"{self.grow_s} and {self.shrink_s} are not times in seconds")
        if not 0 < self.least <= 1 <= self.most <= 1024:
            raise PolicyError("least", f"from {self.least} to {self.most} times what was asked for")
        if not 0 <= self.epilog_s < math.inf:
            raise PolicyError("epilog", f"{self.epilog_s} is not a time in seconds")
        if self.reserve < 0:
            raise PolicyError("reserve", f"{self.reserve} is less than none")
        if self.order != "slurm" and (self.epilog_s or self.reserve):
            raise PolicyError(self.order, "epilog= and reserve= are of order slurm")
        if self.retries < 0:
            raise PolicyError("retries", f"{self.retries} is less than none")
        if not 0 <= self.reclaim_at <= 1:
            raise PolicyError("reclaim", f"{self.reclaim_at} is no share of the GPUs, 0 to 1")
        if self.wait_s < 0:
            raise PolicyError("wait", f"{self.wait_s} is not a time in seconds")

    @property
    def rules(self) -> SlurmRules:
        """Order slurm: by what rules, with what the policy says beyond them."""
        return dataclasses.replace(
            self.slurm,
            backfill=self.slurm.backfill and self.backfill == "easy",
            completing_s=self.epilog_s or self.slurm.completing_s,
            bf_reserve=self.reserve or self.slurm.bf_reserve,
        )

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Words joined by "+": a preset or an order first, then what differs; ``key=value`` for numbers.

        Raises PolicyError, which names the word.
        """
        given: dict[str, Any] = {}
        places = ""
        for word in text.strip().lower().split("+"):
            key, equals, value = word.strip().partition("=")
            if equals:
                given.update(_number(key, value))
            elif key in PRESETS or key in WORDS:
                fields = PRESETS.get(key) or WORDS[key]
                given.update(fields)
                places = key if "packing" in fields or "locality" in fields else places
            else:
                known = ", ".join((*PRESETS, *WORDS, *(f"{number}=" for number in _NUMBERS)))
                raise PolicyError(word, f"no word of a policy; known: {known}")
        if places and given.get("order") == "slurm":
            # Here, for a word that says what is the default of other orders cannot be told from none later
            raise PolicyError(places, SLURMS_CHOICE)
        return cls(text.strip().lower(), **given)

    def __str__(self) -> str:
        return self.name or self.order


WORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fifo": {"order": "fifo"},
    "srtf": {"order": "srtf"},
    "las": {"order": "las"},
    "ftf": {"order": "ftf"},
    "fair": {"order": "fair_share"},
    "multifactor": {"order": "slurm"},
    "none": {"backfill": "none"},
    "skip": {"backfill": "skip"},
    "easy": {"backfill": "easy"},
    "pack": {"packing": "pack"},
    "rank": {"packing": "rank"},
    "spread": {"packing": "spread"},
    "anywhere": {"locality": "none"},
    "strict": {"locality": "strict"},
    "relax": {"locality": "relaxed"},
    "worth": {"locality": "relaxed", "patience": "worth"},
    "quotas": {"quotas": "on"},
    "lend": {"quotas": "lending"},
    "noquotas": {"quotas": "off"},
    "keep": {"preempt": False},
    "even": {"slowdown": False},
    "proportional": {"tuning": "proportional"},
    "greedy": {"tuning": "greedy"},
    "tune": {"tuning": "tune"},
    "fill": {"tuning": "fill"},
    "curves": {"tuning": "curves"},
    "market": {"tuning": "market"},
    "elastic": {"scaling": "elastic"},
}
"""Word -> the fields that it sets."""

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "slurm": {"order": "slurm", "backfill": "easy"},
    "philly": {"order": "fair_share", "packing": "rank", "locality": "relaxed", "quotas": "lending"},
    "tiresias": {"order": "las", "las_levels": (3600.0, 36000.0)},
    "synergy": {"order": "srtf", "tuning": "tune", "slowdown": False},
}

_NUMBERS: Final[Mapping[str, tuple[str, type]]] = {
    "retries": ("retries", int),
    "acquire": ("acquire_s", float),
    "backoff": ("backoff_s", float),
    "wait": ("wait_s", float),
    "reclaim": ("reclaim_at", float),
    "round": ("round_s", float),
    "restart": ("restart_s", float),
    "grow": ("grow_s", float),
    "shrink": ("shrink_s", float),
    "least": ("least", float),
    "most": ("most", float),
    "epilog": ("epilog_s", float),
    "reserve": ("reserve", int),
}

_ALSO: Final[Mapping[str, Mapping[str, Any]]] = {"wait_s": {"locality": "relaxed", "patience": "wait"}}


def _number(key: str, value: str) -> dict[str, Any]:
    if key not in _NUMBERS:
        raise PolicyError(key, f"no number of a policy; known: {', '.join(_NUMBERS)}")
    field, kind = _NUMBERS[key]
    try:
        number = kind(value)
    except ValueError:
        raise PolicyError(f"{key}={value}", "not a number") from None
    if math.isnan(number):
        raise PolicyError(f"{key}={value}", "not a number")
    return {field: number, **_ALSO.get(field, {})}
