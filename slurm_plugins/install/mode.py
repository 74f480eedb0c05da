"""How far gsub may go, and where: the site file read as a table, changed in one place, and seen to be in force."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final, Literal

from site_configs.site import SiteError, parse_site
from site_configs.site_model import MODES, Account, Mode, Partition, Policy, Site
from slurm_plugins.install.host import Host
from slurm_plugins.install.toml_edit import EditError, set_key

__all__ = [
    "CHANGES",
    "Row",
    "Scope",
    "Service",
    "WrongModeError",
    "change_everywhere",
    "changed",
    "enforces",
    "keep_and_write",
    "list_modes_beyond",
    "rows",
    "service_of",
    "wait_until_taken",
]

CHANGES: Final[dict[Mode, tuple[str, ...]]] = {
    "observe": (
        "Decisions are made and recorded. No job is changed, no user is told, none is refused.",
        "Jobs that are in the queue stay as they are; what gsub-act holds is released.",
    ),
    "advise": (
        "Who submits a job with GPUs reads what gsub would change about it. No job is changed.",
        "Jobs that are in the queue stay as they are; what gsub-act holds is released.",
    ),
    "enforce": (
        "New jobs with GPUs are changed as gsub decides, and who submits them reads what and why.",
        "Jobs that can never run are refused at submission. Jobs that are in the queue stay as they are.",
        "A user keeps a job as it is with --comment=gsub:off, or GSUB=off in its environment.",
    ),
}
"""What a mode means to the people of a site."""


class WrongModeError(Exception):
    """The change makes no sense or cannot be made; the message is one or two lines."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a mode is stated for: the site, a partition or an account."""

    kind: Literal["site", "partition", "account"] = "site"
    name: str = ""

    def __str__(self) -> str:
        return "site" if self.kind == "site" else f"{self.kind} {self.name}"

    @property
    def table(self) -> tuple[str, ...]:
        """Its table in the site file."""
        return ("policy",) if self.kind == "site" else (f"{self.kind}s", self.name)

    def stated(self, site: Site) -> Policy | Partition | Account | None:
        """What the site file says of it; None: nothing."""
        if self.kind == "site":
            return site.policy
        found: Partition | Account | None
        found = site.partitions.get(self.name) if self.kind == "partition" else site.accounts.get(self.name)
        return found


@dataclass(frozen=True, slots=True)
class Row:
    """A mode that is stated: for what, which, and for how many of its users in percent."""

    scope: Scope
    mode: Mode
    rollout: int

    def __str__(self) -> str:
        some = "" if self.rollout == 100 else f", for {self.rollout} % of the users"
        return f"{self.mode}{some}"


def rows(site: Site) -> tuple[Row, ...]:
    """All modes that are stated, the site's first. Where several apply to a job the most cautious counts."""
    return tuple(_rows(site))


def _rows(site: Site) -> Iterator[Row]:
    yield Row(Scope(), site.policy.mode, site.policy.rollout)
    for partition in site.partitions.values():
        if partition.mode is not None:
            yield Row(Scope("partition", partition.name), partition.mode, partition.rollout)
    for account in site.accounts.values():
        if account.mode is not None:
            yield Row(Scope("account", account.name), account.mode, account.rollout)


def enforces(site: Site) -> bool:
    """Whether any job may be changed: then gsub-act is to run."""
    return "enforce" in site.modes


def list_modes_beyond(site: Site, mode: Mode) -> tuple[Row, ...]:
    """The partitions and accounts that state more than `mode`: the site's own mode does not reach them."""
    return tuple(row for row in rows(site)[1:] if MODES.index(row.mode) > MODES.index(mode))


def change_everywhere(text: str, file: str, mode: Mode) -> str:
    """The site file's text with `mode` for the site, and for each partition and account that states more.

    Raises as `changed` does.
    """
    text = changed(text, file, Scope(), mode, None)
    for row in list_modes_beyond(parse_site(text, file), mode):
        text = changed(text, file, row.scope, mode, None)
    return text


def changed(text: str, file: str, scope: Scope, mode: Mode | None, rollout: int | None) -> str:
    """The site file's text with another mode or rollout for `scope`; all else is as it was.

    `mode` None keeps the mode, `rollout` None the rollout; observe has none. Raises WrongModeError, and SiteError when
    the text is no site file.
    """
    site = parse_site(text, file)
    stated = scope.stated(site)
    new = mode or (stated.mode if stated is not None else None)
    if new is None:
        raise WrongModeError(f"no mode is stated for {scope}: a rollout needs one beside it")
    if new == "observe":
        if rollout not in (None, 100):
            raise WrongModeError("there is nothing to roll out in observe")
        rollout = 100 if stated is not None and stated.rollout != 100 else None
    try:
        if stated is None or stated.mode != new or scope.kind == "site":
            text = set_key(text, scope.table, "mode", new)
        if rollout is not None and (stated is None or stated.rollout != rollout):
            text = set_key(text, scope.table, "rollout", rollout)
        after = parse_site(text, file)
    except (EditError, SiteError) as error:
        raise WrongModeError(str(error)) from error
    wanted = {str(row.scope): row for row in rows(site)}
    share = rollout if rollout is not None else stated.rollout if stated is not None else 100
    wanted[str(scope)] = Row(scope, new, share)
    if {str(row.scope): row for row in rows(after)} != wanted:
        raise WrongModeError("the file would say something else than was meant; change it by hand")
    return text


def keep_and_write(host: Host, keep: Path, path: Path, old: bytes, new: bytes) -> Path:
    """Put the new file in place at once, with the old one's owner and mode; returns where that is kept.

    Raises HostError.
    """
    copies = keep / "copies"
    for folder in (keep, copies):
        if host.stat(folder) is None:
            host.make_folder(folder, mode=0o700)
    kept = copies / hashlib.sha256(old).hexdigest()
    host.write(kept, old, mode=0o600)
    found = host.stat(path)
    if found is None:
        host.write(path, new, mode=0o644)
    else:
        host.write(path, new, mode=found.mode, uid=found.uid, gid=found.gid)
    return kept


# --- the service ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Service:
    """What gsubd says of its site file.

    Parameters
    ----------
    ok: the file on disk is the one that is in force.
    changed: when the one in force was last changed, seconds since the epoch; None: it has none.
    """

    ok: bool
    changed: float | None


def service_of(address: str, *, seconds: float = 5.0) -> Service | None:
    """What gsubd says on its own pages (HOST:PORT); None: nobody listens. Raises OSError, ValueError."""
    host, _, port = address.rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=seconds)
    try:
        connection.request("GET", "/healthz")
        told = json.loads(connection.getresponse().read(1 << 16))
        return Service(bool(told["site_file_ok"]), told["site_file_changed"])
    except ConnectionRefusedError:
        return None
    except (HTTPException, KeyError, TypeError) as error:
        raise ValueError(f"that is not gsubd: {error}") from error
    finally:
        connection.close()


def wait_until_taken(
    ask: Callable[[], Service | None],
    mtime: float,
    *,
    seconds: float = 15.0,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Service | None:
    """What gsubd says once it has taken the file of this `mtime`, or time is over; None: it is away.

    That it has refused a file may be said of the one before: only time tells.
    """
    deadline = now() + seconds
    while True:
        said = ask()
        if said is None or (said.ok and said.changed == mtime) or now() >= deadline:
            return said
        sleep(0.2)
