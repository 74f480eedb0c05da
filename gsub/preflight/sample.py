"""Run with -I -S: the first bytes of what a script reads. Standard library only, and no thread of gsub's waits here.

A file system that does not answer would hold this process for ever; so it is a child that can be left behind, and
tells of each path as soon as it knows.

Standard input is a JSON list of paths. Of each one a line of JSON: `path`, `file` (what was read, of a folder its first
file), `errno` (0 when well), `bytes` (that came; -1: nothing to be read there), `head` (the first 64 of them, hex).
"""

# ruff: noqa: PTH116, D103 - paths are text

import json
import os
import stat
import sys

MOST = 4096
DEEPEST = 4
ENTRIES = 256


def first_file(folder: str, depth: int = DEEPEST) -> str:
    """The first regular file of a folder, those in it before those below; "" without one."""
    below = []
    with os.scandir(folder) as entries:
        for number, entry in enumerate(entries):
            if number >= ENTRIES:
                break
            if entry.name.startswith("."):
                continue
            if entry.is_file():
                return entry.path
            if entry.is_dir():
                below.append(entry.path)
    for path in below[:3] if depth else []:
        found = first_file(path, depth - 1)
        if found:
            return found
    return ""


def look(path: str) -> "tuple[str, int, bytes]":
    file = first_file(path) if stat.S_ISDIR(os.stat(path).st_mode) else path
    if not file:
        return "", -1, b""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file, -1, b""
        data = os.read(descriptor, MOST)
    finally:
        os.close(descriptor)
    return file, len(data), data[:64]


def told(path: str) -> "dict[str, object]":
    said: dict[str, object] = {"path": path, "file": path, "errno": 0, "bytes": -1, "head": ""}
    try:
        said["file"], said["bytes"], head = look(path)
        said["head"] = head.hex()
    except OSError as error:
        said.update(errno=error.errno or 5, file=str(error.filename or path))
    return said


def main() -> None:
    paths = json.loads(sys.stdin.read())
    sys.stdout.write("{}\n")  # from here on it is the paths that are slow
    sys.stdout.flush()
    for path in paths:
        sys.stdout.write(json.dumps(told(path)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
