"""What ordinary runs stepped, on its way to the curves: one point for each run that has ended.

The processes of a job that gsub submitted (`gsub.announcing`) tell once a minute how fast they step. `gather` makes
points of the runs that are over, for `gsub.points.deliver_kept` to send: at the user's next gsub command, so that a run
counts however it ended.

All that lies in the folder is its user's word, and read with bounds.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import stat
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from gsub.announcing import MARK, TOLD, is_own

if TYPE_CHECKING:
    from profiler.points import Measured
    from profiler.step_counter import Entry
    from site_configs.site_model import Site

__all__ = ["Mark", "drop_marks", "gather"]

_SILENT: Final = 90.0  # seconds after which a process that told nothing may have ended: it tells once in 60
_AT_ONCE: Final = 5  # runs that one command looks after
_SECONDS: Final = 2.0  # and for how long
_MOST: Final = 128 * 1024  # bytes of a file
_PROCESSES: Final = 256
_ENTRY: Final = struct.Struct("=QdQ")  # the layout is that of gsub/train.py
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_UNDER_WAY: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "RESIZING", "SIGNALING"})
_TYPE: Final = r"(?P<type>[A-Za-z][A-Za-z0-9_.-]*|[0-9][0-9a-z]*\.[A-Za-z0-9_.-]+)"
_TYPES: Final = (
    re.compile(rf"\bGRES=\S*?\bgpu:{_TYPE}:\d+\("),
    re.compile(rf"\bgres/gpu:{_TYPE}="),
    re.compile(rf"\bgres[:/]gpu:{_TYPE}(?::\d|\b)"),
)
_MACHINE: Final = 1 << 16


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that gsub submitted `at` a time; the names of its workload, the most telling first."""

    job: int
    workload: tuple[str, ...]
    cluster: str = ""
    at: float = 0.0
    v: int = 1


class _Facts(msgspec.Struct, frozen=True):
    """The first line of a process' file."""

    mark: str
    ended: bool = False
    bound: Annotated[tuple[int, ...], Meta(max_length=_MACHINE)] = ()
    machine: int = 0
    environ: dict[str, str] = {}


def gather(state: Path, environ: Mapping[str, str], site: Site) -> Iterator[Measured]:
    """A point for each run that is over, and away with what it told when the next is asked for: it is kept then.

    Quick where there is nothing. Raises OSError.
    """
    folder = state / "runs" / site.cluster
    if not folder.exists() or not is_own(folder):
        return
    groups: dict[tuple[int, int], list[os.DirEntry[str]]] = {}
    with os.scandir(folder) as found:
        for entry in found:
            match = TOLD.fullmatch(entry.name)
            if match is not None and match[3] is None:
                groups.setdefault((int(match[1]), int(match[2])), []).append(entry)
    if not groups:
        return
    until = time.monotonic() + _SECONDS
    count = 0
    now = _clock(folder)
    # In any order: jobs that run on must not stand before those that have ended
    for (job, restarts), entries in random.sample(list(groups.items()), len(groups)):
        if count >= _AT_ONCE or time.monotonic() >= until:
            break
        told = [one for entry in entries[:_PROCESSES] if (one := _read(entry)) is not None]
        if told and not all(facts.ended or now - at > _SILENT for facts, _, at in told):
            continue
        mark = _mark_of(folder, told)
        if mark is not None:
            over, kind = _standing(job, restarts, environ, site, told[0][0].environ)
            if not over:
                continue
            point = None if kind is None else _point(job, restarts, told, mark, kind)
            if point is not None:
                count += 1
                yield point
        for entry in entries:
            Path(entry.path).unlink(missing_ok=True)


def drop_marks(folder: Path, name: str) -> None:
    """Remove the marks of a workload by one of its names: what its runs told and tell is no point. Raises OSError."""
    if folder.exists() and is_own(folder):
        for path in folder.iterdir():
            if MARK.fullmatch(path.name):
                with suppress(msgspec.MsgspecError):
                    if name in msgspec.json.decode(path.read_bytes()[:_MOST], type=Mark).workload:
                        path.unlink(missing_ok=True)


_Told = tuple[_Facts, tuple["Entry", ...], float]
"""What a process told, its entries, and when it told that."""


def _clock(folder: Path) -> float:
    """The time of the file system: its host's clock may go otherwise than ours."""
    path = folder / f".{os.urandom(8).hex()}"
    path.touch(mode=0o600)
    try:
        return path.stat().st_mtime
    finally:
        path.unlink(missing_ok=True)


def _read(entry: os.DirEntry[str]) -> _Told | None:
    from profiler.step_counter import Entry

    try:
        descriptor = os.open(entry.path, _FLAGS)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            return None
        head, _, body = file.read(_MOST).partition(b"\n")
    try:
        facts = msgspec.json.decode(head, type=_Facts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    whole = body[: len(body) // _ENTRY.size * _ENTRY.size]
    entries: list[Entry] = []
    for steps, samples, at in _ENTRY.iter_unpack(whole):
        if entries and (steps <= entries[-1].steps or at / 1e9 <= entries[-1].at):
            break
        entries.append(Entry(at / 1e9, steps, samples))
    return facts, tuple(entries), about.st_mtime


def _mark_of(folder: Path, told: Sequence[_Told]) -> Mark | None:
    """The mark that all its processes name."""
    names = {facts.mark for facts, _, _ in told}
    name = names.pop() if len(names) == 1 else ""
    if not MARK.fullmatch(name):
        return None
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / name).read_bytes()[:_MOST], type=Mark)
    return None


def _standing(
    job: int, restarts: int, environ: Mapping[str, str], site: Site | None, theirs: Mapping[str, str]
) -> tuple[bool, str | None]:
    """Whether that run is over, and the type of its GPUs; Slurm is asked, and does not know it for ever.

    None: nobody can tell which it had.
    """
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.runner import Runner

    runner = Runner(_slurm(environ, site), timeout=_SECONDS)
    try:
        done = runner.read(["scontrol", "show", "job", "--details", str(job)])
    except (SlurmError, OSError):
        return False, ""
    text = done.stdout
    state = re.search(r"\bJobState=([A-Z_]+)", text)
    count = re.search(r"\bRestarts=(\d+)", text)
    if state is None and "Invalid job id" not in done.stderr:
        return False, ""
    if state is not None and state[1] in _UNDER_WAY and (count is None or int(count[1]) <= restarts):
        return False, ""
    declared = None if site is None else site.partitions.get(theirs.get("SLURM_JOB_PARTITION", ""))
    if count is not None and int(count[1]) > restarts:
        # Slurm tells of the attempt that followed, which may have been given others
        return True, declared.gpu_type or None if declared is not None else None
    kind = _kind(text)
    if kind is None:
        with suppress(SlurmError, OSError):
            words = ["sacct", "-n", "-P", "-X", "-j", str(job), "-o", "AllocTRES"]
            kind = _kind(runner.read(words, daemon="slurmdbd").stdout)
    return True, kind if kind is not None else declared.gpu_type if declared is not None else ""


def _slurm(environ: Mapping[str, str], site: Site | None) -> dict[str, str]:
    """Variables for Slurm's commands, which may lie where the site file says."""
    found = dict(environ)
    if site is not None and site.slurm.conf:
        found.setdefault("SLURM_CONF", site.slurm.conf)
    if site is not None and site.slurm.bin:
        found["PATH"] = os.pathsep.join((site.slurm.bin, found.get("PATH", os.defpath)))
    return found


def _kind(text: str) -> str | None:
    """The one type of GPU that Slurm's words name; None where they name none, or several."""
    for pattern in _TYPES:
        found = {match["type"] for match in pattern.finditer(text)}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _point(job: int, restarts: int, told: Sequence[_Told], mark: Mark, kind: str) -> Measured | None:
    from gsub.learning import gpus_here
    from profiler.curves import Point
    from profiler.ordinary import steady
    from profiler.points import Measured, checked

    at = min(max(at for _, _, at in told), time.time())
    seconds = max((entries[-1].at - entries[0].at for _, entries, _ in told if entries), default=0.0)
    key = hashlib.sha256(f"{mark.cluster} {mark.at} {job} {restarts}".encode()).hexdigest()[:32]
    if _side_by_side(told):
        return None
    try:
        speed = steady([entries for _, entries, _ in told])
        cpus = _cpus([facts for facts, _, _ in told])
        if speed is None or cpus < 1:
            return None
        more: dict[str, Any] = {"cluster": mark.cluster, "gpu_type": kind, "cap": cpus, "restarts": restarts}
        point = Point(cpus, speed.rate, speed.error, speed.steps, seconds, at)
        gpus = gpus_here(told[0][0].environ)
        made = Measured(key, at, "run", mark.workload, gpus=gpus, points=(point,), job=job, **more)
        return checked(msgspec.json.decode(msgspec.json.encode(made), type=Measured), time.time())
    except (ValueError, ArithmeticError, msgspec.MsgspecError):
        return None


def _side_by_side(told: Sequence[_Told]) -> bool:
    """Whether steps of the job ran at the same time: several trainings, on some of its CPUs and GPUs each."""
    spans: dict[str, tuple[float, float]] = {}
    for facts, entries, _ in told:
        if entries:
            step = facts.environ.get("SLURM_STEP_ID", "")
            first, last = spans.get(step, (entries[0].at, entries[-1].at))
            spans[step] = min(first, entries[0].at), max(last, entries[-1].at)
    ordered = sorted(spans.values())
    return any(after[0] < before[1] for before, after in pairwise(ordered))


def _cpus(told: Sequence[_Facts]) -> int:
    """The CPUs that a run was given on its node: Slurm's count, or those that its processes are bound to, if fewer.

    >>> _cpus([_Facts("1.json", environ={"SLURM_CPUS_ON_NODE": "8"}, bound=(0, 1), machine=2)])
    8
    >>> _cpus([_Facts("1.json", environ={"SLURM_CPUS_ON_NODE": "8"}, bound=(n, n + 8), machine=64) for n in (0, 1)])
    4
    """
    bound = {cpu for facts in told for cpu in facts.bound}
    texts = [facts.environ.get("SLURM_CPUS_ON_NODE", "") for facts in told]
    counts = [int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 6]
    most = max(counts, default=0)
    if not most:
        return len(bound)
    # Bound to all of the machine is not bound
    return min(most, len(bound)) if 0 < len(bound) < max(facts.machine for facts in told) else most
