"""The entry point: is it a command of ours, or a script for sbatch?

Nothing is imported here that the way to `sbatch` does not need; click comes with the commands only.
"""

from __future__ import annotations

import _locale
import contextlib
import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from gsub import __version__
from gsub.errors import FAILED, USAGE, UserError

COMMANDS: Final = {
    "check": "what would break a job, seen before it is queued; nothing is submitted",
    "explain": "what gsub would change about a job, and why; nothing is submitted",
    "watch": "follow a job: its states, its output",
    "status": "my jobs",
    "cancel": "cancel jobs",
    "why": "why a job waits or failed, in one sentence with its evidence; --log looks at log files alone",
    "resubmit": "submit a job that failed once more, changed as its reason asks for",
    "fix": "the exact change that mends a failed job; --yes submits it",
    "usage": "how a job uses its GPUs, CPUs and memory, while it runs and after",
    "report": "my jobs over a period: GPU-hours, utilisation, failures, waiting, and what would have helped",
    "learn": "how many CPUs a workload can use, measured in three minutes; --show plots what is known",
    "admin": "for a site's administrators: install, doctor, mode, the store of records",
}
"""The commands; each is a module of `gsub.commands` with a click command of its name."""

DEBUG: Final = "--debug"
_INTERRUPTED: Final = 130
_GARBAGE: Final = 50_000
"""New objects until Python looks for cycles: at its 700 it looks 100 times while a command is imported, for 10 ms."""
# A full disk, a quota, a file that may grow no more, a terminal that has gone
_CANNOT_WRITE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `gsub`; returns the exit code (the console script hands it to the shell)."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(_GARBAGE)
    _open_streams()
    if argv is None:
        from gsub.nesting import mark_process

        mark_process()
    try:
        code = _dispatch(words)
        sys.stdout.flush()  # here, where it can be told; at exit Python would tell it in its own way
        if code != _INTERRUPTED:
            _show_receipts(words)
        if argv is None:
            _ignore_interrupts()
        return code
    except UserError as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        from gsub.term import give_up_stdout

        give_up_stdout()  # `gsub status | head`: whoever read us has had enough
        return FAILED
    except Exception as error:  # the one place that decides who sees a traceback
        if DEBUG in words:
            raise
        from gsub.term import give_up_stdout, one_line

        if isinstance(error, OSError) and error.errno in _CANNOT_WRITE:
            give_up_stdout()
            print(f"gsub: cannot write the answer: {error.strerror}", file=sys.stderr)
            return FAILED
        if foreign := _foreign_module():
            print(f"gsub: {one_line(foreign)} is not gsub's, and is imported in its place", file=sys.stderr)
            print("  try: unset PYTHONPATH and PYTHONHOME; move it out of ~/.local", file=sys.stderr)
            return FAILED
        print(f"gsub: internal error: {one_line(f'{type(error).__name__}: {error}')}", file=sys.stderr)
        print(f"  try: the same with {DEBUG} first, and report what it prints", file=sys.stderr)
        return FAILED


def _foreign_module() -> str:
    """The file of a module that has the name of one of ours and lies elsewhere; "" where there is none."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - as pathlib is slow
    for name in ("profiler", "prolog_epilog", "site_configs", "slurm_plugins"):
        module = sys.modules.get(name)
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        place = next((place for place in places if place), None)
        if place is not None and not os.path.abspath(place).startswith(ours + os.sep):  # noqa: PTH100
            return str(place)
    return ""


def _ignore_interrupts() -> None:
    """All is done and told: a ^C while Python ends would only make of it what looks like a failure."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _show_receipts(words: list[str]) -> None:
    """Tell a person of jobs that have ended since; nobody else, and not who only asked for help."""
    if words and words[0] not in ("--help", "--version") and sys.stderr is not None and sys.stderr.isatty():
        from gsub.receipts import show

        show()


def _open_streams() -> None:
    """Put /dev/null where we were started without standard output or error (`>&-`).

    Else the next file or pipe that is opened would take the place, and `print` to no standard error goes to output.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_WRONLY)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, os.fdopen(descriptor, "w", closefd=False))
        _replace_unwritable(getattr(sys, name))


def _replace_unwritable(stream: TextIO) -> None:
    """Write in the locale's encoding, with replacements for what that does not have: no answer is lost for a letter."""
    if not isinstance(stream, io.TextIOWrapper):
        return
    codeset = _locale.nl_langinfo(_locale.CODESET)
    # Python was told to read all as UTF-8 (-X utf8), which the terminal may not know. ASCII: Python's own choice stays
    if (
        sys.flags.utf8_mode
        and stream.encoding.lower() == "utf-8"
        and not codeset.startswith(("ANSI", "US-ASCII"))
    ):
        with contextlib.suppress(LookupError):
            stream.reconfigure(encoding=codeset)
    if stream.errors != "backslashreplace" and (
        stream.errors == "strict" or stream.encoding.lower() != "utf-8"
    ):
        stream.reconfigure(errors="replace")


def _dispatch(words: list[str]) -> int:
    first = words[0] if words else ""
    if first == "--help":
        print(help_text())
        return 0
    if first == "--version":
        return _show_version()
    if not words and sys.stdin is not None and sys.stdin.isatty():
        # sbatch would wait for a script typed on the keyboard; nobody means that
        print(help_text(), file=sys.stderr)
        return USAGE
    rest = words[1:]
    if first == DEBUG and rest and rest[0] in COMMANDS:
        first, rest = rest[0], rest[1:]
    # A script of that name is meant, if there is one.
    if first in COMMANDS and not os.path.isfile(first):  # noqa: PTH113 - pathlib costs more than the answer
        from gsub.commands import run_command

        return run_command(first, rest)
    from gsub.commands.submit import submit

    return submit(words)


def _show_version() -> int:
    """Print our version; Slurm's, as `sbatch` does, where that name on PATH leads here, since programs ask for it."""
    from gsub.nesting import is_in_place_of_sbatch

    if not is_in_place_of_sbatch(sys.argv[0], os.environ):
        print(f"gsub {__version__}")
        return 0
    if sys.stderr.isatty():
        print(f"gsub {__version__}", file=sys.stderr)
    from gsub.commands.submit import submit

    return submit(["--version"])


def help_text() -> str:
    """What `gsub --help` prints."""
    from gsub.argv import OURS

    def table(rows: dict[str, str]) -> str:
        return "\n".join(f"  {name:<16}{text}" for name, text in rows.items())

    return f"""\
Usage: gsub [options] SCRIPT [ARGS]
       gsub COMMAND [...]

Submit a batch script to Slurm. Every option of sbatch works unchanged ('sbatch --help' lists them),
and so do scripts from standard input, --wrap, #SBATCH lines and SBATCH_* variables.

Options, anywhere ahead of SCRIPT:
{table(OURS)}
  --help      this text (as the first word; elsewhere it is sbatch's)
  --version   gsub's version (as the first word; Slurm's where gsub has the name sbatch)

Commands ('gsub COMMAND --help' tells more):
{table(COMMANDS)}

Exit codes: 0 done, 1 Slurm refused or the job failed, 2 wrong usage or configuration;
with --wait that of the job."""
