"""A daemon's socket as a file: never open to the world, a dead one replaced, a live one left alone."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from slurm_plugins.service.errors import StartError

__all__ = ["BACKLOG", "SocketFile"]

_MODE = 0o660
BACKLOG = 128


class SocketFile:
    """A listening Unix stream socket at `path`, mode 0660, in `group` where it is given and exists.

    `group` None means "slurm" if there is such a group and we may hand files to it, else our own. A lock beside the
    socket keeps two services apart; it is held until `close`. `owner` and `what` name the daemon and its socket in
    errors. Raises StartError.
    """

    def __init__(
        self, path: Path, group: str | None = None, *, owner: str = "gsubd", what: str = "the decision socket"
    ) -> None:
        self.path = path
        self._owner = owner
        self._what = what
        self._check_folder()
        self._lock = self._take_lock()
        try:
            self._clear_path()
            self.listening = self._listen(self._gid(group), group is not None)
        except BaseException:
            os.close(self._lock)
            raise
        self._inode = path.stat().st_ino

    def _check_folder(self) -> None:
        folder = self.path.parent
        fix = f"create it for {self._owner}'s user (RuntimeDirectory= in the unit), or name another with --socket"
        try:
            mode = folder.stat().st_mode
        except OSError as error:
            raise StartError(f"no folder for {self._what}: {folder}", error, fix) from None
        if not stat.S_ISDIR(mode):
            raise StartError(f"no folder for {self._what}: {folder}", "it is no folder", fix)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StartError(
                f"the folder of {self._what} is not safe: {folder}",
                "everybody may replace files in it",
                f"chmod o-w {folder}",
            )
        if len(os.fsencode(self.path)) > 90:
            raise StartError(
                f"the path of {self._what} is too long: {self.path}",
                "a Unix socket's path has 107 bytes, and a few are needed beside it",
                "name a shorter one with --socket",
            )

    def _take_lock(self) -> int:
        name = self.path.with_name(f".{self.path.name}.lock")
        try:
            lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartError(
                f"cannot write in {self.path.parent}",
                error,
                f"give the folder to the user that {self._owner} runs as",
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise self._taken(f"another {self._owner} holds its lock") from None
        return lock

    def _taken(self, why: str) -> StartError:
        return StartError(
            f"{self._what} is in use: {self.path}",
            why,
            f"end that one first (systemctl stop {self._owner}), or name another socket with --socket",
        )

    def _clear_path(self) -> None:
        """Remove what a dead service left; a socket that answers or a file of another kind is not ours to remove."""
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise StartError(
                f"the path of {self._what} is taken: {self.path}",
                "there is a file that is no socket",
                "move it away, or name another path with --socket",
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            # EAGAIN: the queue of a service that is alive and busy is full
            if probe.connect_ex(os.fsencode(self.path)) in {0, errno.EAGAIN, errno.EINPROGRESS}:
                raise self._taken("a service answers there")
        # Replaced by rename when the new one is ready: until then the old path refuses at once.

    def _listen(self, gid: int | None, demanded: bool) -> socket.socket:
        """Bind under another name, set group and mode, then rename: nobody ever sees it half made."""
        name = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            name.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o777 & ~_MODE)
        try:
            listening.bind(os.fsencode(name))
        except OSError as error:
            listening.close()
            raise StartError(
                f"cannot make {self._what} {self.path}",
                error,
                "check the folder's owner and the file system",
            ) from None
        finally:
            os.umask(umask)
        try:
            if gid is not None and gid != name.stat().st_gid:
                self._hand_over(name, gid, demanded)
            name.chmod(_MODE)  # chown may clear bits; and bind() obeys ACLs of the folder
            listening.listen(BACKLOG)
            listening.setblocking(False)
            name.rename(self.path)
        except BaseException:
            listening.close()
            name.unlink(missing_ok=True)
            raise
        return listening

    def _gid(self, group: str | None) -> int | None:
        if group is not None and group.isdecimal():
            return int(group)
        try:
            return grp.getgrnam(group or "slurm").gr_gid
        except KeyError:
            if group is None:
                return None
            raise StartError(
                f"no group {group!r} for {self._what}", "it does not exist here", "see --group"
            ) from None

    def _hand_over(self, name: Path, gid: int, demanded: bool) -> None:
        try:
            os.chown(name, -1, gid)
        except PermissionError:
            if demanded:
                raise StartError(
                    f"cannot give {self._what} to its group",
                    f"the user that {self._owner} runs as is not in group {gid}",
                    "add it (SupplementaryGroups= in the unit), or leave --group out",
                ) from None

    @property
    def group(self) -> str:
        """The group of the socket, as a name where it has one."""
        gid = self.path.stat().st_gid
        try:
            return grp.getgrgid(gid).gr_name
        except KeyError:
            return str(gid)

    def remove(self) -> None:
        """Take the path away, if it is still ours: who connects now is refused at once."""
        with suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()

    def close(self) -> None:
        """Remove the path and let another service start."""
        self.remove()
        self.listening.close()
        with suppress(OSError):
            os.close(self._lock)
