"""Who may ask: the uid at the other end of the decision socket, as the kernel knows it."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from slurm_plugins.service.errors import StartError

__all__ = ["Peer", "Peers", "allowed_uids", "uid_of"]

_UCRED = struct.Struct("3i")  # pid, uid, gid; uid is unsigned in the kernel


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Who connected to this socket (SO_PEERCRED, unix(7)): the credentials at the time of connect()."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return Peer(pid, uid & 0xFFFFFFFF)


def uid_of(name: str) -> int | None:
    """The uid of a login name or a number; None when there is no such user."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def allowed_uids(names: Iterable[str]) -> frozenset[int]:
    """Those of the option --allow-uid. Raises StartError: there is no such user."""
    allowed = set()
    for name in names:
        uid = uid_of(name)
        if uid is None:
            raise StartError(
                f"--allow-uid {name}", "there is no such user here", "give a login name or a uid"
            )
        allowed.add(uid)
    return frozenset(allowed)


class Peers:
    """The uids that may ask: root, our own, those allowed by option, and SlurmUser once it is known."""

    def __init__(self, allowed: Iterable[int] = ()) -> None:
        self._fixed = frozenset({0, os.geteuid(), *allowed})
        self._slurm: int | None = None

    def learn_slurm_user(self, uid: int | None) -> None:
        """SlurmUser's uid, as slurmctld or slurm.conf says; None (not known) changes nothing."""
        if uid is not None:
            self._slurm = uid

    def __contains__(self, uid: object) -> bool:
        return uid in self._fixed or (uid is not None and uid == self._slurm)
