"""Limits of associations and QOS, from ``scontrol show assoc_mgr`` and ``sacctmgr show qos``. Pure.

The first is slurmctld's own copy: limits that users inherit are filled in, and those of a relative QOS (a share of the
cluster) are amounts there. The second has what slurmctld shows only of users who have a job in a QOS. Amounts are by
TRES as Slurm counts them, memory in MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.tables import scontrol_records

__all__ = [
    "NO_LIMITS",
    "QOS_COLUMNS",
    "Association",
    "Associations",
    "Limits",
    "Qos",
    "parse_associations",
    "unit_exponent",
    "with_default_qos",
    "with_static_limits",
]

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one association or QOS allows, TRES by TRES; what has no entry has no limit.

    Parameters
    ----------
    per_job, per_node: the most of one job, and of one job on a node (MaxTRES, MaxTRESPerNode).
    least: what a job must ask for (MinTRES).
    shared: limit -> the most of several jobs together or over their time (GrpTRES, GrpTRESMins, MaxTRESPerUser...).
    """

    per_job: Amounts = field(default_factory=dict, hash=False)
    per_node: Amounts = field(default_factory=dict, hash=False)
    least: Amounts = field(default_factory=dict, hash=False)
    shared: Mapping[str, Amounts] = field(default_factory=dict, hash=False)


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Association:
    """A user in an account, or with `uid` None the account itself; of one partition where that has a name.

    `parent` is the account above; empty for root's, and for users. `default_qos`: empty where it is not known.
    `is_default`: the user's jobs that name no account are of this one.
    """

    account: str
    uid: int | None
    partition: str
    parent: str
    user: str = ""
    limits: Limits = NO_LIMITS
    default_qos: str = ""
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS. `whole`: its limits for each user and each account are known, too.

    `factor` is LimitFactor: a job in it may have so many times what its association allows.
    """

    name: str
    limits: Limits = NO_LIMITS
    whole: bool = False
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Associations:
    """All associations that were told of, and the QOS by name. Names are in lower case, as slurmdbd keeps them."""

    users: Mapping[tuple[int, str, str], Association] = field(default_factory=dict, hash=False)
    accounts: Mapping[str, Association] = field(default_factory=dict, hash=False)
    default_accounts: Mapping[int, str] = field(default_factory=dict, hash=False)
    """The account of a user's jobs that name none."""
    qos: Mapping[str, Qos] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, found: Iterable[Association], qos: Iterable[Qos] = ()) -> Associations:
        """From associations and QOS in any order."""
        users: dict[tuple[int, str, str], Association] = {}
        accounts: dict[str, Association] = {}
        for one in found:
            if one.uid is not None:
                users[one.uid, one.account, one.partition] = one
            elif not one.partition:
                accounts[one.account] = one
        defaults = {one.uid: one.account for one in users.values() if one.uid is not None and one.is_default}
        return cls(users, accounts, defaults, {one.name: one for one in qos})

    def of_user(self, uid: int, account: str, partition: str) -> Association | None:
        """A user's association in an account: that of the partition, else that of all."""
        return self.users.get((uid, account, partition)) or self.users.get((uid, account, ""))

    def accounts_above(self, account: str) -> tuple[Association, ...]:
        """An account and those above it, root last; shorter where one was not told of."""
        chain: dict[str, Association] = {}
        while account in self.accounts and account not in chain:
            chain[account] = self.accounts[account]
            account = self.accounts[account].parent
        return tuple(chain.values())

    def is_whole(self, account: str) -> bool:
        """Whether all accounts above were told of, up to the one without a parent."""
        chain = self.accounts_above(account)
        return bool(chain) and not chain[-1].parent


# --- scontrol show assoc_mgr ----------------------------------------------------------------------------------------

_UID: Final = re.compile(r"\((\d+)\)$")
_OF_EACH: Final = re.compile(r"(\S+)=\{([^{}]*)\}")
_HEAD: Final = re.compile(r"([^\s(]\S*?)\(\d+\)$")
_IN_USE: Final = ("GrpTRES", "GrpTRESMins", "GrpTRESRunMins")
_IN_USE_BY_USER: Final = {"MaxTRESPU": "MaxTRESPerUser", "MaxTRESRunMinsPU": "MaxTRESRunMinsPerUser"}
_IN_USE_BY_ACCOUNT: Final = {"MaxTRESPA": "MaxTRESPerAccount", "MaxTRESRunMinsPA": "MaxTRESRunMinsPerAccount"}


def parse_associations(text: str) -> Associations:
    """Read ``scontrol --oneliner show assoc_mgr flags=assoc,qos``. Raises SlurmFormatError."""
    above, _, below = text.partition("\nQOS Records")
    begins = re.search(r"(?m)^ClusterName=", above)
    rows = scontrol_records(above[begins.start() :], "ClusterName", ("Comment",)) if begins else ()
    same: dict[tuple[str, ...], Limits] = {}
    return Associations.of((_association(row, same) for row in rows), _all_qos(below))


def _association(row: Mapping[str, str], same: dict[tuple[str, ...], Limits]) -> Association:
    user = row.get("UserName", "")
    return Association(
        account=row.get("Account", "").lower(),
        uid=_uid(user),
        user=_UID.sub("", user),
        partition=row.get("Partition", ""),
        parent=re.sub(r"\(\d+\)$", "", row.get("ParentAccount", "")).lower(),
        limits=_limits(row, same),
        is_default=row.get("DefAssoc") == "Yes",
    )


def _limits(row: Mapping[str, str], same: dict[tuple[str, ...], Limits]) -> Limits:
    """Users by the thousand have the limits of their account: they share one value."""
    shared = {name: found for name in _IN_USE if (found := _in_use(row.get(name, "")))}
    if minutes := _plain(row.get("MaxTRESMinsPJ", "")):
        shared["MaxTRESMinsPerJob"] = minutes
    limits = Limits(
        per_job=_plain(row.get("MaxTRESPJ", "")),
        per_node=_plain(row.get("MaxTRESPN", "")),
        least=_plain(row.get("MinTRESPJ", "")),
        shared=shared,
    )
    return same.setdefault(tuple(map(repr, _as_data(limits))), limits)


def _as_data(limits: Limits) -> tuple[Any, ...]:
    return dict(limits.per_job), dict(limits.per_node), dict(limits.least), dict(limits.shared)


def _uid(user: str) -> int | None:
    found = _UID.search(user)
    if user and not found:
        raise SlurmFormatError("no uid of a user", user)
    return int(found[1]) if found else None


def _all_qos(text: str) -> Iterator[Qos]:
    for piece in re.split(r"(?m)^(?=QOS=)", text):
        if not piece.startswith("QOS="):
            continue
        facts, _, _ = piece.partition(" Account Limits=")
        (row,) = scontrol_records(facts, "QOS", ())
        name = _HEAD.match(row["QOS"])
        if not name:
            raise SlurmFormatError("no name of a QOS", row["QOS"])
        yield Qos(name[1].lower(), _limits(row, {}))


def _in_use(text: str) -> dict[str, int]:
    """``cpu=N(1),mem=9000(1000)`` -> {"mem": 9000}: what is in use is left out, and N is no limit."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, amount = item.partition("=")
        limit = re.fullmatch(r"(N|\d+)\(\d+\)", amount)
        if not limit:
            raise SlurmFormatError("a limit and its use were expected", text)
        if limit[1] != "N":
            found[name] = int(limit[1])
    return found


_PLAIN: Final = re.compile(r"([^=,]+)=(\d+)([KMGTP]?)")
_MEMORY_UNITS: Final = {"K": -10, "": 0, "M": 0, "G": 10, "T": 20, "P": 30}
_COUNT_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}


def unit_exponent(tres: str, unit: str) -> int:
    """Return the power of two by which a unit multiplies an amount of a TRES: of memory MiB, of others a count.

    >>> unit_exponent("mem", "G"), unit_exponent("mem", ""), unit_exponent("gres/gpu", "K")
    (10, 0, 10)
    """
    return (_MEMORY_UNITS if tres == "mem" else _COUNT_UNITS)[unit]


def _plain(text: str) -> dict[str, int]:
    """``cpu=4,mem=7000``, and as sacctmgr prints it ``mem=7000M``."""
    found = {}
    for item in filter(None, text.split(",")):
        amount = _PLAIN.fullmatch(item)
        if not amount:
            raise SlurmFormatError("amounts of resources were expected", text)
        name = amount[1]
        by = unit_exponent(name, amount[3])
        found[name] = int(amount[2]) << by if by >= 0 else int(amount[2]) >> -by
    return found


# --- sacctmgr -------------------------------------------------------------------------------------------------------

QOS_COLUMNS: Final = ("Name", "MaxTRESPU", "MaxTRESPA", "MaxTRESRunMinsPU", "MaxTRESRunMinsPA", "LimitFactor")
"""What sacctmgr is asked for of each QOS."""


def with_static_limits(qos: Qos, row: Mapping[str, str]) -> Qos:
    """A QOS with its limits for each user and account, of which slurmctld tells for those that have a job in it.

    `row` has `QOS_COLUMNS` as sacctmgr prints them. Raises SlurmFormatError.
    """
    shared = dict(qos.limits.shared)
    for column, name in {**_IN_USE_BY_USER, **_IN_USE_BY_ACCOUNT}.items():
        if found := _plain(row.get(column, "")):
            shared[name] = found
    try:
        factor = float(row.get("LimitFactor") or 1)
    except ValueError:
        raise SlurmFormatError("a factor was expected", row["LimitFactor"]) from None
    return replace(qos, limits=replace(qos.limits, shared=shared), whole=True, factor=factor)


def with_default_qos(told: Associations, rows: Iterable[tuple[str, str, str, str, str]]) -> Associations:
    """With the QOS of jobs that name none: `rows` are account, user, partition, its default QOS, all its QOS.

    Where there is no default but one QOS only, that is the one.
    """
    by_name = {(one.user, one.account, one.partition): key for key, one in told.users.items()}
    users = dict(told.users)
    for account, user, partition, default, every in rows:
        key = by_name.get((user, account.lower(), partition))
        found = default or ("" if "," in every else every)
        if key is not None and found:
            users[key] = replace(users[key], default_qos=found.lower())
    return replace(told, users=users)
