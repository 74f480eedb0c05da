"""`gsub admin install`, `upgrade` and `rollback`, without their command line: look, plan, and do it alone."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from slurm_plugins.install import desired as want
from slurm_plugins.install.apply import Done, apply
from slurm_plugins.install.around import Around
from slurm_plugins.install.facts import ROLES, Wish, gather
from slurm_plugins.install.host import Host, HostError, sweep
from slurm_plugins.install.journal import COPIES, Journal, followed
from slurm_plugins.install.plan import Plan, plan, targets
from slurm_plugins.install.rollback import forget, look_back, undo

__all__ = [
    "BusyError",
    "LockError",
    "alone",
    "asked",
    "covering",
    "install",
    "planned",
    "remembered",
    "rollback",
    "rolled_back",
]


class BusyError(Exception):
    """Another installation is at work on this host."""


class LockError(Exception):
    """The lock cannot be made; the message says why."""


def planned(host: Host, wish: Wish, journal: Journal, around: Around) -> Plan:
    """The plan of an installation or an upgrade. Reads only. Raises HostError: what matters cannot be read."""
    first = gather(host, wish, journal, want.topology_files(wish))
    facts = gather(host, wish, journal, targets(wish, first))
    site = want.site_of(wish, facts)
    if "controller" in wish.roles and facts.running and site is not None and not wish.nodes_ready:
        facts = replace(facts, heard=around.service.heard(site))
    return plan(facts, wish)


def install(host: Host, wish: Wish, journal: Journal, around: Around, found: Plan) -> Done:
    """Do a plan of `planned`."""
    _sweep(host, wish, journal)
    return apply(found, host, wish.layout, journal, around, version=wish.version, asked=asked(wish))


def rolled_back(host: Host, wish: Wish, journal: Journal, around: Around, *, records: bool = False) -> Plan:
    """The plan of a rollback. Reads only. Raises HostError."""
    return undo(look_back(host, wish, journal), wish, settle=around.settle, records=records)


def rollback(host: Host, wish: Wish, journal: Journal, around: Around, found: Plan) -> Done:
    """Do a plan of `rolled_back`; the journal goes last, when nothing is left that it tells of."""
    _sweep(host, wish, journal)
    done = apply(found, host, wish.layout, journal, around)
    if done.ok and not found.waits:
        forget(host, journal, wish.layout.keep)
    return done


def _sweep(host: Host, wish: Wish, journal: Journal) -> None:
    """Remove half-written files of a run before this one that was killed. What is in the way of that is no harm."""
    keep = wish.layout.keep
    places = [followed(host, Path(entry.path)).parent for entry in journal.entries if entry.path]
    for folder in dict.fromkeys([keep, keep / COPIES, *places]):
        with contextlib.suppress(HostError):
            sweep(host, folder)


def covering(wish: Wish, journal: Journal) -> Wish:
    """A wish to roll back, for all that was ever installed here: its journal is one, and so is what it goes by."""
    before = [entry.asked["roles"] for entry in journal.entries if entry.asked and entry.asked.get("roles")]
    known = {role for roles in before for role in ROLES if role in (roles or ())}
    return replace(wish, roles=wish.roles | known)


def asked(wish: Wish) -> dict[str, str | tuple[str, ...] | None]:
    """What of a wish the next command has to know."""
    return {
        "roles": tuple(sorted(wish.roles)),
        "uid": None if wish.uid is None else str(wish.uid),
        "service_url": wish.service_url,
        "task_prolog": "yes" if wish.task_prolog else "",
    }


def remembered(wish: Wish, before: Mapping[str, str | tuple[str, ...] | None]) -> Wish:
    """A wish, with what an earlier installation was asked for where this one says nothing."""
    uid, url = before.get("uid"), before.get("service_url")
    return replace(
        wish,
        uid=wish.uid if wish.uid is not None or not isinstance(uid, str) else int(uid),
        service_url=wish.service_url or (url if isinstance(url, str) else ""),
        task_prolog=wish.task_prolog or bool(before.get("task_prolog")),
    )


@contextlib.contextmanager
def alone(keep: Path, run: Path = Path("/run")) -> Iterator[None]:
    """Hold the lock on the installation whose journal is in `keep`. Raises BusyError, LockError."""
    name = hashlib.sha256(os.fsencode(keep)).hexdigest()[:12]
    path = run / f"gsub-admin-{name}.lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LockError(f"{path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError from error
        if not path.exists() or os.fstat(handle).st_ino != path.stat().st_ino:
            raise BusyError  # it was another's, who has just ended and taken it away
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
