"""What a smoke run writes is kept apart where the kernel lets an ordinary user do that: an overlay over its folder.

In a user and mount namespace of the script's own (unshare(2)), overlayfs lies over the folder in which the job begins
and over the writable folders that its script names: reads go through, writes go into our private folder, and are gone
with it. It takes Linux 5.11 and a site that allows user namespaces. Only processes below the script are in it, and
steps that `gsub.smoke.steps` has led there: containers and other hosts would see the folder without what the script
wrote, so a script that uses these runs without an overlay.
"""

# ruff: noqa: PTH112, PTH116, PTH118 - os functions, as in C

from __future__ import annotations

import ctypes
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

__all__ = ["OUTSIDE", "NoOverlayError", "Overlay", "laid", "outside", "places"]

OUTSIDE: Final = re.compile(
    r"(?<![\w./-])(?:[\w./-]*/)?(srun|sbatch|salloc|sbcast|mpirun|mpiexec(?:\.\w+)?|orterun|prun|prterun|jsrun|aprun|"
    r"ibrun|flux|ssh|pdsh|clush|pbsdsh|docker|podman|apptainer|singularity|enroot|ch-run|shifter|sarus|udocker|nerdctl|"
    r"sudo|su|sg|newgrp|unshare|horovodrun|ray|sshfs|fusermount3?|s3fs|gcsfuse|goofys|mount-s3|squashfuse|ratarmount)"
    r"(?![\w=/.-])"
)
"""Programs that start others elsewhere, or want namespaces of their own."""
_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000
_ODD: Final = re.compile(r"[,:\\\"\n]")  # what would have to be escaped in options of mounts
_MOST: Final = 20 << 30  # bytes that may be written apart
_LEAST_FREE: Final = 2 << 30
_ROOTS: Final = 8
_MOST_NAMED: Final = 2000
_PATH: Final = re.compile(r"(?<![\w/.:])(?:/|~/|\$\{?[A-Z_]{2,64}\}?/)[\w.+@%${}/-]{1,400}")
_SYSTEM: Final = (
    "/usr",
    "/etc",
    "/opt",
    "/bin",
    "/lib",
    "/sbin",
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/var/spool",
    "/boot",
)
_LOOKED_AT: Final = 5000  # entries whose owner is looked at
_FOREIGN: Final = 0.05  # of the entries, that may be another group's
_SECONDS: Final = 0.5
_PATIENCE: Final = 10.0  # seconds for the probe


class NoOverlayError(Exception):
    """Why nothing can be kept apart: the end of a sentence."""


@dataclass(slots=True)
class Overlay:
    """Folders that are kept apart: `roots` are they, `base` is where what is written goes."""

    roots: tuple[str, ...]
    base: Path
    limit: int
    free: int
    binds: tuple[tuple[str, str], ...] = ()
    """Files that lie over others, in this order: (source, target)."""
    names: frozenset[str] = frozenset()
    _libc: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None, use_errno=True))

    def enter(self, cwd: str) -> Callable[[], None]:
        """What the child does before it becomes the script. Raises OSError there."""
        uid, gid, root = os.getuid(), os.getgid(), os.geteuid() == 0
        mounts = [
            (folder.encode(), self._options(number, root).encode())
            for number, folder in enumerate(self.roots)
        ]

        binds = [(source.encode(), target.encode()) for source, target in self.binds]

        def enter() -> None:
            self._check(self._libc.unshare(_NEWNS if root else _NEWNS | _NEWUSER))
            if not root:
                _put("/proc/self/setgroups", "deny")
                _put("/proc/self/uid_map", f"{uid} {uid} 1")
                _put("/proc/self/gid_map", f"{gid} {gid} 1")
            self._check(self._libc.mount(b"none", b"/", None, _REC | _PRIVATE, None))
            for folder, options in mounts:
                self._check(self._libc.mount(b"overlay", folder, b"overlay", 0, options))
            for source, target in binds:
                self._check(self._libc.mount(source, target, None, _BIND, None))
            os.chdir(cwd)  # the folder that was entered before lies below the overlay

        return enter

    def _options(self, number: int, root: bool) -> str:
        upper, work = self.base / f"upper{number}", self.base / f"work{number}"
        options = f"lowerdir={self.roots[number]},upperdir={upper},workdir={work}"
        return options if root else f"{options},userxattr"

    @staticmethod
    def _check(code: int) -> None:
        if code:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def make(self) -> None:
        """Make the folders below `base`. Raises OSError."""
        for number, root in enumerate(self.roots):
            mode = stat.S_IMODE(os.stat(root).st_mode)
            for name in (f"upper{number}", f"work{number}"):
                (self.base / name).mkdir(mode=0o700)
            # what is laid over a folder gives it its rights
            (self.base / f"upper{number}").chmod(mode)

    def works(self, cwd: str) -> bool:
        """Whether it can be laid, and lets a file be made and removed: tried in a child."""
        enter = self.enter(cwd)
        name = f".gsub-smoke-{os.getpid()}"
        pid = os.fork()
        if not pid:
            code = 1
            with suppress(BaseException):
                enter()
                for root in self.roots:
                    descriptor = os.open(
                        os.path.join(root, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600
                    )
                    os.close(descriptor)
                    os.unlink(os.path.join(root, name))  # noqa: PTH108
                code = 0
            os._exit(code)
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left = any(os.path.lexists(os.path.join(root, name)) for root in self.roots)
                return status == 0 and not left
            time.sleep(0.005)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return False

    @property
    def too_much(self) -> bool:
        """Whether more was written than may be: the disk is that of other jobs, too."""
        return self.free - _free(self.base) > self.limit

    def covers(self, path: str) -> bool:
        """Whether a file of this path is kept apart."""
        return any(path == root or path.startswith(root.rstrip("/") + "/") for root in self.roots)

    def changed(self, most: int = 20_000) -> Iterator[str]:
        """The files that were written, made or removed, as the script knows them."""
        for number, root in enumerate(self.roots):
            upper = str(self.base / f"upper{number}")
            for folder, folders, files in os.walk(upper):
                place = root.rstrip("/") + folder[len(upper) :]
                if not folders and not files and folder != upper:
                    yield place + "/"
                for name in files:
                    yield f"{place}/{name}"
                    most -= 1
                    if most < 0:
                        return

    def remove(self) -> None:
        """Away with all of it."""
        for number in range(len(self.roots)):
            # the kernel's own folder in there may not even be looked into
            with suppress(OSError):
                (self.base / f"work{number}" / "work").chmod(0o700)
            for name in (f"upper{number}", f"work{number}"):
                shutil.rmtree(self.base / name, ignore_errors=True)


def _put(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def laid(cwd: str, others: Sequence[str], base: Path, binds: tuple[tuple[str, str], ...] = ()) -> Overlay:
    """An overlay over a folder, and over those of others that can have one. Raises NoOverlayError for the folder.

    `binds`: files that are to lie over others in there, too: (source, target).
    """
    base.mkdir(mode=0o700, exist_ok=True)
    folder = os.path.realpath(cwd)
    why = _unfit(folder, base)
    if why:
        raise NoOverlayError(why)
    roots = [folder]
    for other in others:
        path = os.path.realpath(other)
        apart = not any(_nested(path, root) for root in roots)
        if len(roots) < _ROOTS and apart and not _unfit(path, base):
            roots.append(path)
    free = _free(base)
    if free < _LEAST_FREE:
        raise NoOverlayError("there is too little room for temporary files")
    for chosen in (tuple(roots), (folder,)):
        overlay = Overlay(chosen, base, min(_MOST, free // 4), free, binds)
        try:
            overlay.make()
            works = overlay.works(cwd)
        except OSError:
            works = False
        if works:
            return overlay
        overlay.remove()
        if len(roots) == 1:
            break
    raise NoOverlayError("this machine does not let a user lay an overlay")


def places(words: Iterable[str], texts: Iterable[str], cwd: str, environ: Mapping[str, str]) -> list[str]:
    """Folders outside of `cwd` that scripts may write to: that words or texts name, or the nearest ones that are there.

    Variables are taken from `environ`; what comes behind one that is not known is left off. Never the home folder
    or what `cwd` lies in: the caches in there are to outlive the run.
    """
    found: dict[str, None] = {}
    named = [word.partition("=")[2] if word.startswith("-") else word for word in words]
    for text in texts:
        named += _PATH.findall(text)
    home = environ.get("HOME", "/")
    with suppress(OSError), os.scandir(cwd) as entries:  # checkpoints -> /scratch/ada/checkpoints
        named += [entry.path for entry in islice(entries, _MOST_NAMED) if entry.is_symlink()]
    for word in dict.fromkeys(named[-_MOST_NAMED:]):
        path = os.path.realpath(os.path.join(cwd, _expanded(word, environ)))
        while path.count("/") > 1 and not os.path.isdir(path):
            path = os.path.dirname(path)  # noqa: PTH120
        own = path.count("/") > 1 and not path.startswith(_SYSTEM) and os.access(path, os.W_OK | os.X_OK)
        if own and not any(_above(path, one) for one in (cwd, home)) and not _above(cwd, path):
            found[path] = None
    return [path for path in found if not any(_above(one, path) and one != path for one in found)]


def _expanded(word: str, environ: Mapping[str, str]) -> str:
    """A path with its variables; cut off ahead of one that nobody knows.

    >>> _expanded("${SCRATCH}/runs/$SLURM_JOB_ID/x", {"SCRATCH": "/scratch/ada"})
    '/scratch/ada/runs/'
    """
    done = ""
    if word.startswith("~/"):
        word = "$HOME" + word[1:]
    for piece in re.split(r"(\$\{\w+\}|\$\w+)", word):
        if not piece.startswith("$"):
            done += piece
        elif value := environ.get(piece.strip("${}"), ""):
            done += value
        else:
            return done.rpartition("/")[0] + "/"
    return done


def _above(path: str, other: str) -> bool:
    """Whether a path is another one, or that lies below it."""
    return other == path or other.startswith(path.rstrip("/") + "/")


def _nested(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/") or root.startswith(path.rstrip("/") + "/")


def _unfit(folder: str, base: Path) -> str:
    """Why a folder cannot be laid over; "" where nothing speaks against it."""
    if folder.count("/") < 2 or _ODD.search(folder) or _ODD.search(str(base)):
        return "its folder has a name that cannot be laid over"
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot write into its folder anyway"
    if _nested(os.path.realpath(base), folder):
        return "temporary files lie in the same folder"
    if any(place.startswith(folder.rstrip("/") + "/") for place in _mounted()):
        return "other file systems are mounted below its folder"
    if _foreign(folder):
        return "files of other groups lie below its folder"
    return ""


def _mounted() -> Iterable[str]:
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) > 4:
                yield fields[4].replace("\\040", " ")


def _foreign(folder: str) -> bool:
    """Whether the run may well have to write to what belongs to a group or user that its namespace does not have.

    There only the user and the user's own group exist: of a shared project's files writing is refused (EOVERFLOW). A
    few such files among many are no reason: a run that meets them is inconclusive.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        return False  # root needs no user namespace
    found = os.stat(folder)
    if (found.st_uid, found.st_gid) != (uid, gid):
        return True
    groups = {*os.getgroups(), gid}
    until = time.monotonic() + _SECONDS
    own = foreign = 0
    ahead = [folder]
    while ahead and own + foreign < _LOOKED_AT and time.monotonic() < until:
        with suppress(OSError), os.scandir(ahead.pop()) as entries:
            for entry in islice(entries, _LOOKED_AT):
                with suppress(OSError):
                    one = entry.stat(follow_symlinks=False)
                    mine = one.st_uid == uid
                    shared = one.st_mode & 0o020 and one.st_gid in groups
                    if (mine and one.st_gid != gid) or (not mine and shared):
                        foreign += 1
                    else:
                        own += 1
                    if mine and stat.S_ISDIR(one.st_mode):
                        ahead.append(entry.path)
    return foreign > _FOREIGN * (own + foreign)


def _free(path: Path) -> int:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize
    return 0


def outside(texts: Iterable[str], *, but: str = "") -> str:
    """The first program that these scripts start outside of their own processes; "" where there is none.

    `but`: a program that may be among them.

    >>> outside(["# srun is not used\\npython train.py\\n"]), outside(["exec /usr/bin/srun -n 2 python train.py"])
    ('', 'srun')
    """
    for text in texts:
        for line in text.splitlines():
            words = line.partition(" #")[0] if not line.lstrip().startswith("#") else ""
            for found in OUTSIDE.finditer(words):
                if found[1] != but:
                    return found[1]
    return ""
