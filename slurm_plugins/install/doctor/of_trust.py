"""Checks of what trust rests on: MUNGE, clocks, the service's user, and who may change the files that root runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from slurm_plugins.install.doctor.check import (
    ANYWHERE,
    HOSTS,
    Check,
    Said,
    UnseenError,
    error,
    ok,
    unknown,
    warning,
)
from slurm_plugins.install.doctor.rights import weakness
from slurm_plugins.install.doctor.sight import Sight
from slurm_plugins.install.layout import HOOKS, SHIM

__all__ = ["CHECKS"]

_MUNGE_SECONDS: Final = 5.0
_KEY: Final = Path("/etc/munge/munge.key")
_CLOCK_WARNS, _CLOCK_FAILS = 10.0, 240.0
"""Seconds that clocks may differ: records are put in order by them; MUNGE refuses what is 300 s off."""


def _munge_socket(sight: Sight) -> str:
    """Where the site's munged listens; empty: MUNGE's own place. Slurm's word counts first."""
    try:
        stated = sight.config.option("AuthInfo", "socket")
    except UnseenError:
        stated = None
    if stated:
        return stated
    try:
        return sight.site.slurm.munge_socket
    except UnseenError:
        return ""


def _munge(sight: Sight) -> Iterator[Said]:
    socket = _munge_socket(sight)
    at = [f"--socket={socket}"] if socket else []
    made = sight.host.run(["munge", "--no-input", *at], timeout=_MUNGE_SECONDS)
    if made.code is None and "not on this machine" in made.why:
        yield unknown("munge's commands are not on this host")
        return
    if not made.ok:
        yield error(f"munged makes no credential: {made.trouble}")
        return
    opened = sight.host.run(["unmunge", *at], timeout=_MUNGE_SECONDS, stdin=made.out)
    status = re.search(r"(?m)^STATUS:\s*(.*)$", opened.out)
    if not opened.ok:
        yield error(f"munged does not open its own credential: {status[1] if status else opened.trouble}")
    else:
        yield ok(f"munged makes and opens credentials{f' at {socket}' if socket else ''}")


def _same_socket(sight: Sight) -> Iterator[Said]:
    slurm = sight.config.option("AuthInfo", "socket") or ""
    ours = sight.site.slurm.munge_socket
    if slurm == ours:
        yield ok(f"Slurm and gsub ask the munged at {ours or 'its usual place'}")
        return
    if not ours:
        yield error(f"Slurm asks the munged at {slurm}, gsub one at its usual place")
    elif not slurm:
        yield warning(f"gsub asks the munged at {ours}, Slurm one at its usual place")
    else:
        yield error(f"Slurm asks the munged at {slurm}, gsub the one at {ours}")


def _key(sight: Sight) -> Iterator[Said]:
    if _munge_socket(sight):
        yield unknown("munged listens at a place of its own, and so may its key")
        return
    found = sight.host.stat(_KEY)
    if found is None:
        yield unknown(f"{_KEY} is not to be seen from here")
        return
    days = max(sight.question.clock() - found.mtime, 0) / 86400
    if found.mode & 0o077:
        yield error(f"others may read {_KEY} (mode {found.mode:04o}): whoever has it can be anybody")
    else:
        yield ok(f"the key is its owner's alone, {days:.0f} days old")


def _clock(sight: Sight) -> Iterator[Said]:
    asked = sight.question.clock()
    told = re.search(r"(?m)^sdiag output at .*\((\d+)\)", sight.asked("sdiag"))
    if told is None:
        yield unknown("slurmctld does not tell its time (sdiag)")
    else:
        now = sight.question.clock()
        other = float(told[1])
        # Whole seconds, asked some time between the two looks at our own clock
        off = max(asked - other - 1, other - now - 1, 0.0)
        if off > _CLOCK_FAILS:
            yield error(
                f"this host's clock and slurmctld's differ by {off:.0f} s: MUNGE refuses beyond 300 s"
            )
        elif off > _CLOCK_WARNS:
            yield warning(f"this host's clock and slurmctld's differ by {off:.0f} s")
        else:
            yield ok("this host's clock and slurmctld's are the same")


def _time_service(sight: Sight) -> Iterator[Said]:
    if not sight.has_systemd:
        return
    ran = sight.host.run(
        ["timedatectl", "show", "--property=NTPSynchronized", "--value"], timeout=_MUNGE_SECONDS
    )
    if not ran.ok:
        yield unknown(f"whether the clock is kept right is not known: {ran.trouble}")
    elif ran.out.strip() == "yes":
        yield ok("the clock is kept right from outside")
    else:
        yield warning("nothing keeps this host's clock right")


def _user(sight: Sight) -> Iterator[Said]:
    try:
        name = sight.site.service.user
    except UnseenError:
        name = "gsub"
    uid = sight.host.uid(name)
    if uid is None:
        level = error if sight.has_shim or sight.has_hooks or sight.site_text is not None else warning
        yield level(
            f"there is no user {name}: the service's answers are not believed here",
            f"groupadd --system --gid N {name}; useradd --system --uid N --gid {name} --shell /usr/sbin/nologin "
            f"{name}, with the N that it has on the controller",
        )
        return
    if uid == 0:
        yield error("gsub's service runs as root", 'service.user = "gsub" in the site file')
        return
    groups = sight.host.groups(name)
    told = f"{name} is uid {uid}, in {', '.join(groups)}"
    try:
        slurm, slurm_uid = sight.slurm_user
    except UnseenError:
        slurm, slurm_uid = "", -1
    if uid == slurm_uid:
        yield warning(f"gsub's service runs as SlurmUser ({name}): it could do all that Slurm can")
    else:
        yield ok(f"{told}; the same number is needed on all hosts")
    if (
        "controller" in sight.roles
        and slurm_uid > 0
        and uid != slurm_uid
        and not _may_meet(sight, name, slurm)
    ):
        yield warning(
            f"{name} is in no group of {slurm}'s: it cannot hand the decision socket over",
            f"usermod --append --groups {(sight.host.groups(slurm) or (slurm,))[0]} {name}, then restart gsubd",
        )


def _may_meet(sight: Sight, name: str, slurm: str) -> bool:
    """Whether gsubd can give its socket to a group that slurmctld is in; where systemd adds it, the socket shows."""
    if set(sight.host.groups(name)) & set(sight.host.groups(slurm)):
        return True
    unit = sight.unit("gsubd.service")
    if unit is not None and re.search(r"(?m)^SupplementaryGroups=", sight.text(unit) or ""):
        return True
    return sight.host.stat(_decision_socket(sight)) is not None  # judged there, by its own check


def _decision_socket(sight: Sight) -> Path:
    try:
        return Path(sight.site.service.socket)
    except UnseenError:
        return sight.layout.run / "decision.sock"


def _files(sight: Sight) -> Iterator[Said]:
    layout = sight.layout
    paths = [layout.libexec / name for name in (*SHIM, *HOOKS.values())]
    paths += [layout.libexec, layout.etc, layout.site, layout.job_submit, layout.slurm_conf]
    owners = {0}
    found = []
    for path in paths:
        if sight.host.stat(path) is None:
            continue
        allowed = owners
        if path in (layout.job_submit, layout.slurm_conf):
            with suppress(UnseenError):
                allowed = owners | {sight.slurm_user[1]}  # some sites give SlurmUser its own files
        if (why := weakness(sight.host, path, allowed)) and why not in found:
            found.append(why)
    if found:
        yield error("; ".join(found[:5]), "chown root:root and chmod go-w what is named")
    elif sight.host.stat(layout.libexec) is not None:
        yield ok("what Slurm runs of gsub only root can change")


def _programs(sight: Sight) -> Iterator[Said]:
    folder = sight.question.programs
    if folder is None:
        return
    if sight.host.stat(folder) is None:
        yield unknown(f"{folder} is not there")
        return
    host = sight.host
    places = [folder, folder / "bin", *(folder / "bin" / name for name in host.names(folder / "bin"))]
    for lib in (folder / "lib", folder / "lib64"):
        for python in host.names(lib):
            packages = lib / python / "site-packages"
            places += [packages, *(packages / name for name in host.names(packages))]
    found = []
    for place in places:
        if host.stat(place) is not None and (why := weakness(host, place)) and why not in found:
            found.append(why)
    if found:
        yield error("; ".join(found[:3]), f"chown -R root:root {folder}; chmod -R go-w {folder}")
    else:
        yield ok(f"only root can change gsub's programs in {folder}")


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "munge",
        "trust",
        "munged makes a credential here and opens it again: by that hosts and users prove who they are, to Slurm and "
        "to gsub.",
        "systemctl status munge; its log is /var/log/munge/munged.log",
        _munge,
    ),
    Check(
        "munge-socket",
        "trust",
        "Slurm (`AuthInfo`) and gsub (`slurm.munge_socket` of the site file) ask the same munged.",
        '[slurm] munge_socket = "PATH" in the site file, as AuthInfo=socket=PATH in slurm.conf',
        _same_socket,
        HOSTS,
    ),
    Check(
        "munge-key",
        "trust",
        "MUNGE's key is for its owner's eyes alone.",
        "chown munge:munge /etc/munge/munge.key; chmod 0400 /etc/munge/munge.key",
        _key,
        HOSTS,
    ),
    Check(
        "clock",
        "trust",
        "This host's clock and slurmctld's agree (`sdiag` tells slurmctld's): records are put in order by them, and "
        "MUNGE refuses what is five minutes off.",
        "set the clock, and have chrony or systemd-timesyncd keep it",
        _clock,
    ),
    Check(
        "time-service",
        "trust",
        "Something keeps this host's clock right.",
        "timedatectl set-ntp true, or start chrony",
        _time_service,
        HOSTS,
    ),
    Check(
        "service-user",
        "trust",
        "The service's user exists here, is neither root nor SlurmUser, and on the controller shares a group with "
        "SlurmUser. Nodes and users believe the service by that user's number.",
        'service.user = "gsub" in the site file; see docs/admin.md, Getting it onto the hosts',
        _user,
        ANYWHERE,
    ),
    Check(
        "files-owner",
        "trust",
        "Nobody but root can change the hooks, the shim, the site file, or a folder above them; slurm.conf and "
        "job_submit.lua may be SlurmUser's.",
        "chown root:root FILE; chmod go-w FILE",
        _files,
        HOSTS,
    ),
    Check(
        "programs-owner",
        "trust",
        "Nobody but root can change gsub's own programs and packages, which its agent runs as root.",
        "chown -R root:root /opt/gsub; chmod -R go-w /opt/gsub",
        _programs,
        HOSTS,
    ),
)
