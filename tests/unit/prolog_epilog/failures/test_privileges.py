"""Becoming a user for good, function by function, each in a process that is thrown away."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from prolog_epilog.failures import privileges
from prolog_epilog.failures.privileges import PrivilegeError, groups_of
from tests.measured import run_measured
from tests.unit.prolog_epilog.failures.rig import ADA

IMPORTS = f"""
import os, resource
from pathlib import Path
from prolog_epilog.failures.privileges import *
from prolog_epilog.failures.privileges import PrivilegeError, become, bound, close_others, die_with, verify
ADA = {ADA}
names = "CPU AS NOFILE FSIZE NPROC CORE MEMLOCK MSGQUEUE".split()
limits = [getattr(resource, "RLIMIT_" + name) for name in names]
def error_of(function, *arguments):
    try:
        function(*arguments)
    except PrivilegeError as error:
        return str(error)
    return "none"
"""


def run(code: str) -> Any:
    """Run code in a child; it makes `found`."""
    return run_measured(IMPORTS + code)


def test_limits_are_hard_ones() -> None:
    limits, (umask, folder, nice, badness) = run("""
bound()
process = [os.umask(0), os.getcwd(), os.nice(0), Path("/proc/self/oom_score_adj").read_text().strip()]
found = [[resource.getrlimit(limit) for limit in limits], process]
""")
    wanted = [privileges.CPU_SECONDS, privileges.ADDRESS_SPACE, privileges.OPEN_FILES, 0, 0, 0, 0, 0]
    assert [soft for soft, _ in limits] == [hard for _, hard in limits]
    assert all(hard <= most for (_, hard), most in zip(limits, wanted, strict=True))
    assert [hard for _, hard in limits[2:]] == wanted[2:]
    assert (umask, folder, nice, badness) == (0o077, "/", min(os.nice(0) + 5, 19), "1000")


def test_limits_that_are_lower_already_stay() -> None:
    found = run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))
bound()
found = resource.getrlimit(resource.RLIMIT_NOFILE)
""")
    assert found == [7, 7]


def test_nothing_is_left_open_but_three() -> None:
    found = run("""
os.open("/dev/null", os.O_RDONLY)
close_others()
found = [int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists()]
""")
    assert sorted(found) == [0, 1, 2]


@pytest.mark.root
def test_root_becomes_the_user_wholly() -> None:
    uids, gids, groups, kept = run("""
become(ADA, ADA, [ADA, 60001])
kept = [error_of(verify, ADA, ADA, [ADA, 60001]), error_of(verify, ADA, ADA, []), error_of(verify, 0, 0, [ADA, 60001])]
found = [os.getresuid(), os.getresgid(), os.getgroups(), kept]
""")
    assert uids == gids == [ADA] * 3
    assert sorted(groups) == [ADA, 60001]
    assert kept == [
        "none",
        f"uid {ADA} was not become wholly: groups kept",
        "uid 0 was not become wholly: a uid, a gid kept",
    ]


@pytest.mark.root
def test_who_is_not_root_stays_who_they_are() -> None:
    found = run("""
os.setgroups([])
os.setresgid(ADA, ADA, ADA)
os.setresuid(ADA, ADA, ADA)
found = [error_of(become, 0, 0, []), error_of(become, ADA, ADA, [])]
""")
    assert found == ["uid 0 was not become wholly: a uid, a gid kept", "none"]


@pytest.mark.root
def test_an_id_that_is_none_is_not_become() -> None:
    assert run("found = error_of(become, -2, ADA, [])").startswith("cannot become uid -2: ")


def test_a_library_that_began_a_thread_would_keep_roots_rights() -> None:
    found = run("""
import threading
end = threading.Event()
thread = threading.Thread(target=end.wait)
thread.start()
found = error_of(become, os.getuid(), os.getgid(), [])
end.set()
thread.join()
""")
    assert found == "a name service's library began a thread, which would keep root's rights"


@pytest.mark.root
def test_what_is_kept_is_named() -> None:
    kept = run("found = error_of(verify, ADA, ADA, [])")
    assert kept.startswith(f"uid {ADA} was not become wholly: a uid, a gid, ")
    assert "capabilities" in kept and "a way to new privileges" in kept


def test_whose_asker_is_gone_ends() -> None:
    assert run("found = error_of(die_with, 1 << 22)") == "who asked is gone"
    assert run("found = error_of(die_with, os.getppid())") == "none"


def test_groups_are_those_of_a_login() -> None:
    root = pwd.getpwuid(0)
    assert groups_of(0, None) == (root.pw_gid, sorted(set(os.getgrouplist("root", root.pw_gid))))
    gid, groups = groups_of(0, 60001)
    assert gid == 60001 and 60001 in groups


def test_a_user_whom_nobody_knows_has_the_group_of_the_job() -> None:
    assert groups_of(ADA, 60001) == (60001, [60001])
    with pytest.raises(PrivilegeError, match=f"no name service knows uid {ADA}"):
        groups_of(ADA, None)
