"""What a check is, and the words in which it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from slurm_plugins.install.finding import Level

if TYPE_CHECKING:
    from slurm_plugins.install.doctor.sight import Sight

__all__ = [
    "ANYWHERE",
    "CONTROLLER",
    "GROUPS",
    "HOSTS",
    "NODE",
    "ROLES",
    "Check",
    "Group",
    "Role",
    "Said",
    "UnseenError",
    "error",
    "ok",
    "unknown",
    "warning",
]

Role: TypeAlias = Literal["controller", "node", "login"]
"""What a host is to the cluster; `login` is one that is neither of the others."""
Group: TypeAlias = Literal["slurm", "accounting", "trust", "submission", "hooks", "node", "service"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
GROUPS: Final[tuple[Group, ...]] = get_args(Group)

CONTROLLER: Final[frozenset[Role]] = frozenset({"controller"})
NODE: Final[frozenset[Role]] = frozenset({"node"})
HOSTS: Final[frozenset[Role]] = CONTROLLER | NODE
"""The hosts that gsub is installed on."""
ANYWHERE: Final[frozenset[Role]] = frozenset(ROLES)


class UnseenError(Exception):
    """What a check rests on cannot be told from here; the message says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of a check. An empty remedy stands for the check's own; an ok needs none."""

    level: Level
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the table.

    Parameters
    ----------
    name: as `--only` and monitoring know it.
    about: what is looked at and why it matters; a sentence or two of Markdown.
    remedy: what to do where it is not well and the answer says nothing better: a command, or a line to write.
    look: the check itself. What it reads comes from the `Sight`; it may raise UnseenError and HostError. Nothing
        said means that there is nothing to look at here.
    on: the roles of the hosts on which it is made.
    """

    name: str
    group: Group
    about: str
    remedy: str
    look: Callable[[Sight], Iterable[Said]]
    on: frozenset[Role] = ANYWHERE


def ok(seen: str) -> Said:
    """All is well."""
    return Said("ok", seen)


def unknown(seen: str, remedy: str = "") -> Said:
    """It cannot be told from here."""
    return Said("unknown", seen, remedy)


def warning(seen: str, remedy: str = "") -> Said:
    """It works, and less well than it could, or not for long."""
    return Said("warning", seen, remedy)


def error(seen: str, remedy: str = "") -> Said:
    """A part of gsub, or Slurm itself, does not work so."""
    return Said("error", seen, remedy)
