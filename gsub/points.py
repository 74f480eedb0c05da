"""What a run measured, sent to gsub's service as the user; or kept until it can be.

print(deliver(measured))        # "what was measured is with gsub's service"

A node may have no way to the service, and a service may be away: then the file waits in the user's folder of state,
and a later gsub command on a host with a service sends it (`deliver_kept`). Nothing here raises.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profiler.whole_file import put

if TYPE_CHECKING:
    from profiler.points import Measured
    from site_configs.site_model import Site

__all__ = ["deliver", "deliver_kept", "drop_kept", "gpu_type"]

_SECONDS: Final = 10.0
"""At the end of a run, which took minutes: a busy service is waited for."""
_KEPT_SECONDS: Final = 2.0
"""For all that is kept: a command that does something else waits for it."""
_FILES: Final = 64
_AT_ONCE: Final = 10
_AGE: Final = 60 * 86400.0
_AGAIN: Final = 600.0
"""Seconds until a service that did not answer is asked again."""
_TRIED: Final = ".tried"
_NAME: Final = re.compile(r"[0-9a-f]{32}\.json")
_FOR_GOOD: Final = frozenset({400, 403, 413, 415})
_GRES: Final = re.compile(
    r"\bGRES=\S*?\bgpu(?::([A-Za-z][A-Za-z0-9_.-]*|[0-9][0-9a-z]*\.[A-Za-z0-9_.-]+))?:\d+\("
)


def deliver(measured: Measured, environ: Mapping[str, str] = os.environ) -> str:
    """Send it, or keep it; what became of it in a sentence. Takes some seconds at most, and never raises."""
    try:
        import msgspec

        if not measured.cluster:
            measured = msgspec.structs.replace(measured, cluster=environ.get("SLURM_CLUSTER_NAME", "")[:64])
        data = msgspec.json.encode(measured)
        done, said = _send(_site(environ), data, time.monotonic() + _SECONDS)
        if done:
            return said
        kept = _keep(measured.id, data, environ)
    except Exception as error:  # what a run learnt is not worth the run
        return f"what was measured is lost: {type(error).__name__}"
    return f"{said}: {kept}"


def deliver_kept(environ: Mapping[str, str] = os.environ, site: Site | None = None) -> int:
    """Send what earlier runs left behind; how many are gone from there. Quick where there is nothing."""
    with suppress(Exception):
        _gather(environ, site)
    try:
        folder = _folder(environ, make=False)
        if folder is None:
            return 0
        files = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))[:_AT_ONCE]
        if not files or _tried(folder):
            return 0
        return _send_all(files, folder, site or _site(environ))
    except Exception:  # the command is about something else
        return 0


def drop_kept(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Forget what waits here of a workload by one of its names, and have its runs tell no more. Raises OSError."""
    import msgspec

    from gsub.receipts import memory_folder
    from gsub.runs import drop_marks
    from profiler.points import Measured

    state, folder, site = memory_folder(environ), _folder(environ, make=False), _site(environ)
    if state is not None and site is not None:
        drop_marks(state / "runs" / site.cluster, name)
    for path in folder.iterdir() if folder is not None else ():
        if _NAME.fullmatch(path.name):
            with suppress(msgspec.MsgspecError):
                if name in msgspec.json.decode(path.read_bytes(), type=Measured).workload:
                    path.unlink(missing_ok=True)


def _gather(environ: Mapping[str, str], site: Site | None) -> None:
    """Keep a point of each ordinary run that has ended since. Raises OSError and more."""
    from gsub.announcing import any_told
    from gsub.receipts import memory_folder

    state = memory_folder(environ)
    if state is None or not any_told(state / "runs"):
        return
    import msgspec

    from gsub.runs import gather

    found = site or _site(environ)
    for measured in gather(state, environ, found) if found is not None else ():
        _keep(measured.id, msgspec.json.encode(measured), environ)


def _send_all(files: list[Path], folder: Path, site: Site | None) -> int:
    import msgspec

    from profiler.points import Measured

    until, gone = time.monotonic() + _KEPT_SECONDS, 0
    for path in files:
        if time.time() - path.lstat().st_mtime <= _AGE and not path.is_symlink():
            if time.monotonic() >= until:
                break
            data = path.read_bytes()
            with suppress(msgspec.MsgspecError):
                if site is not None and msgspec.json.decode(data, type=Measured).cluster not in {
                    "",
                    site.cluster,
                }:
                    continue  # a home may belong to several clusters
            if not _send(site, data, until)[0]:
                (folder / _TRIED).touch(mode=0o600)
                break
        path.unlink(missing_ok=True)
        gone += 1
    return gone


def gpu_type(environ: Mapping[str, str] = os.environ) -> str:
    """Inside a job: the type of its GPUs, as decisions know it; empty where there is none, or nobody tells.

    That is Slurm's (Gres); where it names none, the one that the site file has for the job's partition.
    """
    job = environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"[0-9]{1,10}", job):
        return ""
    from slurm_plugins.client.errors import SlurmError
    from slurm_plugins.client.runner import Runner

    found = set()
    with suppress(SlurmError, OSError):
        done = Runner(environ, timeout=_SECONDS).read(["scontrol", "show", "job", "--details", job])
        found = {match[1] or "" for match in _GRES.finditer(done.stdout)}
    if len(found) > 1:
        return ""
    site = _site(environ) if found in (set(), {""}) else None
    declared = site.partitions.get(environ.get("SLURM_JOB_PARTITION", "")) if site is not None else None
    return declared.gpu_type if declared is not None else next(iter(found), "")


def _site(environ: Mapping[str, str]) -> Site | None:
    from gsub.errors import UserError
    from gsub.site import read_site

    try:
        return read_site(environ)
    except UserError:
        return None


def _send(site: Site | None, data: bytes, until: float) -> tuple[bool, str]:
    """Whether it is settled, sent or refused for good; and what is to be said."""
    if site is None or not site.service.url:
        return False, "this host knows of no gsub service"
    import msgspec

    from gsub.term import one_line
    from profiler.answers import Problem
    from profiler.munge import Munge
    from profiler.sealed import Service, ServiceError, believed

    seconds = max(until - time.monotonic(), 0.2)
    service = Service(site.service.url, Munge(site.slurm.munge_socket), believed(site.service.user), seconds)
    try:
        answer = service.ask("POST", "/v1/points", data)
    except ServiceError as error:
        return False, f"gsub's service did not take what was measured ({error.reason})"
    if answer.status == 200:
        return True, "what was measured is with gsub's service"
    try:
        why = msgspec.json.decode(answer.body, type=Problem).error
    except msgspec.MsgspecError:
        why = f"status {answer.status}"
    return answer.status in _FOR_GOOD, one_line(f"gsub's service refuses what was measured: {why}")


def _folder(environ: Mapping[str, str], *, make: bool) -> Path | None:
    from gsub.receipts import memory_folder

    state = memory_folder(environ)
    if state is None:
        return None
    folder = state / "points"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
    there = folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid()
    return folder if there else None


def _tried(folder: Path) -> bool:
    with suppress(OSError):
        return time.time() - (folder / _TRIED).stat().st_mtime < _AGAIN
    return False


def _keep(key: str, data: bytes, environ: Mapping[str, str]) -> str:
    folder = _folder(environ, make=True)
    if folder is None:
        return "it is lost, since there is no folder to keep it in"
    kept = sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_age)
    for path in kept[: max(len(kept) - _FILES + 1, 0)]:
        path.unlink(missing_ok=True)
    put(folder / f"{key}.json", data)
    return "it is kept, and sent by your next gsub command that can"


def _age(path: Path) -> float:
    return path.lstat().st_mtime
