"""The process in which a rehearsal runs: `python -m slurm_plugins.install.rehearsing`, JSON of a `Task` on stdin, of a
`Told` on stdout.

It starts a slurmctld in a private folder, submits one job to it, ends it and removes the folder. Whoever started it may
die at any moment: then it does the same at once. It opens one port, on the loopback address, and talks to no node, no
slurmdbd and no state but its own; of the site it shares munge, Slurm's plugins and Lua's modules.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from slurm_plugins.install.job_submit import elsewhere

__all__ = ["DEADLINE_S", "Task", "Told"]

DEADLINE_S: Final = 20.0
"""Seconds for all of it; the last third is the job's."""
MOST_LOG: Final = 256 << 10
_NODE: Final = "gsub-rehearsal"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Task:
    """What is rehearsed.

    Parameters
    ----------
    slurmctld: the program; its commands are looked for beside it, then on the PATH.
    user: who runs it; empty: whoever we are.
    lines: of slurm.conf, beside those that make it a controller of its own.
    job_submit: job_submit.lua in base64, None: there is none.
    libexec: where the shim lies.
    shim: the shim's files in base64 by name, where others are rehearsed than those that lie there.
    environment: what slurmctld finds in its environment.
    seconds: for all of it.
    options: of sbatch, beside those of the job that is submitted.
    """

    slurmctld: str
    user: str
    lines: tuple[str, ...]
    job_submit: str | None
    libexec: str
    shim: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    seconds: float = DEADLINE_S
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it.

    Parameters
    ----------
    answered: it came up and answered.
    ended: its exit code if it ended by itself.
    passed: the job was taken, None: none was submitted.
    said: what was said to who submitted.
    log: the end of its log.
    trouble: why there was no rehearsal at all; empty if there was.
    """

    answered: bool = False
    ended: int | None = None
    passed: bool | None = None
    said: str = ""
    log: str = ""
    trouble: str = ""


def rehearsed(task: Task, folder: Path, deadline: float) -> Told:
    """Do it, in a folder that is ours alone; `deadline` on the monotonic clock."""
    who = pwd.getpwnam(task.user) if task.user else pwd.getpwuid(os.geteuid())
    commands = _commands(task.slurmctld)
    with _reserved() as port, _reserved() as node_port:
        pass
    env = {"PATH": _path(task.slurmctld), "LANG": "C.UTF-8", **task.environment}
    env["SLURM_CONF"] = str(folder / "slurm.conf")
    log = folder / "slurmctld.log"
    with contextlib.ExitStack() as stack:
        output = stack.enter_context((folder / "output").open("wb"))
        _write_all(task, folder, who, port, node_port)  # from here on the folder is slurmctld's user's
        process = stack.enter_context(_running([task.slurmctld, "-D"], who, env, output))
        ping = [commands["scontrol"], "ping"]
        answered = False
        while not answered and process.poll() is None and time.monotonic() < deadline - task.seconds / 3:
            if _listens(port):
                answered = b" UP" in _ask(ping, who, env, deadline).stdout
            time.sleep(0.05)
        done = None
        if answered:
            # Held, on a node that is not there: it never starts. With a GPU, so that the shim looks at it.
            job = [
                commands["sbatch"],
                "--hold",
                "--time=1",
                "--gpus=1",
                "--output=/dev/null",
                "--chdir=/",
                *task.options,
                "--wrap=true",
            ]
            done = _ask(job, who, env, deadline)
        ended = process.poll()
    # Before it reads where to log, it says what it has to say where it was started.
    written = next((path for path in (log, folder / "output") if path.exists() and path.stat().st_size), log)
    return Told(
        answered=answered,
        ended=ended,
        passed=None if done is None else done.returncode == 0,
        said="" if done is None else done.stderr.decode(errors="replace").strip(),
        log=_named(written, folder, task.libexec),
    )


def _named(log: Path, folder: Path, libexec: str) -> str:
    """The end of the log, with the files named as they will be."""
    # We may be root, and the folder is another's: no link is followed.
    with os.fdopen(os.open(log, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        text = file.read(MOST_LOG * 16)[-MOST_LOG:].decode(errors="replace")
    return text.replace(f"{folder}/libexec", libexec).replace(f"{folder}/job_submit", "job_submit")


def _write_all(task: Task, folder: Path, who: pwd.struct_passwd, port: int, node_port: int) -> None:
    state = folder / "state"
    state.mkdir(mode=0o700)
    text = base64.b64decode(task.job_submit) if task.job_submit is not None else None
    files: dict[str, bytes] = {f"libexec/{name}": base64.b64decode(body) for name, body in task.shim.items()}
    libexec = folder / "libexec" if files else Path(task.libexec)
    if text is not None:
        files["job_submit.lua"] = elsewhere(text, libexec, folder / "no.sock")
    host = socket.gethostname().split(".")[0]
    lines = [
        "ClusterName=gsub_rehearsal",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={port}",
        "CommunicationParameters=NoCtldInAddrAny",
        f"SlurmUser={who.pw_name}",
        f"StateSaveLocation={state}",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        "SlurmctldDebug=debug",
        f"SlurmdSpoolDir={folder}/spool",
        "MailProg=/bin/true",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=gpu",
        "AccountingStorageType=accounting_storage/none",
        "JobCompType=jobcomp/none",
        *task.lines,
        f"NodeName={_NODE} NodeAddr=127.0.0.1 Port={node_port} CPUs=64 Gres=gpu:8 State=UNKNOWN",
    ]
    if not any(line.startswith("PartitionName=") for line in task.lines):
        lines.append("PartitionName=rehearsal Nodes=ALL Default=YES State=UP")
    files["slurm.conf"] = ("\n".join(lines) + "\n").encode()
    if any(line.lower() == "authtype=auth/slurm" for line in task.lines):
        files["slurm.key"] = os.urandom(1024)
    for name, body in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
        path.chmod(0o600)
    for path in (folder, *folder.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, who.pw_uid, who.pw_gid, follow_symlinks=False)


@contextlib.contextmanager
def _reserved() -> Iterator[int]:
    """A port of the loopback address that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _path(slurmctld: str) -> str:
    return f"{Path(slurmctld).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _commands(slurmctld: str) -> dict[str, str]:
    """scontrol and sbatch of the same Slurm. Raises FileNotFoundError."""
    folder = Path(slurmctld).parent
    places = os.pathsep.join(
        [str(folder), str(folder.parent / "bin"), _path(slurmctld), os.environ.get("PATH", "")]
    )
    found = {name: shutil.which(name, path=places) for name in ("scontrol", "sbatch")}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        raise FileNotFoundError(f"{missing[0]} is not on this machine")
    return {name: where for name, where in found.items() if where is not None}


def _as(who: pwd.struct_passwd) -> dict[str, object]:
    if os.geteuid() != 0:
        return {}
    groups = os.getgrouplist(who.pw_name, who.pw_gid)
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": groups}


def _dies_with_us() -> None:
    # After the change of user, which would take it back.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _running(
    argv: Sequence[str], who: pwd.struct_passwd, env: Mapping[str, str], output: object
) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, and at the end of the block nothing of it: what it started is ours, as the subreaper, to end."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd="/",
        preexec_fn=_dies_with_us,  # noqa: PLW1509 - there is one thread
        **_as(who),
    )
    try:
        yield process
    finally:
        # Not asked to end: it would first write its state, which nobody wants.
        process.kill()
        process.wait()
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def _ask(
    argv: Sequence[str], who: pwd.struct_passwd, env: Mapping[str, str], deadline: float
) -> subprocess.CompletedProcess[bytes]:
    left = max(0.1, deadline - time.monotonic())
    try:
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=left,
            **_as(who),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 124, b"", f"{argv[0]} did not answer in time".encode())


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> None:
    """Read a task, do it, tell what came of it."""
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stop)
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    task = Task(**json.load(sys.stdin))
    if os.getppid() != parent:
        return
    os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory(prefix="gsub-rehearsal-") as folder:
            told = rehearsed(task, Path(folder), started + task.seconds)
    except (OSError, KeyError, ValueError) as error:
        told = Told(trouble=str(error))
    json.dump(asdict(told), sys.stdout)


if __name__ == "__main__":
    main()
