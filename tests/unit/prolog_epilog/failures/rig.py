"""The child that reads logs, really started, and a user whose logs they are."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from prolog_epilog.failures.question import Question
from tests.paths import REPOSITORY

ROOT = REPOSITORY
ADA, BOB = 54321, 54322
"""Uids, and gids, that no name service knows."""


def question(
    *files: Path | str, uid: int = ADA, gid: int | None = ADA, job: int = 17, **more: object
) -> Question:
    """What the agent asks of these files."""
    now = time.time()
    asked = Question(uid, gid, tuple(os.fspath(file) for file in files), (f"{job}",), now - 3600, now + 60)
    return (
        asked if not more else Question(**{**{f: getattr(asked, f) for f in asked.__struct_fields__}, **more})
    )


def command(code: str) -> tuple[str, ...]:
    """A child's command line that runs this instead, in the same way: isolated, with our package."""
    return (sys.executable, "-I", "-B", "-c", f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r})\n{code}")


def inside(code: str, before: str = "") -> tuple[str, ...]:
    """The real child, which runs this where it would read logs: after it has become the user.

    `code` makes a list `said` of texts, at most 600 characters each. `before` runs as root, ahead of all.
    """
    body = "\n".join(f"    {line}" for line in code.strip().splitlines())
    return command(
        f"{before}\nfrom prolog_epilog.failures import child\n"
        "from profiler.findings import Finding\n"
        f"def look(question, classify):\n    said = []\n{body}\n"
        "    return Finding('no_signature', remarks=tuple(said))\n"
        "child.investigate = look\n"
        "child.main()\n"
    )


def home(folder: Path, uid: int = ADA, mode: int = 0o755) -> Path:
    """A folder of the user's, to which the way is open."""
    for parent in (folder, *folder.parents):
        if parent.owner() == "root" and parent != Path("/") and parent.stat().st_mode & 0o055 != 0o055:
            parent.chmod(parent.stat().st_mode | 0o055)
    made = folder / f"home{uid}"
    made.mkdir()
    os.chown(made, uid, uid)
    made.chmod(mode)
    return made


def written(path: Path, text: str | bytes, uid: int = ADA, mode: int = 0o600) -> Path:
    """A user's file."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path
