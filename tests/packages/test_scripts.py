"""The packages' scripts by themselves, in the shell that dpkg gives them, on hosts that are not as most are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from site_configs.packaging.deb import script

_HARMLESS = """
rm() { for one; do case $one in -* | "$PWD"/*) ;; *) return 0 ;; esac; done; command rm "$@"; }
make_user() { :; }; drop_user() { :; }; drop_placed() { :; }; enable_unit() { :; }; install() { :; }
running_systemd() { false; }
KEEP=$PWD/kept; ENVIRONMENT=$PWD/environment; INSTALLED=$PWD/installed
"""
"""This machine is none of theirs: nothing outside of the test's folder is made or removed."""


def run(package: str, what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Call a part of a package's script, with its places in `folder`."""
    text = script(package, f"{_HARMLESS}{what}\n")
    return subprocess.run(["dash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=30)


def test_a_user_of_a_directory_service_is_no_reason_to_leave_the_package_half_installed(tmp_path):
    done = run("gsub-service", "getent() { :; }; usermod() { return 6; }; installed ''", tmp_path)
    assert done.returncode == 0
    assert "could not be put into the group slurm" in done.stderr


def test_it_is_told_that_gsubd_does_not_start_where_there_is_no_group_slurm(tmp_path):
    done = run("gsub-service", "getent() { return 2; }; installed ''", tmp_path)
    assert done.returncode == 0
    assert "does not start before the unit has the" in done.stderr


@pytest.mark.parametrize(("number", "told"), [("890", False), ("991", True)])
def test_it_is_told_that_the_user_gsub_has_another_number_than_on_other_hosts(tmp_path, number, told):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/user-gsub").touch()
    done = run("gsub", f"id() {{ echo {number}; }}; compile() {{ :; }}; installed ''", tmp_path)
    assert done.returncode == 0
    assert ("has the number 991, not 890" in done.stderr) is told


def test_nothing_of_an_earlier_version_is_run_where_compiling_fails(tmp_path):
    cache = tmp_path / "environment/lib/__pycache__"
    cache.mkdir(parents=True)
    (cache / "old.cpython-311.pyc").write_bytes(b"an earlier version's")
    done = run("gsub", "compile", tmp_path)  # there is no Python to compile with
    assert done.returncode == 0
    assert "could not be compiled" in done.stderr and not cache.exists()


@pytest.mark.parametrize(
    ("journal", "anyway", "stays"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_a_purge_keeps_the_files_of_before_unless_all_was_taken_back(tmp_path, journal, anyway, stays):
    copy = tmp_path / "installed/copies/sha"
    copy.parent.mkdir(parents=True)
    copy.write_text("the site's slurm.conf")
    if journal:
        (tmp_path / "installed/journal.jsonl").write_text("{}\n")
    done = run("gsub", f"GSUB_REMOVE_ANYWAY={anyway}; purged", tmp_path)
    assert done.returncode == 0
    assert copy.exists() is stays and ("installed stays" in done.stderr) is stays


def test_what_cannot_be_removed_does_not_leave_a_package_half_purged(tmp_path):
    done = run("gsub", "rm() { return 1; }; purged", tmp_path)
    assert done.returncode == 0
    assert "not all of it is gone: /var/lib/gsub" not in done.stderr  # another package's
    assert f"not all of it is gone: {tmp_path}/installed" in done.stderr
