"""How the script of a smoke run is started: its interpreter, its variables, and what its command lines name."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_ISDIR
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gsub.smoke.plan import Plan

__all__ = ["PREFIX", "environment", "named", "shebang", "sweep", "sweep_old", "temporary"]

_SHORT: Final = 70  # characters of a folder in which a Unix socket can be made: 108 is the most for its name
_HEADER: Final = 512  # bytes of a script's first line
_OFFLINE: Final = {"WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "CLEARML_OFFLINE_MODE": "1"}
"""Trackers of experiments by variables of theirs: a smoke run is none of a user's experiments."""
PREFIX: Final = "gsub-smoke-"
"""How names of runs' folders begin."""
_OLD: Final = 86400.0  # seconds: no run takes so long
_QUOTED: Final = re.compile(r"[\"']([^\"'\n]{1,200})[\"']")
_WORDS: Final = frozenset({"ray", "flux", "su", "sg", "prun", "shifter", "sarus"})
"""Programs whose names are words of other things, too: keys, variables, options."""


def environment(
    environ: Mapping[str, str], folder: Path, array: Mapping[str, str], name: str
) -> dict[str, str]:
    """The script's variables: the smoke job's as Slurm set them, ours, and those that trackers heed."""
    found = {key: value for key, value in environ.items() if not key.startswith("GSUB_SMOKE")}
    found |= _OFFLINE | dict(array)
    found |= {
        "GSUB_SMOKE": "1",
        "GSUB_SMOKE_DIR": str(folder / "dir"),
        "GSUB_STEPS": str(folder / "steps"),
        "PYTHONUNBUFFERED": "1",  # steps are read from the output as they come
        "WANDB_DIR": str(folder / "dir"),
    }
    if len(str(folder / "tmp")) <= _SHORT:
        found["TMPDIR"] = str(folder / "tmp")
    if "SLURM_JOB_NAME" in found and name:
        found["SLURM_JOB_NAME"] = name
    return found


def shebang(script: bytes) -> list[str]:
    """The interpreter and its argument as execve(2) reads them; a script without one is sh's.

    >>> shebang(b"#!/bin/bash -l -x\\n"), shebang(b"#! /usr/bin/env python3\\n"), shebang(b"echo")
    (['/bin/bash', '-l -x'], ['/usr/bin/env', 'python3'], ['/bin/sh'])
    """
    first = script[:_HEADER].split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return ["/bin/sh"]
    words = os.fsdecode(first[2:]).strip().split(None, 1)
    return [word.strip() for word in words] or ["/bin/sh"]


def temporary(environ: Mapping[str, str]) -> str | None:
    """The job's own folder for temporary files, if it has one; else Python's choice."""
    for name in ("SLURM_TMPDIR", "TMPDIR"):
        path = environ.get(name, "")
        if path.startswith("/") and os.access(path, os.W_OK | os.X_OK):
            return path
    return None


def sweep(folder: Path) -> None:
    """Away with a run's folder, whatever rights its script gave to what is in it. Never raises."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(place, name)
            with suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_old(base: Path) -> None:
    """Away with what runs left here that were killed, of this user. Never raises."""
    with suppress(OSError):
        for path in base.glob(f"{PREFIX}*"):
            with suppress(OSError):
                found = path.lstat()
                if (
                    found.st_uid == os.geteuid()
                    and S_ISDIR(found.st_mode)
                    and time.time() - found.st_mtime > _OLD
                ):
                    sweep(path)


def named(plan: Plan) -> tuple[list[str], list[str]]:
    """The words of the script's command lines, and the texts of it and of the scripts that it runs."""
    from gsub.preflight.children import read_file
    from gsub.preflight.commands import commands
    from gsub.preflight.values import Submission

    text = plan.script.decode(errors="replace")
    words: list[str] = list(plan.args)
    with suppress(Exception):  # a reader of shell that stumbles takes nothing from the run
        submission = Submission(
            name=plan.name,
            text=text,
            args=plan.args,
            folder=plan.cwd,
            environ=dict(os.environ),
            home=_home(),
            cwd=plan.cwd,
        )
        for command in commands(submission):
            outputs = (command.path(one) for one in command.outputs if one)
            words += [one for one in (*command.words, *outputs) if one]
    texts = [text]
    for word in dict.fromkeys(words):
        if len(texts) < 32 and word.endswith((".sh", ".bash", ".py", ".slurm", ".sbatch")):
            with suppress(OSError, ValueError):
                found = read_file(os.path.join(plan.cwd, word), 1 << 18).decode(errors="replace")  # noqa: PTH118
                texts.append(_quoted(found) if word.endswith(".py") else found)
    return words, texts


def _quoted(text: str) -> str:
    """What stands in quotes in Python's text, a line each: there it names the programs that it calls.

    >>> _quoted("flux = ray.sum()\\nsubprocess.run(['srun', '-n1'], env={'ray': 1})")
    'srun\\n-n1'
    """
    found = _QUOTED.findall(text)
    return "\n".join(one for one in found if one not in _WORDS)


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.environ.get("HOME", "/")
