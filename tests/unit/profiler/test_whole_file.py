"""Files that are found whole: what is under the name, and what lies beside it, whatever ended the writer."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from profiler.whole_file import put

NAMES = [None, "kept.new"]


@pytest.fixture(params=NAMES, ids=["any name", "one name"])
def beside(request: pytest.FixtureRequest) -> str | None:
    return str(request.param) if request.param else None


def test_it_takes_the_place_of_the_one_before(tmp_path: Path, beside: str | None) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"before, and longer")
    put(path, b"now", 0o640, beside=beside)
    assert path.read_bytes() == b"now" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_an_error_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, beside: str | None, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    path.write_bytes(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync", full) if fails == "fsync" else (Path, "replace", full)))
    with pytest.raises(OSError, match="No space"):
        put(path, b"now", sync=True, beside=beside)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_with_one_name_killed_writers_leave_no_heap(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    for number in range(3):
        child = os.fork()
        if child == 0:
            os.fsync = lambda _: os._exit(9)  # type: ignore[assignment]  # as if it were killed at that moment
            put(path, b"never", sync=True, beside="kept.new")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert list(tmp_path.iterdir()) == [tmp_path / "kept.new"], number
    put(path, b"now", beside="kept.new")
    assert path.read_bytes() == b"now" and list(tmp_path.iterdir()) == [path]


def test_a_link_under_that_name_leads_nowhere(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another's")
    (tmp_path / "kept.new").symlink_to(other)
    put(tmp_path / "kept", b"now", beside="kept.new")
    assert other.read_bytes() == b"another's" and not (tmp_path / "kept").is_symlink()
