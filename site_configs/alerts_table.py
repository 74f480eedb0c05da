"""The table `[alerts]` of the site file: rules on how jobs use what they hold. Part of `site_model`.

What a rule may speak of (`QUANTITIES`), and the rules that there are without a site file saying any (`BUILT_IN`).
"""

# ruff: noqa: RUF009 - t.key() makes a dataclasses.field, which ruff cannot know

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from site_configs import kinds as t

if TYPE_CHECKING:
    from site_configs.condition import Condition, Type

__all__ = ["BUILT_IN", "DOES", "PLACEHOLDERS", "QUANTITIES", "Alerts", "Does", "Exempt", "Rule"]

Does = Literal["observe", "notify", "cancel"]
DOES: tuple[Does, ...] = ("observe", "notify", "cancel")
"""From the most cautious to the least."""

QUANTITIES: Final[Mapping[str, tuple[Type, str]]] = {
    "gpus": ("number", "GPUs that the job has, as Slurm says; where it does not, nothing is known of GPUs"),
    "gpus_used": ("number", "of these, GPUs that ever computed"),
    "gpus_unused": ("number", "of these, GPUs that never did"),
    "gpu_hours": ("number", "GPUs times run time, in hours"),
    "idle_s": ("duration", "for how long none of its GPUs has computed, up to now"),
    "idle_from_start_s": ("duration", "the same, of a job none of whose GPUs ever has; else 0s"),
    "idle_after_s": ("duration", "the same, of a job that has used a GPU before; else 0s"),
    "stuck_s": (
        "duration",
        "for how long its GPUs have but waited for each other: each is at full utilisation with hardly any power, or "
        "idle; 0s where none is stuck, and of a job with one GPU",
    ),
    "util_mean": ("share", "utilisation of its GPUs, the mean over all of them and all of the time"),
    "cpus": ("number", "CPUs that the job has"),
    "cpu_used_share": ("share", "of the time of its CPUs, what was used"),
    "memory_asked_gib": ("number", "memory that the job asked for, GiB on all nodes"),
    "memory_used_share": ("share", "of that memory, the most that was used (the sum of the nodes' peaks)"),
    "runtime_s": ("duration", "for how long the job has run; while it runs, up to the last sample of all nodes"),
    "time_limit_s": ("duration", "its time limit"),
    "time_left_s": ("duration", "what is left of that while it runs"),
    "time_used_share": ("share", "of the time limit, what was used; known once it has ended"),
    "samples": ("number", "readings of the GPU that was looked at least often"),
    "nodes": ("number", "nodes of the job"),
    "ended": ("flag", "whether it has ended"),
    "state": ("text", 'Slurm\'s word, like "RUNNING"'),
    "partition": ("text", "its partition"),
    "account": ("name", "its account"),
    "user": ("name", "its user"),
    "qos": ("name", "its QOS"),
}
"""What rules speak of: type and meaning. One that is not known is no number at all, never 0."""

_AT_WORK: Final = dict.fromkeys(("idle_s", "idle_from_start_s", "idle_after_s", "stuck_s"), 0.0)
"""What is known of each job one of whose GPUs computes now."""

BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    "idle_from_start": (
        "idle_from_start_s >= 1h",
        "has not used its GPUs since it started. Does the program see them (nvidia-smi in the job)?",
    ),
    "idle_after_activity": (
        "idle_after_s >= 2h",
        "has stopped using its GPUs. Has it finished, or does it hang?",
    ),
    "low_utilisation": (
        "runtime_s >= 4h and gpu_hours >= 8 and util_mean < 15%",
        "uses its GPUs little. Slow input and small batches are frequent causes.",
    ),
    "one_gpu_of_many": (
        "gpus > 1 and gpus_used == 1 and runtime_s >= 1h",
        "computes on one GPU and holds several. Ask for one, or start one process for each.",
    ),
    "stuck_collective": (
        "stuck_s >= 30m",
        "seems to wait for ever in a collective operation: full utilisation, hardly any power.",
    ),
    "over_asked_cpus": (
        "runtime_s >= 2h and cpus > 8 and cpu_used_share < 20%",
        "holds many more CPUs than it uses.",
    ),
    "over_asked_memory": (
        "runtime_s >= 2h and memory_asked_gib > 32 and memory_used_share < 20%",
        "holds much more memory than it uses.",
    ),
    "over_asked_time": (
        'state == "COMPLETED" and time_limit_s >= 12h and time_used_share < 10%',
        "needed little of its time limit. A shorter one lets it start earlier.",
    ),
}
"""The rules that there are anyway, by name: when, and what is said of the job. All of them only observe."""

PLACEHOLDERS: Final = (
    "job", "name", "user", "account", "partition", "gpus", "rule", "about", "evidence", "follows",
)  # fmt: skip
"""What a mail's text may name as $job or ${job}. All else in it stays as it is."""

_NAME = t.word("a name", r"[^\s\x00-\x1f\x7f]{1,64}", "Write a name as Slurm has it.")
_LONGEST_TEXT: Final = 2000


def _when(value: object) -> Condition:
    remedy = 'Write a condition in quotes, like "idle_s >= 2h and gpus > 1" (docs/alerts.md).'
    if not isinstance(value, str):
        raise t.misplaced("a condition", value, remedy)
    from site_configs.condition import ConditionError

    try:
        return _read(value)
    except ConditionError as error:
        raise t.BadValueError(error.problem, error.remedy) from None


def _text(value: object) -> str:
    remedy = f"Write up to {_LONGEST_TEXT} characters of plain text; $$ stands for $."
    if not isinstance(value, str):
        raise t.misplaced("a text", value, remedy)
    if len(value) > _LONGEST_TEXT or not value.strip():
        raise t.BadValueError("too long, or empty", remedy)
    if any(not (sign.isprintable() or sign == "\n") for sign in value):
        raise t.BadValueError("a control character in it", remedy)
    from string import Template  # a site file is read at every submission, and few say this

    for found in Template.pattern.finditer(value):
        name = found["named"] or found["braced"]
        if found["escaped"] is None and name not in PLACEHOLDERS:
            shown = t.quoted(found[0] if name else value[found.start() : found.start() + 12])
            names = ", ".join(f"${one}" for one in PLACEHOLDERS)
            raise t.BadValueError(f"{shown} stands for nothing", f"Use {names}; $$ stands for $.")
    return value


_NAMES = t.listing(_NAME, "a list of names")


@dataclass(frozen=True, slots=True)
class Exempt:
    """Whose jobs a rule leaves alone. What `[alerts.exempt]` says holds where a rule says nothing else."""

    users: tuple[str, ...] = t.key((), _NAMES, "Login names. Unset: nobody's.")
    accounts: tuple[str, ...] = t.key((), _NAMES, "Slurm accounts. Unset: none.")
    partitions: tuple[str, ...] = t.key((), _NAMES, "Partitions. Unset: none.")
    qos: tuple[str, ...] = t.key((), _NAMES, "QOS. Unset: none.")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule on use: one of gsub's (docs/alerts.md), changed; or one of the site's."""

    name: str
    when: Condition | None = t.key(
        None,
        t.Kind("a condition", _when, t.quoted),
        "When a job meets it (docs/alerts.md). Unset: as gsub's rule of this name.",
    )
    do: Does = t.key(
        "observe",
        t.choice(*DOES),
        "observe: show it to operators; notify: also tell the user, where the mode is advise or enforce; "
        "cancel: also end the job, where it is enforce and alerts.cancel is true; only if no job meets it one of whose "
        "GPUs computes at the time.",
    )
    grace: int = t.key(3600, t.DURATION, "From the user's mail to the end of the job.")
    interactive: bool = t.key(False, t.FLAG, "Are jobs without a batch script told of and cancelled too?")
    text: str = t.key(
        "",
        t.Kind("a text", _text, t.quoted),
        "What the mail says, with $job and others of docs/alerts.md. Unset: gsub's own words.",
    )
    exempt: Exempt = t.key(Exempt(), t.table(Exempt), "As [alerts.exempt]; what is unset is as there.")

    @property
    def about(self) -> str:
        """What is said of a job that meets it, to follow its name."""
        known = BUILT_IN.get(self.name)
        return known[1] if known is not None else f"meets the rule {self.name} of this site."

    @property
    def spares_work(self) -> bool:
        """Whether no job meets it one of whose GPUs computes now, whatever else is so."""
        when = self.when if self.when is not None else _read(BUILT_IN[self.name][0])
        return when.holds(_AT_WORK) is False


@dataclass(frozen=True, slots=True)
class Alerts:
    """Rules on how jobs use what they hold: who is told, and what is ended. docs/alerts.md says how it is decided."""

    mail: bool = t.key(
        False, t.FLAG, "Are users told by mail? Else rules only observe. It goes through receipt.mail_server."
    )
    cancel: bool = t.key(False, t.FLAG, "May rules end jobs at all? Only of users who were told by mail.")
    exempt: Exempt = t.key(Exempt(), t.table(Exempt), "")
    rules: Mapping[str, Rule] = field(
        default_factory=dict, hash=False, metadata=t.about(t.named_tables(Rule), "")
    )

    def every(self) -> tuple[Rule, ...]:
        """All rules in force, gsub's own first; each has its condition."""
        return tuple(self._every())

    def _every(self) -> Iterator[Rule]:
        for name in BUILT_IN:
            said = self.rules.get(name) or Rule(name, exempt=self.exempt)
            yield said if said.when is not None else replace(said, when=_read(BUILT_IN[name][0]))
        for name, rule in self.rules.items():
            if name not in BUILT_IN:
                yield rule


@lru_cache(maxsize=256)
def _read(text: str) -> Condition:
    """Raises ConditionError."""
    from site_configs.condition import parse

    return parse(text, {name: sort for name, (sort, _) in QUANTITIES.items()})
