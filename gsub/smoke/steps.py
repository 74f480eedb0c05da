"""Steps of a smoke run whose files are kept apart: what its script finds as `srun`, and what that starts.

Tasks are started by slurmstepd, outside of the script's namespaces, where nothing is kept apart and what the script
wrote is not to be seen. So in these namespaces ours lies over `srun`, by whatever path it is called: it becomes the
real one, with our own program ahead of the task's, which enters the namespaces and becomes the task.

    srun -n1 python train.py   ->   srun -n1 PYTHON -I -m gsub.smoke.steps enter PID BOOT FOLDER python train.py

As the same user on the same machine a task may do so (setns(2): who made a user namespace has all capabilities in it).
It is done on one node and for options that are known here. Otherwise the real srun gets its words as they are, and a
mark is left: what the step then misses is no failure of the script's.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

__all__ = ["MARK", "REAL", "binds", "enter", "main", "position", "words"]

MARK: Final = "outside"
"""The file in the run's folder that says that a step ran outside of what is kept apart."""
REAL: Final = "gsub-real-srun"
"""What the real one is called in there."""
_MODULE: Final = "gsub.smoke.steps"
_FOLDER: Final = "GSUB_SMOKE_DIR"  # lies in the run's folder
_NEWUSER, _NEWNS = 0x10000000, 0x00020000

# of srun(1), 22.05 to 26.05: what a smoke run's step can be given without being another kind of step
_VALUED: Final = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-socket", "ntasks-per-core"),
        *(
            "cpus-per-task",
            "cpus-per-gpu",
            "gpus",
            "gpus-per-node",
            "gpus-per-task",
            "gpus-per-socket",
            "gres",
        ),
        *("mem", "mem-per-cpu", "mem-per-gpu", "cpu-bind", "gpu-bind", "mem-bind", "gpu-freq", "cpu-freq"),
        *("distribution", "mpi", "wait", "time", "job-name", "chdir", "threads-per-core", "hint", "input"),
        *(
            "extra-node-info",
            "sockets-per-node",
            "cores-per-socket",
            "network",
            "propagate",
            "signal",
            "comment",
        ),
        *(
            "tres-per-task",
            "tres-bind",
            "accel-bind",
            "gres-flags",
            "profile",
            "acctg-freq",
            "nodelist",
            "exclude",
        ),
    }
)
_PLAIN: Final = frozenset(
    {
        *("label", "unbuffered", "exact", "overlap", "oversubscribe", "verbose", "quiet", "whole", "no-kill"),
        *("spread-job", "use-min-nodes", "overcommit", "disable-status", "quit-on-interrupt", "preserve-env"),
    }
)
_PERHAPS: Final = frozenset({"kill-on-bad-exit", "exclusive", "resv-ports"})
"""With a value only behind `=`, or in the same word."""
_FILES: Final = frozenset({"output", "error"})
"""Whose value may be one file, which srun writes itself, or a pattern of which slurmstepd makes files."""
_SHORT: Final = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "m": "distribution", "W": "wait", "t": "time",
    "J": "job-name", "D": "chdir", "i": "input", "B": "extra-node-info", "w": "nodelist", "x": "exclude",
    "o": "output", "e": "error", "l": "label", "u": "unbuffered", "s": "oversubscribe", "v": "verbose", "Q": "quiet",
    "O": "overcommit", "X": "disable-status", "E": "preserve-env", "K": "kill-on-bad-exit",
}  # fmt: skip


def position(given: Sequence[str]) -> int | None:
    """Where the program stands among srun's words; None where that is not sure, or the step is of another kind.

    >>> position(["-N1", "--ntasks", "2", "python", "a.py"]), position(["--container-image=x", "python"])
    (3, None)
    """
    at = 0
    while at < len(given):
        word = given[at]
        if word == "--":
            at += 1
            break
        if not word.startswith("-") or word == "-":
            break
        taken = _long(word, given[at + 1 :]) if word.startswith("--") else _shorts(word, given[at + 1 :])
        if not taken:
            return None
        at += taken
    return at if at < len(given) and ":" not in given else None


def _long(word: str, rest: Sequence[str]) -> int:
    """How many words an option takes; 0: nobody knows."""
    name, equals, value = word[2:].partition("=")
    if (name in _PLAIN and not equals) or name in _PERHAPS:
        return 1
    if name not in _VALUED | _FILES:
        return 0
    if not equals:
        if not rest:
            return 0
        value = rest[0]
    if name in _FILES and ("%" in value or value in ("all", "none")):
        return 0
    return 1 if equals else 2


def _shorts(word: str, rest: Sequence[str]) -> int:
    for index, letter in enumerate(word[1:], 2):
        name = _SHORT.get(letter, "")
        if name in _PLAIN:
            continue
        if name in _PERHAPS:
            return 1
        if not name:
            return 0
        value = word[index:]
        return _long(f"--{name}={value}", ()) if value else _long(f"--{name}", rest[:1])
    return 1


def words(
    given: Sequence[str], environ: Mapping[str, str], *, pid: int, boot: str, folder: str
) -> list[str] | None:
    """srun's words with our program ahead of the task's; None: leave them."""
    nodes = environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES") or ""
    at = position(given)
    if at is None or nodes != "1" or any("CONTAINER" in name for name in environ if name.startswith("SLURM")):
        return None
    ours = [sys.executable, "-I", "-m", _MODULE, "enter", str(pid), boot, folder]
    # slurmstepd looks for the folder outside, where it may not be: the task goes there by itself
    return [*[word for word in given[:at] if word != "--"], "--chdir=/", *ours, *given[at:]]


def binds(folder: Path, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What is to lie over what, in this order; makes the files. Nothing where there is no srun. Raises OSError."""
    found = shutil.which("srun", path=environ.get("PATH", os.defpath))
    if found is None:
        return ()
    real = os.path.realpath(found)
    kept, ours = folder / REAL, folder / "srun"
    kept.touch(0o700)
    ours.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -m {_MODULE} srun {shlex.quote(str(kept))} "$@"\n'
    )
    ours.chmod(0o755)
    return (real, str(kept)), (str(ours), real)


def _srun(real: str, given: Sequence[str]) -> NoReturn:
    environ = dict(os.environ)
    found = words(given, environ, pid=os.getpid(), boot=_boot(), folder=_folder(given))
    if found is None:
        _leave_mark()
    os.execve(real, ["srun", *(given if found is None else found)], environ)  # noqa: S606


def _folder(given: Sequence[str]) -> str:
    """Where the task is to begin: here, or where `--chdir` says."""
    here = os.getcwd()  # noqa: PTH109
    for index, word in enumerate(given[: position(given) or 0]):
        if word.startswith("--chdir="):
            return os.path.join(here, word[8:])  # noqa: PTH118
        if word.startswith("-D") and len(word) > 2:
            return os.path.join(here, word[2:])  # noqa: PTH118
        if word in ("-D", "--chdir"):
            return os.path.join(here, given[index + 1])  # noqa: PTH118
    return here


def _leave_mark() -> None:
    with suppress(OSError, KeyError):
        Path(os.environ[_FOLDER]).with_name(MARK).touch()


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "-"


def enter(pid: int, boot: str, folder: str, command: Sequence[str]) -> NoReturn:
    """Become a command within the namespaces of a process, in a folder; on another machine just become it.

    Raises OSError for a command that cannot be run.
    """
    joined = boot == _boot()
    if joined:
        libc = ctypes.CDLL(None, use_errno=True)
        for name, kind in (("user", _NEWUSER), ("mnt", _NEWNS)):
            path = f"/proc/{pid}/ns/{name}"
            try:
                if os.stat(path).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:  # noqa: PTH116
                    continue  # one's own user namespace cannot be entered
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                joined = libc.setns(descriptor, kind) == 0 and joined
                os.close(descriptor)
            except OSError:
                joined = False
        with suppress(OSError):
            os.chdir(folder)
    if not joined:
        _leave_mark()
    os.execvp(_found(command[0]), list(command))  # noqa: S606


def _found(name: str) -> str:
    """As srun looks for it: on PATH, and in the folder itself."""
    return (
        f"./{name}" if "/" not in name and shutil.which(name) is None and os.access(name, os.X_OK) else name
    )


def main() -> NoReturn:
    """`srun REAL WORDS`, or `enter PID BOOT FOLDER COMMAND`."""
    if sys.argv[1:2] == ["srun"]:
        _srun(sys.argv[2], sys.argv[3:])
    pid, boot, folder, *command = sys.argv[2:]
    try:
        enter(int(pid), boot, folder, command)
    except OSError as error:
        # as slurmstepd says it of a program that is not there
        print(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)


if __name__ == "__main__":
    main()
