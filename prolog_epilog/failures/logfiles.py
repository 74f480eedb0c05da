r"""Which files are a job's logs: the names that Slurm made of a pattern, and what else its processes left beside them.

`expand` is pure. `Surroundings` looks into folders, with the rights of whoever calls it, and never for long: a user may
have 100,000 files in one.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

__all__ = ["ENTRIES", "OTHERS", "JobNames", "Surroundings", "expand", "named_in"]

OTHERS: Final = 64
"""Files at most that are read besides a job's own output."""
ENTRIES: Final = 20_000
"""Names at most that are looked at in one folder."""
_SECONDS: Final = 2.0
_SYMBOL: Final = re.compile(r"%(%|[0-9]*[A-Za-z])")
_WIDEST: Final = 10  # digits: Slurm pads no further
_DEPTH: Final = 4  # torchrun: <log dir>/<run id>/attempt_0/3/stderr.log
_SLACK: Final = 2.0  # seconds: file systems with coarse times
# Data that happens to bear the job's id is not read as if it were a log
_LOG_ENDINGS: Final = frozenset(
    {"", ".out", ".err", ".log", ".txt", ".o", ".e", ".stdout", ".stderr", ".output"}
)
_TORCH_LOGS: Final = frozenset({"stdout.log", "stderr.log", "error.json"})
# torch.distributed.run --log-dir; what torch.distributed.elastic.multiprocessing.api says of it at the start; the
# ChildFailedError table and TORCHELASTIC_ERROR_FILE name error files
_FOLDER_NAMED: Final = re.compile(rb"""(?:--log[-_]dir[= ]|log directory set to: )["']?([^\s"',;]{1,1024})""")
_FILE_NAMED: Final = re.compile(
    rb"""(?:error_file\s*[:=]\s*|TORCHELASTIC_ERROR_FILE[=:]\s*)["']?(/[^\s"',;<>]{1,1024}\.json)"""
)


@dataclass(frozen=True, slots=True)
class JobNames:
    """What Slurm puts into the names of files; None is what is not known."""

    job_id: int
    user: str | None = None
    node: str | None = None
    name: str | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None


def expand(pattern: str, names: JobNames) -> str | None:
    r"""The file that Slurm made of a pattern of sbatch's `--output`; None where it holds what is not known.

    After sbatch(1), "filename pattern". `%N`, `%n` and `%t` are those of the batch script: first node, 0, 0.

    >>> expand("logs/%x-%06j.out", JobNames(17, name="train"))
    'logs/train-000017.out'
    >>> expand("a%A_%a", JobNames(17)) is None, expand(r"\%j", JobNames(17)), expand("100%%", JobNames(17))
    (True, '%j', '100%')
    """
    if "\\" in pattern:  # one backslash, and nothing is replaced
        return pattern.replace("\\", "")
    known: dict[str, int | str | None] = {
        "A": names.array_job_id,
        "a": names.array_task_id,
        "b": None if names.array_task_id is None else names.array_task_id % 10,
        "j": names.job_id,
        "N": None if names.node is None else names.node.partition(".")[0],
        "n": 0,
        "t": 0,
        "u": names.user,
        "x": names.name,
    }
    unknown = False

    def one(match: re.Match[str]) -> str:
        nonlocal unknown
        if match[1] == "%":
            return "%"
        value, width = known.get(match[1][-1]), match[1][:-1]
        if value is None:
            unknown = True
            return ""
        padded = min(int(width[:4] or 0), _WIDEST) if isinstance(value, int) else 0
        return f"{value}".zfill(padded)

    expanded = _SYMBOL.sub(one, pattern)
    return None if unknown else expanded


def named_in(head: bytes) -> tuple[list[str], list[str]]:
    """The folders and the error files of torchrun that a part of a log names.

    >>> named_in(b"W torchrun --log-dir=/scratch/logs train.py\\n  error_file: /tmp/e/0/error.json")
    (['/scratch/logs'], ['/tmp/e/0/error.json'])
    """
    folders = dict.fromkeys(os.fsdecode(found) for found in _FOLDER_NAMED.findall(head))
    files = dict.fromkeys(os.fsdecode(found) for found in _FILE_NAMED.findall(head))
    return list(folders)[:4], list(files)[:OTHERS]


class Surroundings:
    """Finds the logs of a job's other processes. `unseen` says what was not looked at, in a sentence each.

    Only plain files of `uid` that changed since `since` count. `ids` are the numbers of which a name bears one:
    "17", or "12_4" for a task of an array.
    """

    def __init__(self, uid: int, ids: Sequence[str], since: float, *, seconds: float = _SECONDS) -> None:
        self.unseen: list[str] = []
        self._uid = uid
        # a number behind another and "_" is a task of that other job's array: slurm-12_17.out is not of job 17
        self._bears = re.compile(
            "|".join(rf"(?<![0-9])(?<![0-9]_){re.escape(each)}(?![0-9])" for each in ids)
        )
        self._since = since - _SLACK
        self._until = time.monotonic() + seconds

    def beside(self, path: str) -> list[str]:
        """Files in the folder of a log whose names bear the job's id, by name; no more than `OTHERS`."""
        folder, own = os.path.split(path)
        ending = PurePosixPath(own).suffix
        found = []
        for entry in self._entries(folder):
            suffix = PurePosixPath(entry.name).suffix
            fit = suffix == ending or suffix in _LOG_ENDINGS or suffix[1:].isdecimal()
            if entry.name != own and fit and self._bears.search(entry.name) and self.counts(entry.path):
                found.append(entry.path)
        return self._some(sorted(found), folder)

    def below(self, folder: str) -> list[str]:
        """What torchrun wrote below its folder for logs: each rank's output and error file."""
        found: list[str] = []
        folders = [(folder, 0)]
        while folders:
            place, depth = folders.pop()
            for entry in self._entries(place):
                if entry.name in _TORCH_LOGS and self.counts(entry.path):
                    found.append(entry.path)
                elif depth < _DEPTH and len(folders) < OTHERS and _is_folder(entry):
                    folders.append((entry.path, depth + 1))
        return self._some(sorted(found), folder)

    def counts(self, path: str) -> bool:
        """Whether this is a plain file of the user's that changed during the job."""
        with suppress(OSError):
            found = os.lstat(path)
            return stat.S_ISREG(found.st_mode) and found.st_uid == self._uid and found.st_mtime >= self._since
        return False

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        seen = 0
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > ENTRIES or time.monotonic() > self._until:
                        self._miss(f"{folder} holds too much to look for other ranks' logs in all of it")
                        return
                    yield entry
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._miss(f"{folder} was not searched for other ranks' logs: {error.strerror or error}")

    def _some(self, found: list[str], folder: str) -> list[str]:
        found = [path for path in found if path.isprintable()]  # what cannot be said in a finding is not read
        if len(found) > OTHERS:
            self._miss(f"{folder} has {len(found)} more logs of this job, of which {OTHERS} were read")
        return found[:OTHERS]

    def _miss(self, what: str) -> None:
        if what not in self.unseen:
            self.unseen.append(what)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_dir(follow_symlinks=False)
    return False
