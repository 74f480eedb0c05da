"""What accounting lets users, accounts and QOS have of memory, from ``scontrol show assoc_mgr``. Pure.

That is slurmctld's own copy of the limits, with what is in use of them: limits that users inherit are filled in, and
those of a relative QOS (a share of the cluster) are amounts there. Memory is in MiB everywhere in this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from slurm_plugins.client.errors import SlurmFormatError
from slurm_plugins.client.tables import scontrol_records

__all__ = ["Association", "Associations", "Qos", "Shared", "parse_associations", "with_static_limits"]


@dataclass(frozen=True, slots=True)
class Shared:
    """A limit for several jobs together: `most`, None for none, and what of it is in use by jobs that run."""

    most: int | None
    used: int


@dataclass(frozen=True, slots=True)
class Association:
    """A user in an account, or with `uid` None the account itself; of one partition where that has a name."""

    account: str
    uid: int | None
    partition: str
    parent: str
    """The account above; empty for root's, and for users."""
    per_job: int | None
    per_node: int | None
    together: Shared


@dataclass(frozen=True, slots=True)
class Qos:
    """A QOS; `users` (by uid) and `accounts` have those that have or had a job in it."""

    name: str
    per_job: int | None
    per_node: int | None
    together: Shared
    users: Mapping[int, Shared]
    accounts: Mapping[str, Shared]


@dataclass(frozen=True, slots=True)
class Associations:
    """What was told: all accounts, the users asked for, the QOS asked for by name."""

    found: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(default_factory=dict)

    def of_user(self, uid: int, account: str, partition: str) -> Association | None:
        """A user's association in an account: that of the partition, else that of all."""
        own = {a.partition: a for a in self.found if a.uid == uid and a.account == account}
        return own.get(partition) or own.get("")

    def accounts_above(self, account: str) -> tuple[Association, ...]:
        """An account and those above it, root last; shorter where one was not told of."""
        by_name = {a.account: a for a in self.found if a.uid is None and not a.partition}
        chain: dict[str, Association] = {}
        while account in by_name and account not in chain:
            chain[account] = by_name[account]
            account = by_name[account].parent
        return tuple(chain.values())

    def is_whole(self, account: str) -> bool:
        """Whether all accounts above were told of, up to the one without a parent."""
        chain = self.accounts_above(account)
        return bool(chain) and not chain[-1].parent


_UID: Final = re.compile(r"\((\d+)\)$")
_OF_EACH: Final = re.compile(r"(\S+)=\{([^{}]*)\}")
_HEAD: Final = re.compile(r"([^\s(]\S*?)\(\d+\)$")


def parse_associations(text: str) -> Associations:
    """Read ``scontrol --oneliner show assoc_mgr flags=assoc,qos``. Raises SlurmFormatError."""
    above, _, below = text.partition("\nQOS Records")
    begins = re.search(r"(?m)^ClusterName=", above)
    rows = scontrol_records(above[begins.start() :], "ClusterName", ("Comment",)) if begins else ()
    return Associations(
        tuple(_association(row) for row in rows), {found.name: found for found in _all_qos(below)}
    )


def _association(row: Mapping[str, str]) -> Association:
    return Association(
        account=row.get("Account", "").lower(),
        uid=_uid(row.get("UserName", "")),
        partition=row.get("Partition", ""),
        parent=re.sub(r"\(\d+\)$", "", row.get("ParentAccount", "")).lower(),
        per_job=_plain(row.get("MaxTRESPJ", "")),
        per_node=_plain(row.get("MaxTRESPN", "")),
        together=_shared(row.get("GrpTRES", "")),
    )


def _uid(user: str) -> int | None:
    found = _UID.search(user)
    if user and not found:
        raise SlurmFormatError("no uid of a user", user)
    return int(found[1]) if found else None


def _all_qos(text: str) -> Iterator[Qos]:
    for piece in re.split(r"(?m)^(?=QOS=)", text):
        if not piece.startswith("QOS="):
            continue
        facts, _, of_each = piece.partition(" Account Limits=")
        accounts, _, users = of_each.partition(" User Limits=")
        (row,) = scontrol_records(facts, "QOS", ())
        name = _HEAD.match(row["QOS"])
        if not name:
            raise SlurmFormatError("no name of a QOS", row["QOS"])
        yield Qos(
            name=name[1].lower(),
            per_job=_plain(row.get("MaxTRESPJ", "")),
            per_node=_plain(row.get("MaxTRESPN", "")),
            together=_shared(row.get("GrpTRES", "")),
            # 22.05 has the uid alone, newer releases user(uid)
            users={
                int(who if who.isdigit() else _uid(who) or 0): limit
                for who, limit in _limits(users, "MaxTRESPU")
            },
            accounts={who.lower(): limit for who, limit in _limits(accounts, "MaxTRESPA")},
        )


def _limits(text: str, name: str) -> Iterator[tuple[str, Shared]]:
    for who, body in _OF_EACH.findall(text):
        found = re.search(rf"(?:^|\s){name}=(\S*)", body)
        if found:
            yield who, _shared(found[1])


def _plain(text: str) -> int | None:
    """``cpu=4,mem=7000`` -> 7000."""
    found = re.search(r"(?:^|,)mem=(\d+)(?=,|$)", text)
    if found:
        return int(found[1])
    if re.search(r"(?:^|,)mem=", text):
        raise SlurmFormatError("an amount of memory was expected", text)
    return None


def _shared(text: str) -> Shared:
    """``cpu=N(1),mem=9000(1000)`` -> 9000 of which 1000 are in use; N is no limit."""
    found = re.search(r"(?:^|,)mem=(N|\d+)\((\d+)\)", text)
    if not found:
        if re.search(r"(?:^|,)mem=", text):
            raise SlurmFormatError("a limit and its use were expected", text)
        return Shared(None, 0)
    return Shared(None if found[1] == "N" else int(found[1]), int(found[2]))


_STATIC: Final = re.compile(r"(?:^|,)mem=(\d+)([MGTP]?)(?=,|$)")
_UNITS: Final = {"": 0, "M": 0, "G": 10, "T": 20, "P": 30}


def with_static_limits(qos: Qos, row: Mapping[str, str], uid: int, account: str) -> Qos:
    """A QOS with the limits for a user and an account that have no job in it yet, so that slurmctld told of none.

    `row` has ``MaxTRESPU`` and ``MaxTRESPA`` as sacctmgr prints them. Raises SlurmFormatError.
    """
    users, accounts = dict(qos.users), dict(qos.accounts)
    users.setdefault(uid, Shared(_static(row.get("MaxTRESPU", "")), 0))
    accounts.setdefault(account, Shared(_static(row.get("MaxTRESPA", "")), 0))
    return replace(qos, users=users, accounts=accounts)


def _static(text: str) -> int | None:
    """``cpu=4,mem=9000M`` -> 9000."""
    found = _STATIC.search(text)
    if found:
        return int(found[1]) << _UNITS[found[2]]
    if re.search(r"(?:^|,)mem=", text):
        raise SlurmFormatError("an amount of memory was expected", text)
    return None
