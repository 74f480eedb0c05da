"""One environment for all test runs, whatever shell, service or terminal starts them."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.paths import REPOSITORY

_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SCANCEL_",
    "SQUEUE_",
    "SACCT_",
    "SINFO_",
    "GSUB",
    "XDG_",
)
_LOCALE = ("LANG", "LANGUAGE", "LC_")
_NAMES = ("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES", "NO_COLOR",
          "FORCE_COLOR", "CLICOLOR_FORCE", "VIRTUAL_ENV", "EDITOR", "PAGER", "MAIL", "CDPATH", "ENV", "BASH_ENV",
          "SOURCE_DATE_EPOCH")  # fmt: skip
_HOME = "gsub-test-home-"
KEPT = frozenset({"GSUB_FRAMEWORKS", "GSUB_TEST_RANDOM", "GSUB_TEST_OUTAGE"})
"""Variables of ours that a person sets for a test run."""


def reset_environment() -> None:
    """Give this process default signals, umask, time zone, locale, HOME and directory, and drop Slurm's variables.

    A background shell, cron and nohup ignore signals, and children inherit that. Call it before tests are collected:
    modules read the environment when they are imported.
    """
    for number in (
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGCHLD,
        signal.SIGUSR1,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    for name in [*os.environ]:
        ours = name.startswith(_PREFIXES) and name not in KEPT
        if ours or name.startswith(_LOCALE) or name in _NAMES:
            del os.environ[name]
    os.environ |= {
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "xterm",
        "HOME": make_home(),
        "PWD": str(REPOSITORY),
    }
    sys.dont_write_bytecode = False  # each process of a run would compile all modules and tests again
    time.tzset()
    os.chdir(REPOSITORY)


def make_home() -> str:
    """Return the run's empty home directory: the one that it has, or a new one that goes with this process.

    Downloads of pip, and what development clusters keep, stay where the person's own are: they are fetched once.
    """
    before = Path(os.environ.get("HOME") or "/")
    if before.name.startswith(_HOME) and before.is_dir():
        return str(before)
    os.environ.setdefault("PIP_CACHE_DIR", str(before / ".cache/pip"))
    home = tempfile.mkdtemp(prefix=_HOME)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    kept = before / ".cache/gsub-devcluster"
    with contextlib.suppress(OSError):  # a HOME that cannot be written to: each run makes them again
        kept.mkdir(parents=True, exist_ok=True)
        link = Path(home, ".cache/gsub-devcluster")
        link.parent.mkdir()
        link.symlink_to(kept)
    return home
