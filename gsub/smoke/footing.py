"""What a pass rests on: script, arguments, environment, and the files that the run reads as code or as settings.

Contents of the files are not read: path, size and the times of the last change stand for them. Too many files, too slow
a disk, or a program that cannot be told from the script: then there is no key, and a pass is not remembered.
"""

# ruff: noqa: PTH113, PTH116, PTH118, PTH112, PTH120, PTH123, PTH208 - paths as scripts have them, and many of them

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gsub.preflight.command import Command
    from gsub.preflight.values import Submission
    from gsub.smoke.request import Real

__all__ = ["key_of"]

SECONDS: Final = 0.5
"""The time for looking at files."""
FILES: Final = 3000
"""The most files and folders that are looked at."""
_DEPTH: Final = 6
_CODE: Final = (".py", ".pyx", ".pyi", ".so", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini")
_NOT_LOOKED_INTO: Final = frozenset(
    {"__pycache__", "node_modules", "site-packages", "wandb", "lightning_logs"}
)
_VARIABLES: Final = (
    "PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
)
_PACKAGES: Final = ("site-packages", "conda-meta")
_ABSOLUTE: Final = re.compile(r"(?:^|['\"])(/[^'\"\n]{1,1000})(?=$|['\"])", re.MULTILINE)
_BYTES: Final = 1 << 16
_STARTS_PYTHON: Final = re.compile(
    r"python(?:\d(?:\.\d+)?)?|torchrun|accelerate|deepspeed|srun|mpirun|mpiexec"
)
_FORMAT: Final = "1"


class _TooMuch(Exception):  # noqa: N818 - no error: the answer "cannot be told"
    pass


def key_of(submission: Submission, real: Real, *, nodes: int, seconds: float = SECONDS) -> str:
    """The key of a submission; empty where it cannot be told whether anything changed.

    Parameters
    ----------
    nodes: of the smoke job. seconds: how long files may be looked at.
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            text = str(part).encode("utf-8", "surrogateescape")
            digest.update(b"%d:" % len(text) + text)

    add(_FORMAT, nodes, submission.text, submission.folder, len(submission.args), *submission.args)
    add(
        real.gpu_type,
        *(f"{n}={real.options.get(n)}" for n in ("partition", "constraint", "reservation", "export")),
    )
    until = time.monotonic() + seconds
    try:
        add(*_environment(submission))
        files, folders = _named(submission)
        for path, mark in sorted(_marks(files, folders, until).items()):
            add(path, mark)
    except (_TooMuch, RecursionError):
        return ""
    return digest.hexdigest()[:40]


def _environment(submission: Submission) -> Iterator[str]:
    from profiler.workload import identify

    environ: Mapping[str, str] = submission.environ if submission.inherits else {}
    for name in _VARIABLES:
        yield f"{name}={environ.get(name, '')}"
    for token in identify(submission.text, submission.args, environ).tokens:
        if token.part == "environment":
            yield token.text


def _named(submission: Submission) -> tuple[set[str], set[str]]:
    """The files that command lines name, and the folders that their Python is looked for in."""
    from gsub.preflight.commands import commands
    from gsub.preflight.launch import program

    files: set[str] = set()
    folders = {submission.folder, submission.cwd}
    if "/" in submission.name or os.path.isfile(os.path.join(submission.cwd, submission.name)):
        folders.add(os.path.dirname(os.path.join(submission.cwd, submission.name)))
    prefixes = {os.path.join(submission.home, ".local")}
    prefixes.update(submission.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    for command in commands(submission):
        found = program(command)
        for word in command.words:
            for value in _values(word):
                path = command.path(value)
                if path is not None:
                    files.add(path)
                    if path.endswith((".py", ".sh")):
                        folders.add(os.path.dirname(path))
        if _STARTS_PYTHON.fullmatch(command.name) and not _is_told(command):
            raise _TooMuch
        for paths in (command.python.paths, found.variables.get("PYTHONPATH") if found else None):
            for folder in (paths or "").split(":"):
                if folder and (path := command.path(folder)) is not None:
                    folders.add(path)
        if command.python.kind == "folder":
            prefixes.add(os.path.dirname(command.python.where))
    for prefix in prefixes - {""}:
        installed = list(_installed(prefix))
        files.update(installed)
        folders.update(one for path in installed for one in _elsewhere(path))
    return files, {folder for folder in folders if folder}


def _is_told(command: Command) -> bool:
    """Whether the program that Python runs there can be told: a file, a module, or a line on the command line."""
    if None not in command.words:
        return True
    words = [word for word in command.words if word]
    if "-m" in words or "-c" in words:
        return True  # a module of one's own lies in a folder that is looked at
    return any(word.endswith(".py") and command.path(word) is not None for word in words)


def _values(word: str | None) -> Iterator[str]:
    if word:
        yield word
        name, equals, value = word.partition("=")
        if equals and value and name:
            yield value


def _installed(prefix: str) -> Iterator[str]:
    """Folders of an environment that change when a package is put there, and its files that name others."""
    yield os.path.join(prefix, "conda-meta")
    lib = os.path.join(prefix, "lib")
    try:
        versions = [name for name in os.listdir(lib) if name.startswith("python3")][:4]
    except OSError:
        return
    for version in versions:
        site = os.path.join(lib, version, "site-packages")
        yield site
        try:
            names = os.listdir(site)
        except OSError:
            continue
        for name in names[:FILES]:
            if name.endswith((".pth", ".egg-link")) or name.startswith("__editable__"):
                yield os.path.join(site, name)


def _elsewhere(path: str) -> Iterator[str]:
    """The folders that a .pth file, or the finder of an editable install, names: that code is local, too."""
    if not path.endswith((".pth", ".egg-link", ".py")):
        return
    try:
        with open(path, "rb") as file:
            text = file.read(_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return
    for found in _ABSOLUTE.findall(text):
        if os.path.isdir(found):
            yield found


def _marks(files: Iterable[str], folders: Iterable[str], until: float) -> dict[str, str]:
    """Path -> size and times, of the files and of what lies below the folders and is code. Raises _TooMuch."""
    found: dict[str, str] = {}

    def mark(path: str) -> None:
        if len(found) >= FILES or time.monotonic() > until:
            raise _TooMuch
        try:
            one = os.stat(path)
        except OSError:
            found[path] = "-"
            return
        if stat.S_ISREG(one.st_mode) or stat.S_ISDIR(one.st_mode):
            size = one.st_size if stat.S_ISREG(one.st_mode) else 0
            # of a folder the names in it count, below; its own times change with every log that is put there
            times = f"{one.st_mtime_ns} {one.st_ctime_ns}" if size or path.endswith(_PACKAGES) else ""
            found[path] = f"{size} {times} {one.st_ino}"

    for path in sorted(set(files)):
        mark(path)
    seen: set[tuple[int, int]] = set()
    looked = 0
    queue = [(folder, 0) for folder in sorted(set(folders))]
    while queue:
        folder, depth = queue.pop()
        looked += 1
        if looked > FILES or time.monotonic() > until:
            raise _TooMuch
        try:
            one = os.stat(folder)
            if (one.st_dev, one.st_ino) in seen:
                continue
            seen.add((one.st_dev, one.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if time.monotonic() > until:
                        raise _TooMuch
                    if entry.name.endswith(_CODE):
                        mark(entry.path)
                    elif (
                        not entry.name.startswith(".")
                        and entry.name not in _NOT_LOOKED_INTO
                        and entry.is_dir()
                    ):
                        if depth >= _DEPTH:
                            raise _TooMuch
                        queue.append((entry.path, depth + 1))
        except OSError:
            found[folder] = "-"
    return found
