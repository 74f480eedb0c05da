"""A process of root's becomes a user's for good: no way back, no power, nothing open, little of anything.

Linux only, through prctl(2) and capset(2): Python has neither. What is dropped is looked at afterwards, and a process
that kept anything does not go on.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["PrivilegeError", "become", "bound", "close_others", "die_with", "groups_of", "verify"]

CPU_SECONDS: Final = 10
ADDRESS_SPACE: Final = 384 << 20
"""Bytes: a child's buffers are a sixth of it, and the agent's unit has 512 MB for both."""
OPEN_FILES: Final = 32

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_GET_NO_NEW_PRIVS: Final = 39
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_MOST_CAPABILITIES: Final = 64
_MOST_DESCRIPTORS: Final = 1 << 16
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "riscv64": 30}
_IOPRIO_IDLE: Final = 3 << 13

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)


class PrivilegeError(Exception):
    """Something was not given up; the message says what."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def bound() -> None:
    """Take little: CPU time, memory, files, no writing, no processes, no core; go first when memory ends.

    The limits are hard ones. Raises PrivilegeError.
    """
    limits = {
        resource.RLIMIT_CPU: CPU_SECONDS,
        resource.RLIMIT_AS: ADDRESS_SPACE,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    try:
        for limit, value in limits.items():
            _, hard = resource.getrlimit(limit)
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (least, least))
    except (OSError, ValueError) as error:
        raise PrivilegeError(f"a resource limit cannot be set: {error}") from None
    os.umask(0o077)
    os.chdir("/")
    with suppress(OSError):
        os.nice(5)  # of the agent's own ten; more, and on a busy node it would not get to its end
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if (number := _IOPRIO_SET.get(os.uname().machine)) is not None:
        _libc.syscall(number, 1, 0, _IOPRIO_IDLE)


def close_others() -> None:
    """Close all but standard input, output and error."""
    os.closerange(3, _MOST_DESCRIPTORS)


def die_with(parent: int) -> None:
    """Have the kernel end us when our parent ends. It forgets that when ids change: to be said again then."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise PrivilegeError("who asked is gone")


def groups_of(uid: int, gid: int | None) -> tuple[int, list[int]]:
    """The group and all groups of a user, as a login of theirs has them. May hang in a name service.

    `gid` is the group that the job runs with, None for the user's own. A user whom no name service knows has that
    alone. Raises PrivilegeError where nothing is known.
    """
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        if gid is None:
            raise PrivilegeError(f"no name service knows uid {uid}, and so its groups") from None
        return gid, [gid]
    gid = entry.pw_gid if gid is None else gid
    return gid, sorted(set(os.getgrouplist(entry.pw_name, gid)))


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Be this user, with these groups, and nothing else for ever. Raises PrivilegeError.

    Who is not root can only stay who they are.
    """
    with suppress(OSError):
        if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
            raise PrivilegeError("a name service's library began a thread, which would keep root's rights")
    parent = os.getppid()
    if os.geteuid() == 0:
        try:
            for capability in range(_MOST_CAPABILITIES):
                if _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
                    _prctl(_PR_CAPBSET_DROP, capability)
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except (OSError, OverflowError, ValueError) as error:
            raise PrivilegeError(f"cannot become uid {uid}: {error}") from None
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)  # EINVAL before Linux 4.3
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    if _libc.capset(ctypes.byref(header), sets) != 0:
        raise PrivilegeError(f"capabilities: {os.strerror(ctypes.get_errno())}")
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # The user's other processes have this uid: they may kill it, but neither look into it nor take it over
    _prctl(_PR_SET_DUMPABLE, 0)
    die_with(parent)
    verify(uid, gid, groups)


def verify(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Look whether nothing was kept. Raises PrivilegeError."""
    kept = []
    if os.getresuid() != (uid, uid, uid):
        kept.append("a uid")
    if os.getresgid() != (gid, gid, gid):
        kept.append("a gid")
    if set(os.getgroups()) - {*groups, gid}:
        kept.append("groups")
    header, sets = _Header(_CAPABILITY_VERSION_3, 0), (_Sets * 2)()
    if _libc.capget(ctypes.byref(header), sets) != 0 or any(
        each.effective or each.permitted or each.inheritable for each in sets
    ):
        kept.append("capabilities")
    if _libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        kept.append("a way to new privileges")
    if kept:
        raise PrivilegeError(f"uid {uid} was not become wholly: {', '.join(kept)} kept")


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise PrivilegeError(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
