"""The machine that is looked at or changed, as far as installing goes: files, links, users, commands.

Everything that doctor, plan and install learn or do goes through `Host`, so that tests can plant any fault without a
machine that has it. `LocalHost` is this machine; the tests' fake keeps files in a dictionary.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import shutil
import socket
import stat as stat_
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

__all__ = ["FileKind", "Host", "HostError", "LocalHost", "Ran", "Stat", "Usage", "sweep"]

FileKind = Literal["file", "folder", "link", "socket", "other"]

MOST_BYTES: Final = 16 << 20
"""Largest file that is read: what is configuration is smaller by far."""


class HostError(Exception):
    """A file cannot be read or written, or a command not started; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run. `code` is its exit code, negative for a signal; None: it was not there to be run, or
    did not end in time (`why` says which, else it is empty).
    """

    code: int | None
    out: str = ""
    err: str = ""
    why: str = ""

    @property
    def ok(self) -> bool:
        """It ran and ended with 0."""
        return self.code == 0

    @property
    def trouble(self) -> str:
        """One line of why it did not work: what it said, else how it ended; empty when it did."""
        if self.ok:
            return ""
        said = (self.err.strip() or self.out.strip()).splitlines()
        return self.why or (said[-1].strip() if said else f"it ended with {self.code}")


@dataclass(frozen=True, slots=True)
class Stat:
    """What a path is, without following a link: mode are the permission bits, size in bytes, mtime seconds since the
    epoch, `target` where a link points to."""

    kind: FileKind
    mode: int
    uid: int
    gid: int
    size: int
    mtime: float
    target: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """A file system: bytes in all and free to root, inodes free (0 in all: it has no count of them)."""

    total: int
    free: int
    inodes: int
    inodes_free: int


class Host(Protocol):
    """A machine. Reading never raises for what is not there; HostError for what is there and cannot be read."""

    @property
    def name(self) -> str:
        """Host name up to the first dot."""
        ...

    def euid(self) -> int:
        """Who we are; 0 may do all."""
        ...

    def read(self, path: Path) -> bytes | None:
        """A regular file's content, links followed; None: there is none. Raises HostError: unreadable, too big."""
        ...

    def stat(self, path: Path) -> Stat | None:
        """What `path` is; None: nothing, or not to be seen."""
        ...

    def names(self, folder: Path) -> tuple[str, ...]:
        """The names in a folder, sorted; empty for what is no folder."""
        ...

    def usage(self, path: Path) -> Usage | None:
        """The file system of `path`; None: it cannot be told."""
        ...

    def which(self, command: str) -> str | None:
        """Where a command lies on the PATH or in the sbin folders, None: nowhere."""
        ...

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 20.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Ran:
        """Run a command, without a shell; never raises. `env` is added to ours. After `timeout` seconds it is
        killed with all it started."""
        ...

    def uid(self, user: str) -> int | None:
        """A user's number, None: there is no such user."""
        ...

    def user(self, uid: int) -> str | None:
        """A user's name, None: the number has none."""
        ...

    def groups(self, user: str) -> tuple[str, ...]:
        """The groups of a user, the first one too; empty: there is no such user."""
        ...

    # what changes the machine: install, upgrade and rollback alone

    def write(
        self, path: Path, content: bytes, *, mode: int, uid: int | None = None, gid: int | None = None
    ) -> None:
        """Put a file in place at once, on disk before it bears its name; None: owner root (or who we are). Through a
        link to what it points to. Raises HostError."""
        ...

    def make_folder(self, path: Path, *, mode: int, uid: int | None = None, gid: int | None = None) -> None:
        """Make a folder, its parents 0755; one behind a link gets mode and owner. Raises HostError."""
        ...

    def link(self, path: Path, target: str) -> None:
        """Put a symbolic link in place at once. Raises HostError."""
        ...

    def touch(self, path: Path) -> None:
        """Make a file's modification time now. Raises HostError."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file, a link or an empty folder; nothing there is fine. Raises HostError."""
        ...


_FRESH: Final = ".gsub-"
_LEFT: Final = re.compile(r"\..*gsub-[a-z0-9_]{8}")
_SBIN: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def sweep(host: Host, folder: Path) -> None:
    """Remove what a writer that was killed left in a folder: files under the names that `write` and `link` use before a
    file is whole. Nobody else may be writing there. Raises HostError.
    """
    for name in host.names(folder):
        path = folder / name
        found = host.stat(path) if _LEFT.fullmatch(name) else None
        if found is not None and found.uid == host.euid():
            if found.kind == "folder":
                host.remove(path / "link")
            host.remove(path)


class LocalHost:
    """This machine."""

    @property
    def name(self) -> str:
        """Host name up to the first dot."""
        return socket.gethostname().split(".")[0]

    def euid(self) -> int:
        """Our effective uid."""
        return os.geteuid()

    def read(self, path: Path) -> bytes | None:
        """See `Host.read`."""
        try:
            # Not blocking: a FIFO in the place of a file must hold nobody up.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise HostError(f"{path}: {error.strerror}") from error
        if not stat_.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)  # fdopen takes no folder, and leaves it open
            raise HostError(f"{path}: it is no regular file")
        with os.fdopen(descriptor, "rb") as file:
            try:
                content = file.read(MOST_BYTES + 1)
            except OSError as error:
                raise HostError(f"{path}: {error.strerror}") from error
        if len(content) > MOST_BYTES:
            raise HostError(f"{path}: it is bigger than {MOST_BYTES >> 20} MiB")
        return content

    def stat(self, path: Path) -> Stat | None:
        """See `Host.stat`."""
        try:
            found = path.lstat()
            target = str(path.readlink()) if stat_.S_ISLNK(found.st_mode) else ""
        except OSError:
            return None
        kinds: dict[int, FileKind] = {
            stat_.S_IFREG: "file",
            stat_.S_IFDIR: "folder",
            stat_.S_IFLNK: "link",
            stat_.S_IFSOCK: "socket",
        }
        kind = kinds.get(stat_.S_IFMT(found.st_mode), "other")
        mode = stat_.S_IMODE(found.st_mode)
        return Stat(kind, mode, found.st_uid, found.st_gid, found.st_size, found.st_mtime, target)

    def names(self, folder: Path) -> tuple[str, ...]:
        """See `Host.names`."""
        try:
            return tuple(sorted(entry.name for entry in folder.iterdir()))
        except OSError:
            return ()

    def usage(self, path: Path) -> Usage | None:
        """See `Host.usage`."""
        try:
            found = os.statvfs(path)
        except OSError:
            return None
        block = found.f_frsize
        return Usage(found.f_blocks * block, found.f_bfree * block, found.f_files, found.f_ffree)

    def which(self, command: str) -> str | None:
        """See `Host.which`."""
        return shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN]))

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 20.0,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Ran:
        """See `Host.run`."""
        program = self.which(argv[0])
        if program is None:
            return Ran(None, why=f"{argv[0]} is not on this machine")
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except OSError as error:
            return Ran(None, why=f"{argv[0]} cannot be started: {error.strerror}")
        try:
            out, err = process.communicate(stdin.encode(), timeout=timeout)
        except subprocess.TimeoutExpired:
            return Ran(None, why=f"{argv[0]} did not answer in {timeout:g} s")
        finally:
            _end(process)
        return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def uid(self, user: str) -> int | None:
        """See `Host.uid`."""
        try:
            return pwd.getpwnam(user).pw_uid
        except KeyError:
            return None

    def user(self, uid: int) -> str | None:
        """See `Host.user`."""
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return None

    def groups(self, user: str) -> tuple[str, ...]:
        """See `Host.groups`."""
        try:
            entry = pwd.getpwnam(user)
            numbers = os.getgrouplist(user, entry.pw_gid)
        except (KeyError, OSError):
            return ()
        names = []
        for number in numbers:
            try:
                names.append(grp.getgrgid(number).gr_name)
            except KeyError:
                names.append(str(number))
        return tuple(names)

    def write(
        self, path: Path, content: bytes, *, mode: int, uid: int | None = None, gid: int | None = None
    ) -> None:
        """See `Host.write`."""
        try:
            place = path.resolve()
            descriptor, fresh = tempfile.mkstemp(prefix=f".{place.name}{_FRESH}", dir=place.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    if uid is not None or gid is not None:
                        os.fchown(descriptor, -1 if uid is None else uid, -1 if gid is None else gid)
                    os.fchmod(descriptor, mode)
                    file.flush()
                    os.fsync(descriptor)
                Path(fresh).replace(place)
            except BaseException:
                Path(fresh).unlink(missing_ok=True)
                raise
            _sync(place.parent)
        except (OSError, RuntimeError) as error:
            raise HostError(f"{path}: {getattr(error, 'strerror', None) or error}") from error

    def make_folder(self, path: Path, *, mode: int, uid: int | None = None, gid: int | None = None) -> None:
        """See `Host.make_folder`."""
        try:
            for parent in reversed(path.parents):
                if not parent.is_dir():
                    parent.mkdir()
                    parent.chmod(0o755)
            path.mkdir(0o700, exist_ok=True)
            # One folder is given both, also where a link leads to it.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if uid is not None or gid is not None:
                    os.fchown(descriptor, -1 if uid is None else uid, -1 if gid is None else gid)
                os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HostError(f"{path}: {error.strerror}") from error

    def link(self, path: Path, target: str) -> None:
        """See `Host.link`."""
        try:
            # A folder of its own gives the new link a name that nobody can foresee.
            with tempfile.TemporaryDirectory(prefix=_FRESH, dir=path.parent) as folder:
                fresh = Path(folder) / "link"
                fresh.symlink_to(target)
                fresh.replace(path)
            _sync(path.parent)
        except OSError as error:
            raise HostError(f"{path}: {error.strerror}") from error

    def touch(self, path: Path) -> None:
        """See `Host.touch`."""
        try:
            os.utime(path)
        except OSError as error:
            raise HostError(f"{path}: {error.strerror}") from error

    def remove(self, path: Path) -> None:
        """See `Host.remove`."""
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise HostError(f"{path}: {error.strerror}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a command and its children, and wait for it: all of it is one session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    # One that stays is in the kernel, on a file server that hangs: not to be waited for.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
