"""Takes in what Slurm's hooks left: one small file for each prolog and epilog, made of NUL-terminated ``KEY=value``.

    GSUB_HOOK=1  EVENT=prolog  BOOT=<boot id>  SLURM_JOB_ID=17 ...  END=1

The file's name is ``<event>.<job id>.<restart count>.<pid>``, its mtime the time of the event. What was empty in the
hook is absent here. A file without END was cut off (no room on the disk, a shell that was killed): after a while it
is taken for what can be read of it, which by its name is at least that the event happened.

Nothing in a file is trusted to be of any shape: users choose paths and names, and these may hold any byte but NUL.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from profiler.records import LAST_JOB_ID, GpuRef, JobEnded, JobRef, JobStarted, new_id
from prolog_epilog.agent.own_folder import own_folder

__all__ = ["HookFile", "Intake", "UnfitError", "WaitError", "ended", "exit_of", "parse", "started"]

Event: TypeAlias = Literal["prolog", "epilog"]

VERSION: Final = "1"
_NAME = re.compile(r"(prolog|epilog)\.(\d{1,10})\.(\d{1,7})\.\d{1,10}")
_MAX_BYTES = 4 << 20  # an environment of Linux has 128 KiB a variable
_SET_ASIDE = 100  # files at most that are kept for a look at what was wrong with them
_ORDER: Final = {"prolog": 0, "epilog": 1}
_GPU_KEYS: Final = ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class UnfitError(Exception):
    """A file that will never be understood; the message says why."""


class WaitError(Exception):
    """A file that is not whole yet."""


@dataclass(frozen=True, slots=True)
class HookFile:
    """What one hook said. `at` is in seconds since the epoch; `boot` is "" where the hook could not tell.

    `job` has the restart count as the hook saw it, 0 where Slurm did not tell (`counted` is then False).
    `whole` is False for what is left of a file that was cut off.
    """

    path: Path
    event: Event
    at: float
    job: JobRef
    env: Mapping[str, str]
    boot: str = ""
    counted: bool = True
    whole: bool = True

    @property
    def gpu_env(self) -> dict[str, str]:
        """The variables that say which GPUs the job got."""
        return {key: self.env[key] for key in _GPU_KEYS if key in self.env}


def parse(path: Path, data: bytes, at: float, *, patient: bool = True) -> HookFile:
    """Read a hook's file. Raises UnfitError; WaitError for one that is not whole, if `patient`."""
    name = _NAME.fullmatch(path.name)
    if name is None:
        raise UnfitError("its name is none that a hook gives")
    whole = data.endswith(b"\0END=1\0")
    if not whole and patient:
        raise WaitError
    env: dict[str, str] = {}
    # What follows the last NUL of a file that was cut off is half a value
    for entry in data.split(b"\0")[:-1]:
        key, equals, value = entry.partition(b"=")
        if equals and value:
            env.setdefault(_text(key), _text(value))
    version = env.get("GSUB_HOOK", VERSION if not whole else "")
    if version != VERSION:
        raise UnfitError(f"it is of version {version[:20]!r}, and this agent reads {VERSION!r}")
    event: Event = "prolog" if name[1] == "prolog" else "epilog"
    if env.get("EVENT", event) != event:
        raise UnfitError("its name tells another event than its content")
    job_id = _number(env.get("SLURM_JOB_ID", name[2]), 1, LAST_JOB_ID)
    restarts = _number(env.get("SLURM_JOB_RESTART_COUNT", name[3]), 0, 1 << 20)
    if job_id is None or restarts is None:
        raise UnfitError("it names no job")
    counted = "SLURM_JOB_RESTART_COUNT" in env
    at = min(max(at, 0.0), 4e9)
    return HookFile(path, event, at, JobRef(job_id, restarts), env, env.get("BOOT", ""), counted, whole)


def started(
    hook: HookFile, *, cluster: str, node: str, job: JobRef, gpus: tuple[GpuRef, ...] | None
) -> JobStarted:
    """The record that a prolog's file makes. What does not fit into a record is left out, not cut."""
    env = hook.env
    return JobStarted(
        id=new_id(),
        cluster=cluster,
        node=node,
        at=hook.at,
        job=job,
        uid=_number(env.get("SLURM_JOB_UID"), 0, 2**32 - 1),
        gid=_number(env.get("SLURM_JOB_GID"), 0, 2**32 - 1),
        user=_fitting(env.get("SLURM_JOB_USER"), 256),
        account=_fitting(env.get("SLURM_JOB_ACCOUNT"), 256),
        partition=_fitting(env.get("SLURM_JOB_PARTITION"), 256),
        nodes=_fitting(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST"), 1 << 16),
        gpus=gpus,
        het_job_id=_number(env.get("SLURM_HET_JOB_ID"), 1, 2**32 - 1),
        work_dir=_fitting(env.get("SLURM_JOB_WORK_DIR"), 4096),
        stdout=_fitting(env.get("SLURM_JOB_STDOUT"), 4096),
        stderr=_fitting(env.get("SLURM_JOB_STDERR"), 4096),
    )


def ended(hook: HookFile, *, cluster: str, node: str, job: JobRef) -> JobEnded:
    """The record that an epilog's file makes."""
    code, signal = exit_of(hook.env)
    derived, _ = _wait_status(hook.env.get("SLURM_JOB_DERIVED_EC"))
    return JobEnded(
        id=new_id(),
        cluster=cluster,
        node=node,
        at=hook.at,
        job=job,
        exit_code=code,
        signal=signal,
        derived_exit_code=derived,
    )


def exit_of(env: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Exit code and signal of the batch script, where Slurm tells them: either may be None.

    A job that is cancelled or requeued has 0 here (22.05.8 to 26.05.5): slurmctld asks for its end before the script
    has one. Accounting knows better. SLURM_JOB_EXIT_CODE is what wait(2) gave, SLURM_JOB_EXIT_CODE2 is "code:signal".

    >>> exit_of({"SLURM_JOB_EXIT_CODE": "256"}), exit_of({"SLURM_JOB_EXIT_CODE2": "0:9"})
    ((1, 0), (0, 9))
    """
    raw = _wait_status(env.get("SLURM_JOB_EXIT_CODE"))
    if raw != (None, None):
        return raw
    code, _, signal = env.get("SLURM_JOB_EXIT_CODE2", "").partition(":")
    return _number(code, 0, 255), _number(signal, 0, 127)


class Intake:
    """The folders that the hooks write to. `poison` keeps files that could not be understood.

    A file that is not whole is waited for `patience` seconds, by `clock` (monotonic).
    """

    def __init__(self, folders: Sequence[Path], poison: Path, *, patience: float = 5.0) -> None:
        self.folders = tuple(folders)
        self._poison = poison
        self._patience = patience
        self._torn: dict[Path, float] = {}  # when a file was first seen that was not whole

    def waiting(self, now: float) -> tuple[list[HookFile], list[tuple[Path, str]]]:
        """What hooks said, in the order in which it happened; and files that nobody can use, with why.

        `now` is monotonic. Files that cannot be read at this moment are passed over.
        """
        found: list[HookFile] = []
        unfit: list[tuple[Path, str]] = []
        torn: dict[Path, float] = {}
        for path, content in self._files():
            first = self._torn.get(path, now)
            try:
                data, at = content()
                found.append(parse(path, data, at, patient=now - first < self._patience))
            except WaitError:
                torn[path] = first
            except UnfitError as error:
                unfit.append((path, str(error)))
            except OSError:
                continue
        self._torn = torn
        # Not by restart count: the epilog of an attempt that is requeued bears that of the next one
        found.sort(key=lambda hook: (hook.at, _ORDER[hook.event]))
        return found, unfit

    @property
    def incomplete(self) -> bool:
        """Whether a file is there that was not whole at the last look."""
        return bool(self._torn)

    def done(self, path: Path) -> None:
        """What the file says is kept elsewhere: remove it. Raises OSError."""
        with own_folder(path.parent) as folder, suppress(FileNotFoundError):
            os.unlink(path.name, dir_fd=folder)

    def set_aside(self, path: Path) -> None:
        """Keep a file out of the way, the last hundred of them. Raises OSError."""
        self._poison.mkdir(mode=0o700, exist_ok=True)
        target = self._poison / f"hook-{path.name[:200]}"
        with own_folder(path.parent) as folder:
            try:
                os.replace(path.name, target, src_dir_fd=folder)
            except OSError:  # from one file system to another, or no file at all
                with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
                    os.unlink(path.name, dir_fd=folder)
        kept = sorted(self._poison.glob("hook-*"), key=_changed)
        for old in kept[:-_SET_ASIDE]:
            old.unlink(missing_ok=True)

    def _files(self) -> Iterator[tuple[Path, Callable[[], tuple[bytes, float]]]]:
        """Each file, and how to read it, as long as this goes on."""
        for path in self.folders:
            try:
                with own_folder(path) as folder:
                    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - an open one
                        if not name.startswith("."):
                            yield path / name, partial(_read, name, folder)
            except OSError:
                continue


def _read(name: str, folder: int) -> tuple[bytes, float]:
    """Content and mtime of a plain file of ours in an open folder. Raises OSError, UnfitError."""
    # O_NONBLOCK: a named pipe in its place must not hold us up
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnfitError("it is a symbolic link") from None
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnfitError("it is no plain file")
        if found.st_uid not in (0, os.geteuid()):
            raise UnfitError(f"it belongs to uid {found.st_uid}")
        if found.st_size > _MAX_BYTES:
            raise UnfitError(f"it has {found.st_size} bytes")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES), found.st_mtime
    finally:
        os.close(descriptor)


def _text(value: bytes) -> str:
    r"""Bytes as text that JSON can carry: what is no UTF-8 becomes ``\xff``."""
    return value.decode("utf-8", errors="backslashreplace")


def _fitting(value: str | None, longest: int) -> str:
    return value if value is not None and len(value) <= longest else ""


def _number(text: str | None, least: int, most: int) -> int | None:
    if text is None or not re.fullmatch(r"[0-9]{1,20}", text):
        return None
    number = int(text)
    return number if least <= number <= most else None


def _wait_status(text: str | None) -> tuple[int | None, int | None]:
    """A status of wait(2) as exit code and signal."""
    status = _number(text, 0, 0xFFFF)
    if status is None:
        return None, None
    return status >> 8, status & 0x7F


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
