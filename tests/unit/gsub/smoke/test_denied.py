"""A permission that is lacking with and without an overlay."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gsub.smoke.denied import denied

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder as somebody whom permissions bind, where we are root."""
    path = Path(tempfile.mkdtemp(prefix="denied-")).resolve()
    for name, mode in (("closed", 0o555), ("open", 0o777), ("dark", 0o000)):
        (path / name).mkdir()
        (path / name).chmod(mode)
    (path / "secret").touch(0o000)
    (path / "note").touch()
    (path / "note").chmod(0o666)
    path.chmod(0o755)
    root = not os.geteuid()
    if root:
        os.seteuid(NOBODY)
    yield path
    if root:
        os.seteuid(0)
    (path / "dark").chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("PermissionError: [Errno 13] Permission denied: 'closed/run-1'", True),
        ("PermissionError: [Errno 13] Permission denied: 'closed/a/b/c'", True),
        ("PermissionError: [Errno 13] Permission denied: 'secret'", True),
        ("PermissionError: [Errno 13] Permission denied: 'dark/x/y'", True),
        ("mkdir: cannot create directory ‘closed/x’: Permission denied", True),
        ("PermissionError: [Errno 13] Permission denied: 'open/run-1'", False),
        ("PermissionError: [Errno 13] Permission denied: 'note'", False),
        ("Permission denied", False),
        ("PermissionError: [Errno 1] Operation not permitted: '\0'", False),
    ],
)
def test_only_what_is_denied_outside_too(folder: Path, words: str, found: bool) -> None:
    assert denied(words, str(folder)) is found
