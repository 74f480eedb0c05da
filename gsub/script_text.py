"""The text of the script that is submitted: a file's, standard input's, or what sbatch makes of --wrap."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from gsub.argv import CommandLine
from gsub.errors import USAGE, UserError

__all__ = ["WRAPPED", "command_of", "is_pipe", "is_typed", "needed", "text_of", "wrapped"]

WRAPPED: Final = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
"""How sbatch begins the script that it makes of --wrap (sbatch.c, 22.05 to 26.05)."""
_MOST_BYTES: Final = 4 << 20  # Slurm's own default (max_script_size)


def wrapped(command: str) -> bytes:
    """The script that sbatch makes of `--wrap`."""
    return f"{WRAPPED}{command}\n".encode("utf-8", "surrogateescape")


def command_of(script: str | None) -> str | None:
    r"""The command of --wrap, where sbatch made the script of one; else None.

    >>> command_of(WRAPPED + "hostname\n"), command_of("#!/bin/sh\nhostname\n")
    ('hostname', None)
    """
    if script is None or not script.startswith(WRAPPED):
        return None
    return script[len(WRAPPED) :].removesuffix("\n")


def is_typed(line: CommandLine) -> bool:
    """Whether there is neither SCRIPT nor --wrap, and standard input is a terminal or closed."""
    return line.script is None and line.wrap is None and (sys.stdin is None or sys.stdin.isatty())


def text_of(line: CommandLine, *, pipes: bool = False) -> bytes:
    """The script's text, wherever it comes from; empty where there is none.

    Standard input is read whole: sbatch is handed what we read. A file is looked for where sbatch does, below --chdir,
    else on PATH, and read up to the most that Slurm takes.

    `pipes`: read SCRIPT also where it is a pipe or a device (`<(...)`). What is read there sbatch can't read any more.
    """
    if line.wrap is not None:
        return wrapped(line.wrap)
    if line.script is None:
        return sys.stdin.buffer.read()
    folders = [s.value or "" for component in line.components for s in component if s.name == "chdir"][-1:]
    folders += ["", *os.environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        path = Path(folder, line.script)
        try:
            # Before it is opened: who writes into a FIFO is told by that that its reader is there
            if not pipes and is_pipe(path):
                return b""
            with path.open("rb") as file:
                return file.read(_MOST_BYTES)
        except OSError:
            continue
    return b""


def is_pipe(path: str | Path) -> bool:
    """Whether a path can be read once only: it is there, and is neither a file nor a folder. Raises OSError."""
    mode = Path(path).stat().st_mode
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def needed(line: CommandLine, command: str) -> bytes:
    """The text, for a command ("check") that makes no sense without one. Raises UserError."""
    nothing = f"there is no script to {command}"
    if is_typed(line):
        raise UserError(
            nothing, fix=f"gsub {command} [sbatch's options] SCRIPT, or --wrap='COMMAND'", exit_code=USAGE
        )
    text = text_of(line, pipes=True)
    if not text:
        raise UserError(
            f"cannot read the script {line.script}" if line.script else nothing,
            fix="check the path and the permission to read it; a program goes in --wrap='COMMAND'",
            exit_code=USAGE,
        )
    return text
